"""Rules on loops inside a kernel: Python unroll against ``fori_loop``, fusion, and software pipelining."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import (
    KernelSource,
    Unsupported,
    walk,
)
from tilewright.evolve.proposers.rewrite.dataflow import (
    assigned_value,
    dedented,
    definitions,
    loop_bounds,
    reads_of,
    small,
)
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.chain import Chain, find_chain
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.shapes import extent_text
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall

FORI = "jax.lax.fori_loop"


def _loops(view: PallasCall) -> list[cst.For]:
    return [s for s in view.body if isinstance(s, cst.For) and s.orelse is None]


class UnrollToFori(CallRule):
    """Turn an unrolled Python loop into ``fori_loop``, unrolled or not as a parameter says."""

    name = "pallas_unroll_to_fori"
    why = (
        "A rolled loop keeps the code and the live ranges of one iteration: fewer spills and faster compiles, at the "
        "price of no overlap between iterations."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, Any]]:
        kernel = view.kernel
        for number, loop in enumerate(_loops(view)):
            bounds = loop_bounds(kernel, loop)
            if bounds is None or _carried(view, loop) is None:
                continue
            slices = _dynamic_slices(view, loop)
            if slices is None or any(
                isinstance(n, cst.FunctionDef | cst.For | cst.If) for n in walk(loop.body)
            ):
                continue
            yield f"run loop {number} as fori_loop", (loop, bounds, slices)

    def change(self, edit: Edit, view: PallasCall, payload: Any) -> None:
        kernel = view.kernel
        loop, (start, stop, step), slices = payload
        jax = edit.ensure_import("jax", "jax")
        parameter = edit.add_parameter("unroll_loop", (False, True), False)
        unroll = view.pass_static(edit, parameter)
        carried = _carried(view, loop) or []
        body, index, carry = (kernel.fresh(n) for n in ("iteration", "iteration_index", "carry"))
        target = kernel.code(loop.target)
        count = stop if (start, step) == ("0", "1") else f"({stop} - ({start})) // ({step})"
        plain = (start, step) == ("0", "1")
        first = [] if plain else [f"{target} = {start} + {index} * ({step})"]
        if start == "0" and not plain:
            first = [f"{target} = {index} * ({step})"]
        lines = [f"def {body}({(target if plain else index)}, {carry}):"]
        names = ", ".join(carried) + ("," if len(carried) == 1 else "")
        inner = ([f"{names} = {carry}"] if carried else []) + first
        for statement in loop.body.body:
            inner += _with_slices(kernel, statement, slices, view.pallas).splitlines()
        inner.append(f"return ({names})" if carried else f"return {carry}")
        lines += ["    " + line for line in inner]
        init = f"({names})" if carried else "0"
        result = f"{names} = " if carried else ""
        lines.append(f"{result}{jax}.lax.fori_loop(0, {count}, {body}, {init}, unroll={unroll})")
        edit.replace_statement(loop, "\n".join(lines))


def _carried(view: PallasCall, loop: cst.For) -> list[str] | None:
    """Names a loop hands from one iteration to the next or on to what follows; None if one has no start."""
    kernel = view.kernel
    assigned: list[str] = []
    for statement in loop.body.body:
        line = small(statement)
        if isinstance(line, cst.AugAssign) and isinstance(line.target, cst.Name):
            assigned.append(line.target.value)
        found = assigned_value(statement)
        assigned += found[0] if found else []
    position = list(view.body).index(loop)
    before = {n for s in view.body[:position] for n in _bound(s)}
    after = {n for s in view.body[position + 1 :] for n in reads_of(dedented(kernel, s))}
    carried = []
    for name in dict.fromkeys(assigned):
        if name in before:
            carried.append(name)
        elif name in after:
            return None
    return carried


def _bound(statement: cst.CSTNode) -> list[str]:
    found = assigned_value(statement)
    if found:
        return found[0]
    if isinstance(statement, cst.For):
        return [n for s in statement.body.body for n in _bound(s)]
    return []


def _dynamic_slices(view: PallasCall, loop: cst.For) -> dict[cst.Slice, tuple[str, str]] | None:
    """Slices that move with the loop as (start, size); None when one is not of a reference or has no fixed size."""
    kernel, index = view.kernel, kernel_code(loop.target)
    found: dict[cst.Slice, tuple[str, str]] = {}
    for node in walk(loop.body):
        if not isinstance(node, cst.Slice) or node.lower is None or node.upper is None:
            continue
        lower, upper = kernel.code(node.lower), kernel.code(node.upper)
        if index not in reads_of(lower) | reads_of(upper):
            continue
        holder = kernel.enclosing(node, cst.Subscript)
        if holder is None or not isinstance(holder.value, cst.Name) or view.ref(holder.value.value) is None:
            return None
        size = extent_text(lower, upper, index)
        if size is None:
            return None
        found[node] = (lower, size)
    return found


def kernel_code(node: cst.CSTNode) -> str:
    return cst.Module(body=[]).code_for_node(node).strip()


def _with_slices(
    kernel: KernelSource, statement: cst.CSTNode, slices: dict[cst.Slice, tuple[str, str]], pallas: str
) -> str:
    """Text of a statement with moving slices written as ``pl.ds``."""

    class Swap(cst.CSTTransformer):
        def leave_SubscriptElement(
            self, original_node: cst.SubscriptElement, updated_node: cst.SubscriptElement
        ) -> cst.SubscriptElement:
            if isinstance(original_node.slice, cst.Slice) and original_node.slice in slices:
                start, size = slices[original_node.slice]
                aligned = f"{pallas}.multiple_of({start}, {size})"
                return updated_node.with_changes(
                    slice=cst.Index(cst.parse_expression(f"{pallas}.ds({aligned}, {size})"))
                )
            return updated_node

    fresh = statement.visit(Swap())
    return dedented(kernel, fresh)  # type: ignore[arg-type]


class ForiToUnroll(CallRule[tuple[cst.Call, cst.CSTNode]]):
    """Turn ``fori_loop`` with static bounds into a Python loop."""

    name = "pallas_fori_to_unroll"
    why = (
        "The scheduler packs one basic block at a time. Unrolling puts several iterations into one block, so vector "
        "work of one can run beside the matrix work of another."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[cst.Call, cst.CSTNode]]]:
        kernel = view.kernel
        calls = [c for c, name in kernel.calls(view.function) if name == FORI]
        for number, call in enumerate(calls):
            statement = kernel.statement(call)
            line = small(statement)
            direct = isinstance(line, cst.Assign | cst.Expr) and line.value is call
            bounds = ", ".join(kernel.code(a.value) for a in call.args[:2])
            dynamic = "program" in bounds or bool(view.axis_reads(bounds))
            if direct and not dynamic and len(call.args) >= 4:
                yield f"unroll fori_loop {number}", (call, statement)

    def change(self, edit: Edit, view: PallasCall, payload: tuple[cst.Call, cst.CSTNode]) -> None:
        kernel = view.kernel
        call, statement = payload
        lower, upper, body, init = (kernel.code(a.value) for a in call.args[:4])
        if isinstance(call.args[2].value, cst.Lambda):
            body = f"({body})"
        carry, index = kernel.fresh("carry"), kernel.fresh("iteration_index")
        lines = [f"{carry} = {init}", f"for {index} in range({lower}, {upper}):"]
        lines.append(f"    {carry} = {body}({index}, {carry})")
        line = small(statement)
        if isinstance(line, cst.Assign):
            lines.append(f"{kernel.code(line.targets[0].target)} = {carry}")
        edit.replace_statement(statement, "\n".join(lines))


class SkewLoop(CallRule[tuple[Chain, cst.For]]):
    """Compute what an iteration needs one iteration earlier (software pipelining of an unrolled loop)."""

    name = "pallas_skew_loop"
    why = (
        "In program order each dot waits for the quantisation right before it. Starting the next group's quantisation "
        "before this group's dot gives the block independent work for the vector and the matrix units."
    )

    def find(self, view: PallasCall) -> Iterator[tuple[str, tuple[Chain, cst.For]]]:
        kernel = view.kernel
        for ref in view.inputs:
            chain = find_chain(view, [ref.name], "ahead")
            if chain is None or not chain.values or not chain.refs:
                continue
            loop = chain.values[0].loop
            if loop is None or any(v.loop is not loop for v in chain.values):
                continue
            if loop_bounds(kernel, loop) is not None:
                yield (
                    f"compute {', '.join(v.name for v in chain.values)} one iteration ahead",
                    (chain, loop),
                )

    def change(self, edit: Edit, view: PallasCall, payload: tuple[Chain, cst.For]) -> None:
        kernel = view.kernel
        chain, loop = payload
        start, stop, step = loop_bounds(kernel, loop) or ("0", "0", "1")
        index = kernel.code(loop.target)
        ahead, pending = kernel.fresh("next_operands"), kernel.fresh("pending")
        doomed = [s for s in chain.doomed if s in loop.body.body]
        if len(doomed) != len(chain.doomed):
            raise Unsupported("a quantisation that starts outside the loop")
        lines = [dedented(kernel, s) for s in loop.body.body if s in _inside(view, chain, loop)]
        lines += [f"{v.name} = {kernel.code(v.inline)}" for v in chain.values if v.inline is not None]
        names = ", ".join(v.name for v in chain.values)
        body = "\n".join("    " + line for text in lines for line in text.splitlines())
        edit.before(loop, f"def {ahead}({index}):\n{body}\n    return {names}")
        edit.before(loop, f"{pending} = {ahead}({start})")
        following = f"{index} + {step}" if step != "1" else f"{index} + 1"
        edit.before(
            loop.body.body[0],
            f"{names} = {pending}\nif {following} < {stop}:\n    {pending} = {ahead}({following})",
        )
        for value in chain.values:
            if value.inline is not None:
                edit.replace(value.inline, value.name)
        for statement in doomed:
            edit.remove(statement)


def _inside(view: PallasCall, chain: Chain, loop: cst.For) -> set[cst.CSTNode]:
    """Statements of the loop that the chain's values need, directly or not."""
    kernel, bound = view.kernel, definitions(view.function)
    wanted = [v.name for v in chain.values if v.inline is None]
    wanted += [n for v in chain.values if v.inline is not None for n in reads_of(kernel.code(v.inline))]
    names: set[str] = set()
    found: set[cst.CSTNode] = set()
    while wanted:
        name = wanted.pop()
        if name in names:
            continue
        names.add(name)
        for place in bound.get(name, ()):
            if place in loop.body.body:
                found.add(place)
                wanted += reads_of(dedented(kernel, place))
    return found
