"""Fusing two launches that walk the same grid and read the same tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import (
    KernelSource,
    Language,
    RewrittenKernel,
    Site,
    children,
    walk,
)
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, dedented, parameters, substitute
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, device_calls, jit_kernels


@dataclass
class Pair:
    first: TritonKernel
    second: TritonKernel
    shared: dict[str, str]
    """Parameters of the second kernel to those of the first that get the same argument."""


class FuseLaunches:
    """Run the work of two launches over one grid in one kernel; reads of both happen once."""

    name = "triton_fuse_launches"
    language = Language.TRITON
    why = (
        "Two kernels that read the same tensor pay its bandwidth twice. In one kernel the tile is read once, and a "
        "launch is saved; the price is registers."
    )

    def sites(self, kernel: KernelSource) -> Sequence[Site]:
        items = [k for k in jit_kernels(kernel, entry_only=True) if len(k.launches) == 1]
        found = []
        for first in items:
            for second in items:
                if first is second or not _same_walk(kernel, first, second):
                    continue
                pair = _pair(first, second)
                if pair is not None:
                    found.append(
                        Site(
                            f"{first.name}+{second.name}",
                            f"fuse {first.name} and {second.name} over their common grid",
                            pair,
                        )
                    )
        return found

    def apply(self, kernel: KernelSource, site: Site, rng: np.random.Generator) -> RewrittenKernel | None:
        pair: Pair = site.payload
        first, second = pair.first, pair.second
        edit = Edit(kernel)
        table, body = _merged(kernel, pair)
        taken = {p.name.value for p in parameters(first.function)}
        extra = [p for p in parameters(second.function) if p.name.value not in pair.shared]
        names = {p.name.value: table.get(p.name.value, p.name.value) for p in extra}
        del taken
        name = kernel.fresh(f"{first.name}_and_{second.name}")
        signature = [_declaration(kernel, p, p.name.value) for p in parameters(first.function)]
        signature += [_declaration(kernel, p, names[p.name.value]) for p in extra]
        decorator = kernel.code(first.function.decorators[0].decorator)
        lines = [f"@{decorator}", f"def {name}({', '.join(signature)}):"]
        lines += ["    " + line for text in body for line in text.splitlines()]
        later = max((first, second), key=lambda k: kernel.functions.index(k.function))
        edit.after(kernel.statement(later.function), "\n\n" + "\n".join(lines))
        edit.remove(kernel.statement(first.function))
        edit.remove(kernel.statement(second.function))
        arguments = [f"{p.name.value}={_given(first, p)}" for p in parameters(first.function)]
        arguments += [f"{names[p.name.value]}={_given(second, p)}" for p in extra]
        options = [
            kernel.code(a).rstrip(", ")
            for a in first.launch().args
            if a.keyword is not None
            and a.keyword.value not in {p.name.value for p in parameters(first.function)}
        ]
        grid = kernel.code(first.launch().func).partition("[")[2]
        edit.remove(kernel.statement(first.launch()))
        edit.replace_statement(
            kernel.statement(second.launch()), f"{name}[{grid}({', '.join([*arguments, *options])})"
        )
        return edit.finish()


def _declaration(kernel: KernelSource, node: cst.Param, name: str) -> str:
    note = f": {kernel.code(node.annotation.annotation)}" if node.annotation else ""
    return f"{name}{note}"


def _given(kernel: TritonKernel, node: cst.Param) -> str:
    value = kernel.given(node.name.value)
    return kernel.source.code(value) if value is not None else "None"


def _same_walk(kernel: KernelSource, first: TritonKernel, second: TritonKernel) -> bool:
    """Same launching function and grid text, in this order, as statements of one block."""
    a, b = first.launch(), second.launch()
    if kernel.code(a.func).partition("[")[2] != kernel.code(b.func).partition("[")[2]:
        return False
    block = kernel.parents[kernel.statement(a)]
    if kernel.parents[kernel.statement(b)] is not block:
        return False
    order = list(children(block))
    return order.index(kernel.statement(a)) < order.index(kernel.statement(b))


def _pair(first: TritonKernel, second: TritonKernel) -> Pair | None:
    """The pair with its shared parameters, None if it is unsafe: one writes what the other touches."""
    given = {p.name.value: _given(first, p) for p in parameters(first.function)}
    shared: dict[str, str] = {}
    for p in parameters(second.function):
        text = _given(second, p)
        match = next((n for n, t in given.items() if t == text), None)
        if match is not None and (match in first.constexprs) == (p.name.value in second.constexprs):
            shared[p.name.value] = match
    if any(isinstance(n, cst.Return) for k in (first, second) for n in walk(k.function)):
        return None
    written = {n for k in (first, second) for n in _written(k)}
    both = set(shared) | set(shared.values())
    texts = {
        _given(k, p) for k in (first, second) for p in parameters(k.function) if p.name.value in _written(k)
    }
    reads_again = any(
        _given(k, p) in texts and p.name.value not in _written(k)
        for k in (first, second)
        for p in parameters(k.function)
    )
    if (
        not shared
        or (written & both and _conflict(pair_written=(first, second), shared=shared))
        or reads_again
    ):
        return None
    return Pair(first, second, shared)


def _conflict(pair_written: tuple[TritonKernel, TritonKernel], shared: dict[str, str]) -> bool:
    first, second = pair_written
    return bool(_written(second) & set(shared)) or bool(_written(first) & set(shared.values()))


def _written(kernel: TritonKernel) -> set[str]:
    """Parameters that a store's address begins with."""
    names: set[str] = set()
    listed = [p.name.value for p in parameters(kernel.function)]
    for call in device_calls(kernel.source, kernel.function, "store", "atomic_add"):
        closure = kernel.definition_closure(call.args[0].value)
        names |= {n for n in listed if n in closure and n not in kernel.constexprs and _is_base(kernel, n)}
    return names


def _is_base(kernel: TritonKernel, name: str) -> bool:
    """A parameter the host passes as a tensor, not as a number."""
    text = _given(kernel, next(p for p in parameters(kernel.function) if p.name.value == name))
    return (
        not text.isdigit() and ".stride" not in text and ".shape" not in text and not text.islower()
    ) or any(f"{text} = torch." in kernel.source.source for _ in (0,))


def _merged(kernel: KernelSource, pair: Pair) -> tuple[dict[str, str], list[str]]:
    """(renames of the second kernel, statements of both bodies with common values computed once)."""
    first, second = pair.first, pair.second
    body = [dedented(kernel, s) for s in first.body]
    known: dict[str, str] = {}
    for statement in first.body:
        found = assigned_value(statement)
        if found and len(found[0]) == 1 and len(first.bound[found[0][0]]) == 1:
            known["".join(kernel.code(found[1]).split())] = found[0][0]
    table = dict(pair.shared)
    used = {p.name.value for p in parameters(first.function)} | set(first.bound)
    for name in [p.name.value for p in parameters(second.function)] + list(second.bound):
        if name not in table:
            table[name] = kernel.fresh(f"{name}_other") if name in used else name
    for statement in second.body:
        found = assigned_value(statement)
        if found and len(found[0]) == 1 and len(second.bound[found[0][0]]) == 1:
            text = "".join(substitute(kernel, found[1], table).split())
            if text in known:
                table[found[0][0]] = known[text]
                continue
        body.append(substitute(kernel, statement, table))
    return table, body
