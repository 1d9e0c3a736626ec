"""A rule on the epilogue: transposed stores."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import short
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.view import (
    NodeRule,
    TritonKernel,
    argument,
    device_calls,
)

TileStore = tuple[cst.Call, str, str, str | None]
"""A store through a two-dimensional tile of pointers: call, pointer, value, mask."""


def tile_stores(kernel: TritonKernel) -> list[TileStore]:
    """Stores through two-dimensional tiles of pointers."""
    found = []
    for call in device_calls(kernel.source, kernel.function, "store"):
        if len(call.args) < 2 or any(
            a.keyword is not None and a.keyword.value not in ("mask", "value", "pointer") for a in call.args
        ):
            continue
        pointer, value, mask = (argument(call, n, i) for i, n in enumerate(("pointer", "value", "mask")))
        if pointer is None or value is None:
            continue
        names = kernel.definition_closure(pointer)
        lines = [p for n in names for p in kernel.bound.get(n, ())]
        text = "".join("".join(kernel.source.code(p).split()) for p in [*lines, pointer])
        if "[:,None]" in text and "[None,:]" in text:
            code = kernel.source.code
            found.append((call, code(pointer), code(value), code(mask) if mask is not None else None))
    return found


class TransposedStore(NodeRule[TileStore]):
    """Store the transposed tile through transposed pointers."""

    name = "triton_transposed_store"
    why = (
        "When the output's contiguous direction crosses the registers' layout, transposing value and pointers first "
        "lets each thread write wide runs."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, TileStore]]:
        for item in tile_stores(kernel):
            if not item[1].startswith(f"{kernel.tl}.trans"):
                yield f"transpose {short(kernel.source, item[0])}", item

    def change(self, edit: Edit, kernel: TritonKernel, payload: TileStore) -> None:
        call, pointer, value, mask = payload
        turn = f"{kernel.tl}.trans"
        masked = f", mask={turn}({kernel.tl}.broadcast_to({mask}, {_shape(kernel, value)}))" if mask else ""
        edit.replace(call, f"{kernel.tl}.store({turn}({pointer}), {turn}({value}){masked})")


def _shape(kernel: TritonKernel, value: str) -> str:
    base = value if value.isidentifier() or value.endswith(")") else f"({value})"
    return f"({base}).shape" if not value.isidentifier() else f"{value}.shape"
