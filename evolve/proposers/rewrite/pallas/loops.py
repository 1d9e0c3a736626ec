"""Rules on loops inside a kernel: ``fori_loop`` unrolled, and software pipelining."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import (
    Unsupported,
)
from tilewright.evolve.proposers.rewrite.dataflow import (
    dedented,
    definitions,
    loop_bounds,
    reads_of,
    small,
)
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.pallas.analysis.chain import Chain, find_chain
from tilewright.evolve.proposers.rewrite.pallas.analysis.find import CallRule
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall

FORI = "jax.lax.fori_loop"


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
