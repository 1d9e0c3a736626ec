"""A rule that takes the grid's fastest axis into the step: its steps become a loop that Python unrolls."""

from collections.abc import Iterator
from functools import partial

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, RewrittenKernel, Site, walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions, reads_of, small
from tilewright.evolve.proposers.rewrite.edit import Edit, parse_statements
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule, pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.analysis.masks import masks
from tilewright.evolve.proposers.rewrite.pallas.analysis.static import StaticNames
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import (
    PallasCall,
    Ref,
    Spec,
    num_programs_axis,
    pairs,
    program_axis,
)
from tilewright.evolve.proposers.rewrite.pallas.grid import whole_extent, without_element, without_parameter


class UnrollGridAxis(CallRule[int]):
    """Walk the fastest grid axis inside the step: blocks span it, its program id becomes a Python number."""

    name = "pallas_unroll_grid_axis"
    why = (
        "Steps in straight-line code overlap: the vector work of one runs beside the matrix work of the next. What "
        "depends on the step is decided while tracing: conditions vanish, and steps that do nothing cost nothing. It "
        "costs VMEM for the whole axis, and code."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, int]]:
        last = len(view.grid) - 1
        if not last or not _decides(view, last) or not _can_unroll(view, last):
            return
        if last > 1 and _decides(view, last - 1) and _can_unroll(view, last - 1):
            yield f"unroll grid axes {last - 1} and {last} within the step", 2
        yield f"unroll grid axis {last} within the step", 1

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        view, count = site.payload
        rewritten = _unroll(view)
        if count > 1 and rewritten is not None:
            inner = next(v for v in pallas_calls(KernelSource(rewritten.source)) if v.name == view.name)
            rewritten = _unroll(inner)
        return rewritten


def _unroll(view: PallasCall) -> RewrittenKernel | None:
    """The kernel with the last axis of its grid taken into the step; no parameter comes or goes."""
    axis = len(view.grid) - 1
    edit = Edit(view.kernel)
    named = [name for name, number in view.axis_names.items() if number == axis]
    step = view.kernel.fresh(f"{named[0]}_step" if named else f"step_{axis}")
    steps = view.pass_value(edit, f"steps_{axis}", view.grid[axis])
    views = _widen(edit, view, axis, step, steps)
    edit.transform(view.grid_node, partial(without_element, position=axis))
    elements = view.semantics()
    if elements:
        edit.transform(view.kernel.parents[elements[axis]], partial(without_element, position=axis))
    for node in walk(view.function):
        if program_axis(view.kernel, node) == axis:
            edit.replace(node, step)
        elif num_programs_axis(view.kernel, node) == axis:
            edit.replace(node, steps)
    edit.transform(view.function.body, partial(_loop_over_steps, step=step, steps=steps, views=views))
    rewritten = edit.finish()
    if rewritten is None:
        return None
    return RewrittenKernel(_python_conditions(rewritten.source, view.name), rewritten.added, rewritten.dropped)


def _decides(view: PallasCall, axis: int) -> bool:
    """Whether more than the first and the last step of an axis differ: by a condition, or by a mask."""
    kernel = view.kernel
    bound = definitions(view.function)

    def reads(text: str) -> bool:
        names: set[str] = set()
        texts = [text]
        while texts:
            if axis in view.axis_reads(texts[-1]):
                return True
            fresh = reads_of(texts.pop()) - names
            names |= fresh
            texts += [kernel.code(v) for n in fresh for p in bound.get(n, ()) for m, v in pairs(p) if m == n]
            lines = [small(p) for n in fresh for p in bound.get(n, ())]
            texts += [kernel.code(line.value) for line in lines if isinstance(line, cst.AugAssign)]
        return False

    ordered = [w.condition for w in view.whens if not _equality(w.condition)]
    texts = [kernel.code(c) for c in ordered]
    texts += [text for m in masks(kernel, view.function, view.function) for text in (m.full, m.empty)]
    return any(reads(text) for text in texts)


def _equality(condition: cst.BaseExpression) -> bool:
    """Whether a condition asks for one step, such as the first."""
    return isinstance(condition, cst.Comparison) and all(
        isinstance(c.operator, cst.Equal | cst.NotEqual) for c in condition.comparisons
    )


def _can_unroll(view: PallasCall, axis: int) -> bool:
    """Whether an axis of the launch, all after it taken, can be taken into the kernel."""
    kernel = view.kernel
    if not isinstance(view.grid_node, cst.Tuple | cst.List) or "input_output_aliases" in view.args:
        return False
    if "compiler_params" in view.args and view.semantics() is None:
        text = kernel.code(view.args["compiler_params"].value)
        if "dimension_semantics" in text:
            return False
    if "cdiv" in kernel.code(view.grid[axis]) or not isinstance(view.function.body, cst.IndentedBlock):
        return False
    for ref in [*view.inputs, *view.outputs]:
        if ref.spec is None:
            if ref.declared is None or "memory_space" not in kernel.code(ref.declared):
                return False
            continue
        for position, index in enumerate(ref.spec.index):
            if axis in ref.spec.depends(kernel, position) and not isinstance(index, cst.Name):
                return False
    nested = [f for f in walk(view.function) if isinstance(f, cst.FunctionDef | cst.Lambda)]
    hidden = {p.name.value for f in nested if f is not view.function for p in walk(f) if isinstance(p, cst.Param)}
    returns = [
        r
        for r in walk(view.function)
        if isinstance(r, cst.Return) and kernel.enclosing(r, cst.FunctionDef) is view.function
    ]
    return not returns and not hidden & {r.name for r in view.refs}


def _widen(edit: Edit, view: PallasCall, axis: int, step: str, steps: str) -> list[str]:
    """Blocks that move with the axis span it; returns statements that name one step's part of each."""
    kernel = view.kernel
    widened: set[int] = set()
    lines: list[str] = []
    for ref in [*view.inputs, *view.outputs]:
        spec = ref.spec
        if spec is None:
            continue
        if id(spec.node) not in widened:
            widened.add(id(spec.node))
            for position in range(len(spec.index)):
                if axis in spec.depends(kernel, position):
                    extent = spec.shape[position]
                    whole = kernel.code(view.grid[axis])
                    edit.replace(
                        extent, whole if _is_squeezed(kernel, extent) else whole_extent(view, extent, view.grid[axis])
                    )
                    edit.replace(spec.index[position], "0")
        if id(spec.map_node) not in widened:
            widened.add(id(spec.map_node))
            assert isinstance(spec.map_node, cst.Lambda | cst.FunctionDef)
            edit.transform(spec.map_node.params, partial(without_parameter, position=axis))
        if axis in spec.grid_axes(kernel):
            part = kernel.fresh(f"{ref.name}_part")
            lines.append(f"{part} = {ref.name}.at[{_place(view, ref, spec, axis, step, steps)}]")
            _rename(edit, view, ref.name, part)
    return lines


def _is_squeezed(kernel: KernelSource, extent: cst.BaseExpression) -> bool:
    text = kernel.code(extent)
    return text == "None" or text.lower().endswith("squeezed")


def _place(view: PallasCall, ref: Ref, spec: Spec, axis: int, step: str, steps: str) -> str:
    """Index of one step's part in the widened block."""
    kernel = view.kernel
    texts: list[str] = []
    for position, extent in enumerate(spec.shape):
        moves = axis in spec.depends(kernel, position)
        if _is_squeezed(kernel, extent):
            texts += [step] if moves else []
        elif moves:
            size = view.kernel_text(extent) or f"({ref.name}.shape[{len(texts)}] // {steps})"
            texts.append(f"{step} * {size} : ({step} + 1) * {size}")
        else:
            texts.append(":")
    return ", ".join(texts)


def _rename(edit: Edit, view: PallasCall, old: str, new: str) -> None:
    """Reads of reference ``old`` in the kernel's body become ``new``."""
    for node in walk(view.function.body):
        if isinstance(node, cst.Name) and node.value == old:
            parent = view.kernel.parents.get(node)
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                continue
            if isinstance(parent, cst.Arg) and parent.keyword is node:
                continue
            edit.replace(node, new)


def _loop_over_steps(block: cst.IndentedBlock, step: str, steps: str, views: list[str]) -> cst.IndentedBlock:
    count = cst.Module(body=[]).code_for_node(cst.parse_expression(steps).with_changes(lpar=[], rpar=[]))
    loop = parse_statements(f"for {step} in range({count}):\n    pass")[0]
    assert isinstance(loop, cst.For)
    made = [s for text in views for s in parse_statements(text)]
    loop = loop.with_changes(body=cst.IndentedBlock(body=[*made, *block.body]))
    return block.with_changes(body=[loop])


def _python_conditions(source: str, name: str) -> str:
    """``source`` with conditions that Python can now decide in Python's words, so that it does."""
    kernel = KernelSource(source)
    edit = Edit(kernel)
    for view in pallas_calls(kernel):
        if view.name == name:
            static = StaticNames(kernel, view.function)
            for when in static.whens(view.function):
                text = static.python_condition(when.condition)
                if text != kernel.code(when.condition):
                    edit.replace(when.condition, text)
    rewritten = edit.finish()
    return source if rewritten is None else rewritten.source
