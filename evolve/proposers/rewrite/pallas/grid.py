"""Rules on the grid: a whole reduction per step, axis order, and specialised first and last steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import (
    KernelSource,
    Unsupported,
    walk,
)
from tilewright.evolve.proposers.rewrite.dataflow import dedented, reads_of, resolve, target_names
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import (
    PallasCall,
    Spec,
    When,
    block_text,
    num_programs_axis,
    program_axis,
)


def _literal_maps(view: PallasCall) -> bool:
    return all(
        r.spec is not None and isinstance(r.spec.map_node, cst.Lambda) for r in [*view.inputs, *view.outputs]
    )


def _specs(view: PallasCall) -> list[Spec]:
    """Every BlockSpec of the launch once (operands may share one)."""
    found: list[Spec] = []
    for ref in view.refs:
        if ref.spec is not None and all(ref.spec.node is not s.node for s in found):
            found.append(ref.spec)
    return found


class WholeReductionBlock(CallRule[int]):
    """Remove a reduction axis from the grid: blocks span the whole reduction, conditional steps disappear."""

    name = "pallas_whole_reduction_block"
    why = (
        "With the whole reduction in one grid step there is no accumulator to carry, no conditional block to stop the "
        "scheduler, and the input stays put while another axis moves. It costs VMEM."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, int]]:
        kernel = view.kernel
        if len(view.grid) < 2 or not _literal_maps(view) or not isinstance(view.grid_node, cst.Tuple):
            return
        for axis in range(len(view.grid)):
            moved = {a for r in view.outputs if r.spec for a in r.spec.grid_axes(kernel)}
            used = {a for r in view.inputs if r.spec for a in r.spec.grid_axes(kernel)}
            if axis not in moved and axis in used and _plain_indices(view, axis):
                yield f"reduce grid axis {axis} within one step", axis

    def change(self, edit: Edit, view: PallasCall, axis: int) -> None:
        kernel = view.kernel
        steps = kernel.code(view.grid[axis])
        widened: dict[str, str] = {}
        kept: set[str] = set()
        for spec in _specs(view):
            for position, index in enumerate(spec.index):
                if axis in spec.depends(kernel, position):
                    old = kernel.code(spec.shape[position])
                    widened[old] = whole_extent(view, spec.shape[position], view.grid[axis])
                    edit.replace(spec.shape[position], widened[old])
                    edit.replace(index, "0")
                else:
                    kept.add(kernel.code(spec.shape[position]))
            edit.transform(_map_parameters(spec), partial(without_parameter, position=axis))
        if kept & set(widened):
            raise Unsupported("one name for the extents of the reduction and of another axis")
        edit.transform(view.grid_node, partial(without_element, position=axis))
        elements = view.semantics()
        if elements:
            holder = kernel.parents[elements[axis]]
            edit.transform(holder, partial(without_element, position=axis))
        for argument in view.bound.values():
            text = kernel.code(argument.value)
            if text == steps:
                edit.replace(argument.value, "1")
            elif text in widened:
                edit.replace(argument.value, widened[text])
        _reshape_scratch(edit, view, {**widened, steps: "1"})
        _renumber(edit, view, axis)
        if kernel.enclosing(view.function, cst.FunctionDef) is not None:
            _widen_in_kernel(edit, view, {**widened, steps: "1"})
        _inline_whens(edit, view, axis)


def _map_parameters(spec: Spec) -> cst.Parameters:
    """Parameters of an index map that is a lambda."""
    assert isinstance(spec.map_node, cst.Lambda)
    return spec.map_node.params


def _plain_indices(view: PallasCall, axis: int) -> bool:
    for spec in (r.spec for r in view.inputs if r.spec is not None):
        for position, index in enumerate(spec.index):
            if axis in spec.depends(view.kernel, position) and not isinstance(index, cst.Name):
                return False
    return True


def whole_extent(view: PallasCall, extent: cst.BaseExpression, steps: cst.BaseExpression) -> str:
    """Text of extent times steps; ``K`` when steps is ``K // extent`` or ``cdiv(K, extent)``."""
    kernel = view.kernel
    whole = _divided(kernel, kernel.code(extent), resolve(kernel, steps))
    if whole is not None:
        return whole
    if isinstance(extent, cst.BinaryOperation) and isinstance(extent.operator, cst.FloorDivide):
        whole = _divided(kernel, kernel.code(extent.left), resolve(kernel, steps))
        if whole is not None:
            return f"{whole} // {kernel.code(extent.right)}"
    return f"({kernel.code(extent)}) * ({kernel.code(steps)})"


def _divided(kernel: KernelSource, extent: str, steps: cst.BaseExpression) -> str | None:
    """K of ``K // extent`` and of ``cdiv(K, extent)``."""
    if isinstance(steps, cst.BinaryOperation) and isinstance(steps.operator, cst.FloorDivide):
        left, right = steps.left, steps.right
    elif (
        isinstance(steps, cst.Call) and kernel.qualified(steps.func).endswith("cdiv") and len(steps.args) == 2
    ):
        left, right = steps.args[0].value, steps.args[1].value
    else:
        return None
    text = kernel.code(left)
    return (text if text.isidentifier() else f"({text})") if kernel.code(right) == extent else None


def without_parameter(node: cst.Parameters, position: int) -> cst.Parameters:
    keep = [p for i, p in enumerate(node.params) if i != position]
    if keep:
        keep[-1] = keep[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return node.with_changes(params=keep)


def without_element(node: Any, position: int) -> Any:
    keep = [e for i, e in enumerate(node.elements) if i != position]
    if keep and position == len(node.elements) - 1:
        keep[-1] = keep[-1].with_changes(comma=node.elements[-1].comma)
    if len(keep) == 1 and isinstance(node, cst.Tuple):
        keep[0] = keep[0].with_changes(comma=cst.Comma())
    return node.with_changes(elements=keep)


def _reshape_scratch(edit: Edit, view: PallasCall, extents: dict[str, str]) -> None:
    """Scratch extents that were a block's or the number of steps follow the blocks."""
    for ref in view.scratch:
        if isinstance(ref.declared, cst.Call) and ref.declared.args:
            shape = ref.declared.args[0].value
            for element in shape.elements if isinstance(shape, cst.Tuple) else ():
                text = view.kernel.code(element.value)
                if text in extents:
                    edit.replace(element.value, extents[text])


def _renumber(edit: Edit, view: PallasCall, axis: int) -> None:
    """Program ids of the removed axis become 0, its count 1, and later axes move down."""
    for node in walk(view.function):
        for found, constant in (
            (program_axis(view.kernel, node), "0"),
            (num_programs_axis(view.kernel, node), "1"),
        ):
            if found == axis:
                edit.replace(node, constant)
            elif found is not None and found > axis:
                assert isinstance(node, cst.Call)
                edit.replace(node.args[0].value, str(found - 1))


def _widen_in_kernel(edit: Edit, view: PallasCall, widened: dict[str, str]) -> None:
    for node in walk(view.function):
        if isinstance(node, cst.Name) and node.value in widened:
            parent = view.kernel.parents.get(node)
            if not isinstance(parent, cst.Attribute | cst.Param) and node not in edit.replacements:
                text = widened[node.value]
                edit.replace(node, text if text.isidentifier() or text.isdigit() else f"({text})")


def _inline_whens(edit: Edit, view: PallasCall, axis: int) -> None:
    """Conditions on the removed axis are decided: ``== x`` holds, ``!= 0`` and ``> 0`` do not."""
    for when in view.whens:
        if when.node not in view.body or view.axis_reads(view.kernel.code(when.condition)) != {axis}:
            continue
        condition = when.condition
        if not isinstance(condition, cst.Comparison) or len(condition.comparisons) != 1:
            raise Unsupported("a condition on the reduction axis that is no single comparison")
        operator = condition.comparisons[0].operator
        if isinstance(operator, cst.Equal):
            edit.replace_statement(when.node, block_text(view.kernel, when.node.body.body))
        elif isinstance(operator, cst.NotEqual | cst.GreaterThan):
            edit.remove(when.node)
        else:
            raise Unsupported("an ordering condition on the reduction axis")


class SwapGridAxes(CallRule[tuple[int, int]]):
    """Exchange two grid axes that both move the output."""

    name = "pallas_swap_grid_axes"
    why = (
        "The order of the grid decides which operand stays in VMEM between steps and which is read again; the best "
        "order depends on the shapes."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[int, int]]]:
        kernel = view.kernel
        if not _literal_maps(view) or not isinstance(view.grid_node, cst.Tuple | cst.List):
            return
        fixed = {a for w in view.whens for a in view.axis_reads(view.kernel.code(w.condition))}
        moving = set.intersection(*(r.spec.grid_axes(kernel) for r in view.outputs if r.spec))
        free = sorted(moving - fixed)
        for i, first in enumerate(free):
            for second in free[i + 1 :]:
                yield f"exchange grid axes {first} and {second}", (first, second)

    def change(self, edit: Edit, view: PallasCall, payload: tuple[int, int]) -> None:
        kernel = view.kernel
        first, second = payload
        a, b = view.grid[first], view.grid[second]
        edit.replace(a, kernel.code(b))
        edit.replace(b, kernel.code(a))
        for spec in _specs(view):
            edit.transform(_map_parameters(spec), partial(_swapped, first=first, second=second))
        elements = view.semantics()
        if elements:
            left, right = elements[first].value, elements[second].value
            edit.replace(left, kernel.code(right))
            edit.replace(right, kernel.code(left))
        turn = {first: second, second: first}
        for node in walk(view.function):
            for found in (program_axis(kernel, node), num_programs_axis(kernel, node)):
                if found in turn:
                    assert isinstance(node, cst.Call)
                    edit.replace(node.args[0].value, str(turn[found]))


def _swapped(node: cst.Parameters, first: int, second: int) -> cst.Parameters:
    listed = list(node.params)
    a, b = listed[first], listed[second]
    listed[first] = a.with_changes(name=b.name)
    listed[second] = b.with_changes(name=a.name)
    return node.with_changes(params=listed)


class SpecialiseSteps(CallRule[tuple[When, When]]):
    """Straight-line code for the first, middle and last step instead of conditional blocks around one body."""

    name = "pallas_specialise_steps"
    why = (
        "A conditional block is a barrier for the scheduler. Specialised steps put the zero fill and the final store "
        "into the same block as the dot, and leave the steady state without any condition inside."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[When, When]]]:
        ends = _ends(view)
        if ends is not None:
            yield "specialise first, middle and last step", ends

    def change(self, edit: Edit, view: PallasCall, payload: tuple[When, When]) -> None:
        kernel = view.kernel
        first, last = payload
        numpy = edit.ensure_import("jax.numpy", "jnp")
        body = list(view.body)
        start, end = body.index(first.node), body.index(last.node)
        names = {w: kernel.fresh(w) for w in ("steady", "at_first", "at_last")}
        main = block_text(kernel, body[start + 1 : end])
        lines = [f"def {names['steady']}():", *("    " + line for line in main.splitlines())]
        for when in (first, last):
            edit.transform(when.node, _undecorated)
        for statement in body[start + 1 : end]:
            edit.remove(statement)
        begin, finish = first.node.name.value, last.node.name.value
        if begin == finish:
            raise Unsupported("two conditional blocks of one name")
        lines.append(f"{names['at_first']} = {kernel.code(first.condition)}")
        lines.append(f"{names['at_last']} = {kernel.code(last.condition)}")
        for label, is_first, is_last in (
            ("only_step", True, True),
            ("first_step", True, False),
            ("middle_step", False, False),
            ("last_step", False, True),
        ):
            one = names["at_first"] if is_first else f"{numpy}.logical_not({names['at_first']})"
            two = names["at_last"] if is_last else f"{numpy}.logical_not({names['at_last']})"
            lines.append(f"@{view.pallas}.when({numpy}.logical_and({one}, {two}))")
            lines.append(f"def {kernel.fresh(label)}():")
            calls = [begin] * is_first + [names["steady"]] + [finish] * is_last
            lines += [f"    {c}()" for c in calls]
        edit.after(last.node, "\n".join(lines))


def _undecorated(node: cst.FunctionDef) -> cst.FunctionDef:
    return node.with_changes(decorators=[])


def _ends(view: PallasCall) -> tuple[When, When] | None:
    """The first and the last top-level conditional block, if one axis decides both and code lies between."""
    body = list(view.body)
    tops = [w for w in view.whens if w.node in body]
    if len(tops) < 2:
        return None
    first, last = tops[0], tops[-1]
    text = view.kernel.code
    axes = [view.axis_reads(text(w.condition)) for w in (first, last)]
    start, end = body.index(first.node), body.index(last.node)
    if axes[0] != axes[1] or len(axes[0]) != 1 or end - start < 2 or body[end + 1 :]:
        return None
    between = body[start + 1 : end]
    bound = {n for s in between for n in _bound(s)}
    if bound & reads_of(dedented(view.kernel, last.node)):
        return None
    return first, last


def _bound(statement: cst.CSTNode) -> list[str]:
    return [
        n for node in walk(statement) if isinstance(node, cst.AssignTarget) for n in target_names(node.target)
    ]
