"""The rule that reduces within one grid step, and what takes an axis out of a launch."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import resolve
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import (
    PallasCall,
    Spec,
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
            assert isinstance(spec.map_node, cst.Lambda)
            edit.transform(spec.map_node.params, partial(without_parameter, position=axis))
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
    """In the kernel, and in what it calls that stands beside it: a helper that fills a cache walks the blocks, too."""
    kernel, functions = view.kernel, [view.function]
    for function in functions:
        for node in walk(function):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
                called = kernel.function(node.func.value, near=node)
                home = kernel.enclosing(view.function, cst.FunctionDef)
                if called and called not in functions and kernel.enclosing(called, cst.FunctionDef) is home:
                    functions.append(called)
            if isinstance(node, cst.Name) and node.value in widened:
                parent = kernel.parents.get(node)
                if isinstance(parent, cst.Param) and function is not view.function:
                    raise Unsupported("a helper whose parameter is named like an extent of the reduction")
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
