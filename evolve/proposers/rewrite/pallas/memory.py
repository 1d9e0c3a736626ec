"""Rules on how blocks reach VMEM: an explicit copy instead of the pipeline's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import (
    KernelSource,
    walk,
)
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.view import PallasCall, Ref


class LanePaddedScale(CallRule):
    """Keep a column of row scales spread over all lanes of its scratch."""

    name = "pallas_lane_padded_scale"
    why = (
        "A [rows, 1] column fills one lane of every register: each store is masked and each use broadcasts across "
        "lanes. Stored 128 lanes wide, the same registers hold it ready to use."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Any]]:
        kernel = view.kernel
        for r in view.scratch:
            if _is_column(kernel, r) and (uses := _plain_uses(view, r)) is not None:
                yield f"spread {r.name} over lanes", (r, uses)

    def change(self, edit: Edit, view: PallasCall, payload: Any) -> None:
        kernel = view.kernel
        ref, (reads, stores) = payload
        numpy = edit.ensure_import("jax.numpy", "jnp")
        shape = ref.declared.args[0].value
        edit.replace(shape.elements[-1].value, "128")
        for node in reads:
            edit.replace(node, f"{kernel.code(node)}[..., :1]")
        for value in stores:
            name = kernel.fresh("column")
            edit.before(kernel.statement(value), f"{name} = {kernel.code(value)}")
            edit.replace(value, f"{numpy}.broadcast_to({name}, (*{name}.shape[:-1], 128))")


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
