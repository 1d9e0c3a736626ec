"""Rules on memory reads: masks, hoisting, hints, pointer arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import short, walk
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, small
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.view import (
    NodeRule,
    TritonKernel,
    argument,
    device_calls,
    device_name,
    range_of,
    terms,
)


class StrengthReducePointer(NodeRule):
    """Advance a pointer by a constant instead of multiplying the loop index."""

    name = "triton_strength_reduce_pointer"
    why = (
        "An address advanced by one add per iteration frees the multiplier and often a register per pointer."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
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

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
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


class IndexPointer(NodeRule):
    """The reverse: compute an address from the loop index instead of advancing it."""

    name = "triton_index_pointer"
    why = (
        "Advanced pointers are carried between iterations and keep whole tiles of addresses in registers; an address "
        "computed from the index lets the compiler recompute or fold it."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        for loop in kernel.loops:
            bounds = range_of(kernel.source, loop)
            for statement in loop.body.body if bounds else ():
                line = small(statement)
                if not isinstance(line, cst.AugAssign) or not isinstance(line.operator, cst.AddAssign):
                    continue
                if not isinstance(line.target, cst.Name) or kernel.moves(line.value, loop):
                    continue
                name = line.target.value
                uses = [n for n in walk(loop) if isinstance(n, cst.Name) and n.value == name]
                loads = [
                    c
                    for c in device_calls(kernel.source, loop.body, "load")
                    if c.args and isinstance(c.args[0].value, cst.Name) and c.args[0].value.value == name
                ]
                outside = [
                    n for s in kernel.body for n in walk(s) if isinstance(n, cst.Name) and n.value == name
                ]
                if loads and len(uses) == len(loads) + 1 and len(outside) <= len(uses) + 1:
                    yield f"index {name}", (loop, statement, line, loads, bounds)

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        loop, statement, line, loads, (start, _, step) = payload
        index = kernel.source.code(loop.target)
        count = index if start == "0" else f"({index} - ({start}))"
        count = count if step == "1" else f"({count} // ({step}))"
        for call in loads:
            edit.replace(
                call.args[0].value, f"{line.target.value} + {count} * ({kernel.source.code(line.value)})"
            )
        edit.remove(statement)


class EvenGuard(NodeRule):
    """Drop a load's mask in a specialisation for even tiles."""

    name = "triton_even_guard"
    launched = True
    why = (
        "A mask costs a compare per element and can keep the compiler from wide or asynchronous copies. Where tiles "
        "divide the extent it is always true, so a compile-time guard removes it."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        for call in device_calls(kernel.source, kernel.function, "load"):
            mask = argument(call, "mask", 1)
            parent = kernel.source.parents.get(call)
            if mask is None or isinstance(parent, cst.IfExp):
                continue
            condition = _even_condition(kernel, mask)
            if condition is not None:
                yield f"no mask on {short(kernel.source, call)} when {condition}", (call, condition)

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        call, condition = payload
        name = kernel.source.fresh("EVEN")
        kernel.add_argument(edit, name, condition, constexpr=True)
        keep = [
            a
            for i, a in enumerate(call.args)
            if i == 0 or (a.keyword is not None and a.keyword.value not in ("mask", "other"))
        ]
        keep[-1] = keep[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        plain = kernel.source.code(call.with_changes(args=keep))
        edit.replace(call, f"({plain} if {name} else {kernel.source.code(call)})")


def _even_condition(kernel: TritonKernel, mask: cst.BaseExpression) -> str | None:
    """Host text under which the mask is always true, from its ``offsets < bound`` comparisons."""
    conditions: list[str] = []
    pending = [mask]
    seen = 0
    while pending and seen < 50:
        seen += 1
        node = pending.pop()
        if isinstance(node, cst.Comparison):
            found = _even_comparison(kernel, node)
            if found is None:
                return None
            conditions.append(found)
        elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitAnd):
            pending += [node.left, node.right]
        elif isinstance(node, cst.Subscript):
            pending.append(node.value)
        elif isinstance(node, cst.Name) and (value := kernel.value_of(node.value)) is not None:
            pending.append(value)
        else:
            return None
    return " and ".join(dict.fromkeys(conditions)) or None


def _even_comparison(kernel: TritonKernel, node: cst.Comparison) -> str | None:
    """``K % BLOCK == 0`` of ``offsets < K - k * BLOCK`` and the like."""
    if len(node.comparisons) != 1 or not isinstance(node.comparisons[0].operator, cst.LessThan):
        return None
    bound = node.comparisons[0].comparator
    while isinstance(bound, cst.BinaryOperation) and isinstance(bound.operator, cst.Subtract):
        bound = bound.left
    if not isinstance(bound, cst.Name):
        return None
    closure = kernel.definition_closure(node.left)
    sizes = set()
    for name in closure | {"*"}:
        values = [
            v for s in kernel.bound.get(name, ()) if (v := getattr(small(s), "value", None)) is not None
        ]
        for value in values if name != "*" else [node.left]:
            for call in device_calls(kernel.source, value, "arange"):
                stop = argument(call, "end", 1)
                if stop is not None:
                    sizes.add(kernel.source.code(stop))
    extent = kernel.given(bound.value)
    if extent is None or len(sizes) != 1:
        return None
    size = sizes.pop()
    if size in kernel.constexprs:
        passed = kernel.given(size)
        if passed is None:
            return None
        size = kernel.source.code(passed)
    elif not size.isdigit():
        return None
    return f"{_tight(kernel.source.code(extent))} % {_tight(size)} == 0"


def _tight(text: str) -> str:
    return text if text.replace("_", "").replace(".", "").isalnum() or text.endswith("]") else f"({text})"


class DropEvenGuard(NodeRule):
    """The reverse: always use the masked load."""

    name = "triton_drop_even_guard"
    why = "A second, unmasked specialisation can cost more registers or code than the mask it saves."

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        for node in walk(kernel.function):
            if isinstance(node, cst.IfExp):
                sides = [node.body, node.orelse]
                both = all(
                    isinstance(s, cst.Call) and device_name(kernel.source, s.func) == "load" for s in sides
                )
                if both and argument(node.orelse, "mask", 1) is not None:  # type: ignore[arg-type]
                    yield f"always masked {short(kernel.source, node.orelse)}", node

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        edit.replace(payload, payload.orelse)


class CacheHint(NodeRule):
    """Tell the cache which tile is read again and which is not."""

    name = "triton_cache_hint"
    why = (
        "An operand every program reads should outlive one that a single program streams through L2; an eviction "
        "hint says so."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
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

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        call, keyword, value = payload
        edit.transform(call, partial(_with_option, keyword=keyword, text=repr(value)))


def _with_option(node: cst.Call, keyword: str, text: str) -> cst.Call:
    from tilewright.evolve.proposers.rewrite.triton.view import _with_keyword

    return _with_keyword(node, keyword, text)


class NarrowIndex(NodeRule):
    """Compute an address in 32 bits."""

    name = "triton_narrow_index"
    why = "A 64-bit address tile takes two registers per element and slower arithmetic; 32 bits do below 2^31 elements."

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        for call in _wide(kernel):
            yield f"32 bits for {short(kernel.source, call)}", call

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        edit.replace(payload, payload.func.value)
        dims = sorted({d for text in kernel.source.constraints for d in "MNK" if d in text.split()})
        pairs = [f"{a} * {b}" for i, a in enumerate(dims) for b in dims[i + 1 :]]
        if pairs:
            edit.add_constraint(
                " and ".join(f"{p} < 2147483648" for p in pairs), "addresses are computed in 32 bits"
            )


def _wide(kernel: TritonKernel) -> list[cst.Call]:
    return [
        n
        for n in walk(kernel.function)
        if isinstance(n, cst.Call)
        and isinstance(n.func, cst.Attribute)
        and n.func.attr.value == "to"
        and n.args
        and device_name(kernel.source, n.args[0].value) == "int64"
    ]


class WidenIndex(NodeRule):
    """Compute row offsets in 64 bits."""

    name = "triton_widen_index"
    why = "Offsets of tensors past 2^31 elements wrap in 32 bits; widening the row offset alone makes them right."

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        for node in walk(kernel.function):
            if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
                left = node.left
                if not isinstance(left, cst.Subscript) or not isinstance(left.value, cst.Name):
                    continue
                text = "".join(kernel.source.code(left).split())
                if text.endswith(("[:,None]", "[None,:]")) and _integral(kernel, left.value):
                    yield f"64 bits for {short(kernel.source, node)}", left

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        edit.replace(payload.value, f"{kernel.source.code(payload.value)}.to({kernel.tl}.int64)")


def _integral(kernel: TritonKernel, node: cst.BaseExpression) -> bool:
    """Whether a name is an offset: it comes from ``arange`` and no load."""
    if not isinstance(node, cst.Name):
        return False
    places = kernel.bound.get(node.value, [])
    if not places or any(assigned_value(p) is None for p in places):
        return False
    names = kernel.definition_closure(node)
    lines = [p for n in names for p in kernel.bound.get(n, ()) if not isinstance(p, cst.For)]
    return any(device_calls(kernel.source, p, "arange") for p in lines) and not any(
        device_calls(kernel.source, p, "load") for p in lines
    )
