"""Rules on memory reads and writes: hints, pointer arithmetic, transposed stores."""

from collections.abc import Iterable
from functools import partial

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import short
from tilewright.evolve.proposers.rewrite.edit import Edit, with_keyword
from tilewright.evolve.proposers.rewrite.triton.view import (
    NodeRule,
    TritonKernel,
    argument,
    device_calls,
    range_of,
    terms,
)

PointerStep = tuple[cst.For, cst.Call, tuple[str, str], tuple[str, str, str]]
"""A load that a loop moves on: loop, call, (invariant part, factor of the index), bounds of the loop."""


class StrengthReducePointer(NodeRule[PointerStep]):
    """Advance a pointer by a constant instead of multiplying the loop index."""

    name = "triton_strength_reduce_pointer"
    why = (
        "An address advanced by one add per iteration frees the multiplier and often a register per pointer."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, PointerStep]]:
        for loop in kernel.loops:
            bounds = range_of(kernel.source, loop)
            if bounds is None:
                continue
            for call in device_calls(kernel.source, loop.body, "load"):
                if kernel.source.enclosing(call, cst.For) is not loop or not call.args:
                    continue
                split = _split_step(kernel, call.args[0].value, loop)
                inside_if = kernel.source.enclosing(call, cst.If) is not None
                if split and not inside_if:
                    yield f"advance {short(kernel.source, call.args[0].value)}", (loop, call, split, bounds)

    def change(self, edit: Edit, kernel: TritonKernel, payload: PointerStep) -> None:
        loop, call, (base, factor), (start, _, step) = payload
        name = kernel.source.fresh("running")
        first = base if start == "0" else f"{base} + ({start}) * {factor}"
        edit.before(loop, f"{name} = {first}")
        edit.replace(call.args[0].value, name)
        edit.after(loop.body.body[-1], f"{name} += {factor if step == '1' else f'({step}) * {factor}'}")


def _split_step(kernel: TritonKernel, address: cst.BaseExpression, loop: cst.For) -> tuple[str, str] | None:
    """(invariant part, factor of the index) of ``base + k * factor``."""
    index = kernel.source.code(loop.target)
    moving: list[cst.BaseExpression] = []
    fixed: list[cst.BaseExpression] = []
    for term in terms(address):
        (moving if kernel.moves(term, loop) else fixed).append(term)
    if len(moving) != 1 or not fixed:
        return None
    term = moving[0]
    if isinstance(term, cst.Name) and term.value == index:
        factor = "1"
    elif isinstance(term, cst.BinaryOperation) and isinstance(term.operator, cst.Multiply):
        sides = {kernel.source.code(term.left): term.right, kernel.source.code(term.right): term.left}
        other = sides.get(index)
        if other is None or kernel.moves(other, loop):
            return None
        factor = kernel.source.code(other)
        factor = f"({factor})" if isinstance(other, cst.BinaryOperation) else factor
    else:
        return None
    return " + ".join(kernel.source.code(f) for f in fixed), factor


class CacheHint(NodeRule[tuple[cst.Call, str, str]]):
    """Tell the cache which tile is read again and which is not.

    Measured on an H200: 0.9 to 1.0 % of ``fused_quant/swiglu_1x128``, in two campaigns of two all that gained.
    """

    name = "triton_cache_hint"
    why = (
        "An operand every program reads should outlive one that a single program streams through L2; an eviction "
        "hint says so."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, tuple[cst.Call, str, str]]]:
        for call in device_calls(kernel.source, kernel.function, "load"):
            given = {a.keyword.value for a in call.args if a.keyword is not None}
            if given & {"eviction_policy", "cache_modifier"}:
                continue
            for keyword, value in (
                ("eviction_policy", "evict_last"),
                ("eviction_policy", "evict_first"),
                ("cache_modifier", ".cg"),
            ):
                yield f"{value} on {short(kernel.source, call)}", (call, keyword, value)

    def change(self, edit: Edit, kernel: TritonKernel, payload: tuple[cst.Call, str, str]) -> None:
        call, keyword, value = payload
        edit.transform(call, partial(with_keyword, keyword=keyword, text=repr(value)))


TileStore = tuple[cst.Call, str, str, str | None]
"""A store through a two-dimensional tile of pointers: call, pointer, value, mask."""


class TransposedStore(NodeRule[TileStore]):
    """Store the transposed tile through transposed pointers."""

    name = "triton_transposed_store"
    why = (
        "When the output's contiguous direction crosses the registers' layout, transposing value and pointers first "
        "lets each thread write wide runs."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, TileStore]]:
        code = kernel.source.code
        for call in device_calls(kernel.source, kernel.function, "store"):
            named = {a.keyword.value for a in call.args if a.keyword is not None}
            pointer, value, mask = (argument(call, n, i) for i, n in enumerate(("pointer", "value", "mask")))
            if pointer is None or value is None or named - {"mask", "value", "pointer"}:
                continue
            lines = [p for n in kernel.definition_closure(pointer) for p in kernel.bound.get(n, ())]
            text = "".join("".join(code(p).split()) for p in [*lines, pointer])
            turned = code(pointer).startswith(f"{kernel.tl}.trans")
            if "[:,None]" in text and "[None,:]" in text and not turned:
                masked = code(mask) if mask is not None else None
                yield f"transpose {short(kernel.source, call)}", (call, code(pointer), code(value), masked)

    def change(self, edit: Edit, kernel: TritonKernel, payload: TileStore) -> None:
        call, pointer, value, mask = payload
        turn = f"{kernel.tl}.trans"
        shape = f"{value}.shape" if value.isidentifier() else f"({value}).shape"
        masked = f", mask={turn}({kernel.tl}.broadcast_to({mask}, {shape}))" if mask else ""
        edit.replace(call, f"{kernel.tl}.store({turn}({pointer}), {turn}({value}){masked})")
