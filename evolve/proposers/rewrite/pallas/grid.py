"""Rules on grid axes: reduce within one step, and keep over an axis what every use quantises anew."""

from collections.abc import Iterator, Sequence
from functools import partial
from textwrap import indent
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions, resolve
from tilewright.evolve.proposers.rewrite.edit import Edit, parse_statements
from tilewright.evolve.proposers.rewrite.pallas.analysis.chain import Chain, find_chain, ordinal, take_from
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.shapes import Inference, ShapedValue, loop_count
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import (
    PALLAS_TPU,
    PallasCall,
    Spec,
    block_text,
    num_programs_axis,
    program_axis,
)


def reserve(edit: Edit, view: PallasCall, chain: Chain, lead: Sequence[str]) -> tuple[dict[str, list[str]], bool]:
    """Declare one scratch buffer per chain value, [*lead, turns of its loop?, *shape of the value].

    By value the buffer's name and the number of the turn, if it has one; and whether a value has elements of a byte.
    """
    kernel = view.kernel
    inference = Inference(view)
    shaped = inference.run(chain.body({}))
    tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
    buffers, entries, dtypes = {}, [], []
    for value in chain.values:
        buffers[value.name] = [kernel.fresh(f"{value.name}_cache")]
        shape = shaped.get(value.name)
        if not isinstance(shape, ShapedValue) or shape.dtype is None:
            raise Unsupported(f"the shape of {value.name} cannot be inferred")
        dims = [*lead, *shape.dims]
        if value.loop is not None:
            dims.insert(len(lead), loop_count(inference, kernel, value.loop))
            buffers[value.name].append(ordinal(kernel, value.loop) or "")
        entries.append((buffers[value.name][0], f"{tpu}.VMEM(({', '.join(dims)},), {shape.dtype})"))
        dtypes.append(shape.dtype)
    view.add_scratch(edit, entries)
    return buffers, any("8" in dtype for dtype in dtypes)


class CacheAcrossAxis(CallRule[tuple[int, Chain]]):
    """Compute a chain at the first step of a grid axis its inputs do not move with; reuse it from scratch.

    In the first step it stands beside the step's own work, whose dots it overlaps, but for values of one byte.
    """

    name = "pallas_cache_across_axis"
    why = (
        "A tile that does not move with a grid axis is quantised again at every step of that axis. Filling a VMEM "
        "scratch at the first step and reading it at the others trades vector work, which bounds a fused kernel, "
        "for a little memory."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[int, Chain]]]:
        kernel = view.kernel
        for axis in range(len(view.grid)):
            fixed = [r.name for r in view.inputs if r.spec and axis not in r.spec.grid_axes(kernel)]
            chain = find_chain(view, fixed) if fixed else None
            if chain is not None and chain.refs and view.operands:
                what = ", ".join(v.name for v in chain.values)
                yield f"keep {what} of {', '.join(chain.refs)} over grid axis {axis}", (axis, chain)

    def change(self, edit: Edit, view: PallasCall, payload: tuple[int, Chain]) -> None:
        (axis, chain), kernel = payload, view.kernel
        moving = [r.spec for r in view.inputs if r.name in chain.refs and r.spec is not None]
        inner = {d for spec in moving for d in spec.grid_axes(kernel) if d > axis}
        buffers, narrow = reserve(edit, view, chain, [kernel.code(view.grid[d]) for d in sorted(inner)])
        first = chain.first if narrow else _scope_start(view, chain.first)
        ids = {d: pinned_id(edit, view, d, first) for d in sorted({axis, *inner})}
        lead = [ids[d] for d in sorted(inner)]
        places = {value: f"{name}[{', '.join([*lead, *turn]) or '...'}]" for value, (name, *turn) in buffers.items()}
        label, step, fresh = map(kernel.fresh, ("fill_cache", "one_step", "is_fresh"))
        fill = f"def {label}():\n{indent(chain.body(places), '    ')}"
        if narrow:  # the simulator cannot cost one-byte dots beside the stores of what they read
            edit.insert_before(view.body[first], f"@{view.pallas}.when({ids[axis]} == 0)\n{fill}")
        else:
            start = f"def {step}({fresh}):\n    if {fresh}:\n        {label}()"
            edit.insert_before(view.body[first], f"{fill}\n{start}")
            turns = (f"{ids[axis]} {at} 0)(lambda: {step}({at == '=='}))" for at in ("==", "!="))
            calls = [f"{view.pallas}.when({turn}" for turn in turns]
            edit.transform(view.function.body, partial(_with_rest_inside, name=step, calls="\n".join(calls)))
        take_from(edit, chain, places)
        for sequential in {axis, *inner}:
            view.make_sequential(edit, sequential)


def _scope_start(view: PallasCall, first: int) -> int:
    """The last top-level statement up to ``first`` from which on all bindings of a name can be one function's.

    Raises Unsupported where a parameter of the kernel is bound again.
    """
    top = {node: number for number, statement in enumerate(view.body) for node in walk(statement)}
    bound = definitions(view.function)
    if bound.keys() & {ref.name for ref in view.refs}:
        raise Unsupported("a reference that is bound again")
    numbers = [[top[place] for place in found if place in top] for found in bound.values()]
    while earlier := [min(n) for n in numbers if n and min(n) < first <= max(n)]:
        first = min(earlier)
    return first


def _with_rest_inside(block: cst.IndentedBlock, name: str, calls: str) -> cst.IndentedBlock:
    """The function ``name`` gets the statements after it as well, and its calls follow."""
    body = list(block.body)
    (place,) = (i for i, s in enumerate(body) if isinstance(s, cst.FunctionDef) and s.name.value == name)
    own = cst.ensure_type(cst.ensure_type(body[place], cst.FunctionDef).body, cst.IndentedBlock)
    inner = cst.IndentedBlock(body=[*own.body, *body[place + 1 :]])
    return block.with_changes(body=[*body[:place], body[place].with_changes(body=inner), *parse_statements(calls)])


def pinned_id(edit: Edit, view: PallasCall, axis: int, before: int) -> str:
    """A name of ``program_id(axis)`` bound before top-level statement ``insert_before``."""
    for statement in view.body[:before]:
        for name, bound in view.axis_names.items():
            if bound == axis and any(isinstance(n, cst.Name) and n.value == name for n in walk(statement)):
                return name
    name = view.kernel.fresh(f"step_{axis}")
    edit.insert_before(view.body[0] if before else view.body[before], f"{name} = {view.pallas}.program_id({axis})")
    return name


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
        specs = [r.spec for r in (*view.inputs, *view.outputs)]
        literal = all(spec is not None and isinstance(spec.map_node, cst.Lambda) for spec in specs)
        if len(view.grid) < 2 or not literal or not isinstance(view.grid_node, cst.Tuple):
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
    whole = _dividend(kernel, kernel.code(extent), resolve(kernel, steps))
    if whole is not None:
        return whole
    if isinstance(extent, cst.BinaryOperation) and isinstance(extent.operator, cst.FloorDivide):
        whole = _dividend(kernel, kernel.code(extent.left), resolve(kernel, steps))
        if whole is not None:
            return f"{whole} // {kernel.code(extent.right)}"
    return f"({kernel.code(extent)}) * ({kernel.code(steps)})"


def _dividend(kernel: KernelSource, extent: str, steps: cst.BaseExpression) -> str | None:
    """K of ``K // extent`` and of ``cdiv(K, extent)``."""
    if isinstance(steps, cst.BinaryOperation) and isinstance(steps.operator, cst.FloorDivide):
        left, right = steps.left, steps.right
    elif isinstance(steps, cst.Call) and kernel.qualified(steps.func).endswith("cdiv") and len(steps.args) == 2:
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
        for found, constant in ((program_axis(view.kernel, node), "0"), (num_programs_axis(view.kernel, node), "1")):
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
