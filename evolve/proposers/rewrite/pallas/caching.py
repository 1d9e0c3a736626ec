"""A rule on operands that every use quantises anew: keep the result over a grid axis."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported, walk
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.chain import Chain, find_chain, ordinal, take_from
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.shapes import Inference, ShapedValue, loop_count
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PALLAS_TPU, PallasCall


@dataclass(frozen=True)
class Buffers:
    """Scratch of a chain: the names of its references, and the helper that fills them."""

    helper: str
    names: dict[str, str]


def reserve(edit: Edit, view: PallasCall, chain: Chain, lead: Sequence[str]) -> Buffers:
    """Declare the helper and one scratch buffer per chain value: [*lead, parts?, *shape of the value]."""
    kernel = view.kernel
    inference = Inference(view)
    shaped = inference.run(chain.body)
    helper = kernel.fresh("cache_tile")
    edit.before(
        kernel.statement(view.function), "\n\n" + chain.helper(helper, "Values kept across a grid axis.")
    )
    tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
    names, entries = {}, []
    for value in chain.values:
        names[value.name] = kernel.fresh(f"{value.name}_cache")
        shape = shaped.get(value.name)
        if not isinstance(shape, ShapedValue) or shape.dtype is None:
            raise Unsupported(f"the shape of {value.name} cannot be inferred")
        dims = [*lead, *shape.dims]
        if value.loop is not None:
            dims = [*lead, loop_count(inference, kernel, value.loop), *shape.dims]
        entries.append((names[value.name], f"{tpu}.VMEM(({', '.join(dims)},), {shape.dtype})"))
    view.add_scratch(edit, entries)
    return Buffers(helper, names)


def fill_text(chain: Chain, buffers: Buffers, lead: Sequence[str], kernel: KernelSource) -> str:
    """Statements that run the helper and store what it returns."""
    lines = [f"{', '.join(chain.result(v) for v in chain.values)} = {chain.call(buffers.helper)}"]
    index, part = kernel.fresh("part_index"), kernel.fresh("part")
    for value in chain.values:
        name = buffers.names[value.name]
        if value.loop is not None:
            lines.append(f"for {index}, {part} in enumerate({chain.result(value)}):")
            lines.append(f"    {name}[{', '.join([*lead, index])}] = {part}")
        else:
            lines.append(f"{name}[{', '.join(lead) or '...'}] = {value.name}")
    return "\n".join(lines)


def read_texts(chain: Chain, buffers: Buffers, lead: Sequence[str], kernel: KernelSource) -> dict[str, str]:
    texts = {}
    for value in chain.values:
        number = [ordinal(kernel, value.loop) or ""] if value.loop is not None else []
        texts[value.name] = f"{buffers.names[value.name]}[{', '.join([*lead, *number]) or '...'}]"
    return texts


class CacheAcrossAxis(CallRule[tuple[int, Chain]]):
    """Compute a chain at the first step of a grid axis its inputs do not move with; reuse it from scratch."""

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
        kernel = view.kernel
        axis, chain = payload
        inner: set[int] = set()
        for name in chain.refs:
            ref = view.ref(name)
            spec = ref.spec if ref is not None else None
            assert spec is not None
            inner |= {d for d in spec.grid_axes(kernel) if d > axis}
        lead_dims = [kernel.code(view.grid[d]) for d in sorted(inner)]
        buffers = reserve(edit, view, chain, lead_dims)
        anchor = view.body[chain.first]
        ids = {d: pinned_id(edit, view, d, chain.first) for d in sorted({axis, *inner})}
        lead = [ids[d] for d in sorted(inner)]
        fill = fill_text(chain, buffers, lead, kernel)
        label = kernel.fresh("fill_cache")
        body = "\n".join("    " + line for line in fill.splitlines())
        edit.before(anchor, f"@{view.pallas}.when({ids[axis]} == 0)\ndef {label}():\n{body}")
        take_from(edit, chain, read_texts(chain, buffers, lead, kernel))
        for sequential in {axis, *inner}:
            view.make_sequential(edit, sequential)


def pinned_id(edit: Edit, view: PallasCall, axis: int, before: int) -> str:
    """A name of ``program_id(axis)`` bound before top-level statement ``before``."""
    for statement in view.body[:before]:
        for name, bound in view.axis_names.items():
            if bound == axis and any(isinstance(n, cst.Name) and n.value == name for n in walk(statement)):
                return name
    name = view.kernel.fresh(f"step_{axis}")
    edit.before(view.body[0] if before else view.body[before], f"{name} = {view.pallas}.program_id({axis})")
    return name
