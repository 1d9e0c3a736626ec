"""Rules on how blocks reach VMEM: an explicit copy instead of the pipeline's."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import (
    KernelSource,
    Language,
    RewrittenKernel,
    Site,
    Unsupported,
    walk,
)
from tilewright.evolve.proposers.rewrite.dataflow import reads_of, substitute
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.find import pallas_calls
from tilewright.evolve.proposers.rewrite.pallas.view import PALLAS_TPU, PallasCall, Ref, first_statement


class ManualCopy:
    """Fetch an input's block by an explicit asynchronous copy from HBM into scratch."""

    name = "pallas_manual_copy"
    language = Language.PALLAS
    why = (
        "The grid pipeline holds two blocks of every input and copies on every index change. A copy in the kernel "
        "needs one buffer and can be placed, skipped or reused as later rewrites see fit."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        return copy_sites(kernel, "by hand")

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        view, ref = site.payload
        edit = Edit(kernel)
        tpu = edit.ensure_import(PALLAS_TPU, "pltpu")
        tile, done, copy = (kernel.fresh(f"{ref.name}_{w}") for w in ("tile", "done", "copy"))
        dims, dtype = leave_in_hbm(edit, view, ref, tile)
        view.add_scratch(
            edit, [(tile, f"{tpu}.VMEM(({dims},), {dtype})"), (done, f"{tpu}.SemaphoreType.DMA")]
        )
        ids = _bind_ids(edit, view)
        places = []
        for position, index in enumerate(ref.spec.index):
            text = substitute(kernel, index, {n: ids[a] for a, n in enumerate(ref.spec.axes)})
            size = f"{tile}.shape[{position}]"
            places.append(f"{view.pallas}.ds(({text}) * {size}, {size})")
        edit.before(
            first_statement(view.body),
            f"{copy} = {tpu}.make_async_copy({ref.name}.at[{', '.join(places)}], {tile}, {done})\n"
            f"{copy}.start()\n{copy}.wait()",
        )
        return edit.finish()


def _bind_ids(edit: Edit, view: PallasCall) -> dict[int, str]:
    """Fresh names of every program id, bound first in the kernel."""
    names = {axis: view.kernel.fresh(f"step_{axis}") for axis in range(len(view.grid))}
    text = "\n".join(f"{n} = {view.pallas}.program_id({a})" for a, n in names.items())
    edit.before(first_statement(view.body), text)
    return names


def copy_sites(kernel: KernelSource, how: str) -> list[Site]:
    """One site for each input whose blocks a kernel can copy itself; its payload is (call, input)."""
    return [
        Site(f"{v.name}/{r.name}", f"{v.name}: copy blocks of {r.name} {how}", (v, r))
        for v in pallas_calls(kernel)
        for r in v.inputs
        if v.operands and copyable(v, r)
    ]


def leave_in_hbm(edit: Edit, view: PallasCall, ref: Ref, tile: str) -> tuple[str, str]:
    """Take an input out of the pipeline and read ``tile`` in its place: the block's dimensions and dtype, as code."""
    kernel, spec = view.kernel, ref.spec
    assert spec is not None and ref.declared is not None
    dims = ", ".join(kernel.code(d) for d in spec.shape)
    edit.replace(ref.declared, f"{view.pallas}.BlockSpec(memory_space={view.pallas}.ANY)")
    for node in walk(view.function):
        named = isinstance(node, cst.Name) and node.value == ref.name
        if named and not isinstance(kernel.parents[node], cst.Param):
            edit.replace(node, tile)
    return dims, f"{kernel.code(view.operands[ref.position])}.dtype"


def copyable(view: PallasCall, ref: Ref) -> bool:
    """A literal spec of its own, whose index map reads grid axes only and which has no squeezed dimension."""
    spec, kernel = ref.spec, view.kernel
    if spec is None or any(word in kernel.code(spec.node) for word in ("pipeline_mode", "memory_space")):
        return False
    if sum(1 for r in view.refs if r.spec is not None and r.spec.node is spec.node) > 1:
        return False
    if any(kernel.code(d) in ("None", f"{view.pallas}.squeezed") for d in spec.shape):
        return False
    outer = {n for index in spec.index for n in reads_of(kernel.code(index))} - set(spec.axes)
    return not outer and len(spec.index) == len(spec.shape)


class LanePaddedScale:
    """Keep a column of row scales spread over all lanes of its scratch."""

    name = "pallas_lane_padded_scale"
    language = Language.PALLAS
    why = (
        "A [rows, 1] column fills one lane of every register: each store is masked and each use broadcasts across "
        "lanes. Stored 128 lanes wide, the same registers hold it ready to use."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        return [
            Site(f"{v.name}/{r.name}", f"{v.name}: spread {r.name} over lanes", (v, r, uses))
            for v in pallas_calls(kernel)
            for r in v.scratch
            if _is_column(kernel, r) and (uses := _plain_uses(v, r)) is not None
        ]

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        _, ref, (reads, stores) = site.payload
        edit = Edit(kernel)
        numpy = edit.ensure_import("jax.numpy", "jnp")
        shape = ref.declared.args[0].value
        edit.replace(shape.elements[-1].value, "128")
        for node in reads:
            edit.replace(node, f"{kernel.code(node)}[..., :1]")
        for value in stores:
            name = kernel.fresh("column")
            edit.before(kernel.statement(value), f"{name} = {kernel.code(value)}")
            edit.replace(value, f"{numpy}.broadcast_to({name}, (*{name}.shape[:-1], 128))")
        return edit.finish()


def _is_column(kernel: KernelSource, ref: Ref) -> bool:
    """Declared as VMEM with at least two extents, the last one 1."""
    if not isinstance(ref.declared, cst.Call) or len(ref.declared.args) != 2:
        return False
    shape = ref.declared.args[0].value
    return (
        isinstance(shape, cst.Tuple)
        and len(shape.elements) >= 2
        and kernel.code(shape.elements[-1].value) == "1"
        and kernel.qualified(ref.declared.func).endswith(".VMEM")
    )


def _plain_uses(view: PallasCall, ref: Ref) -> tuple[list[cst.CSTNode], list[cst.BaseExpression]] | None:
    """(reads, stored values) if every use is ``ref[...]`` or leading indices; None otherwise."""
    kernel = view.kernel
    rank = len(ref.declared.args[0].value.elements)  # type: ignore[union-attr]
    reads: list[cst.CSTNode] = []
    stores: list[cst.BaseExpression] = []
    for node in walk(view.function):
        if not isinstance(node, cst.Name) or node.value != ref.name:
            continue
        parent = kernel.parents[node]
        if isinstance(parent, cst.Param):
            continue
        if not isinstance(parent, cst.Subscript) or parent.value is not node or len(parent.slice) >= rank:
            return None
        holder = kernel.parents[parent]
        if isinstance(holder, cst.AssignTarget):
            line = kernel.parents[holder]
            assert isinstance(line, cst.Assign)
            stores.append(line.value)
        elif isinstance(holder, cst.AugAssign):
            return None
        else:
            reads.append(parent)
    return (reads, stores) if reads and stores else None


__all__ = ["ManualCopy", "Unsupported"]
