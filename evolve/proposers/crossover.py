"""Crossover of sources: a child is one parent with rewrites, a function or a loop of the other.

Rewrites are repeated (see ``transplant``); functions and loops are exchanged as text. Of the latter only those are
offered that can work: the functions are called alike (same name, same parameters), what the graft reads exists
where it lands or comes along from the donor's module, and the result parses. Whether the child computes the right
thing is for the gates to say.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import (
    BUILTINS,
    assigned_value,
    dedented,
    reads_of,
    statements,
    target_names,
)
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.proposer import inherit
from tilewright.evolve.proposers.transplant import transplant
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome, Value, normalise
from tilewright.evolve.space.space import Space, SpaceError

log = logging.getLogger(__name__)

TRIES = 8

GRAFT = 0.25
"""Share of children made by exchanging text although rewrites could be repeated. In the recorded campaign most
such exchanges did not compile (experiments/records/rewrites/rewrite_g512.md); they remain the only way between kernels
that no rule connects."""

ENTRIES = ("build", "launch")
"""Exchanging these would exchange the kernels."""


@dataclass(frozen=True)
class Swap:
    """``receiver`` (a function or loop of the first parent) replaced by ``donor`` (one of the second)."""

    description: str
    receiver: cst.CSTNode
    donor: cst.CSTNode


def exchanges(first: KernelSource, second: KernelSource) -> list[Swap]:
    """Every function-level and loop-level exchange that can work, in source order."""
    found: list[Swap] = []
    donors = {_path(second, f): f for f in second.functions}
    for function in first.functions:
        donor = donors.get(_path(first, function))
        if donor is None or _same(dedented(first, function), dedented(second, donor)):
            continue
        alike = _signature(function) == _signature(donor) and function.name.value not in ENTRIES
        if alike and _fits(first, second, function, donor):
            found.append(Swap(f"function {function.name.value}", function, donor))
        for number, mine in enumerate(_loops(function)):
            for other, theirs in enumerate(_loops(donor)):
                different = not _same(dedented(first, mine), dedented(second, theirs))
                if different and _bound(mine) <= _bound(theirs) and _fits(first, second, mine, theirs):
                    found.append(
                        Swap(f"loop {number} of {function.name.value} (their loop {other})", mine, theirs)
                    )
    return found


def cross(first: str, second: str, rng: np.random.Generator) -> tuple[str, str] | None:
    """(child source, description) of one random exchange; None (and a log line) if there is none.

    The child declares the first parent's space plus what it reads of the second's.
    """
    try:
        one, other = KernelSource(first), KernelSource(second)
        options = exchanges(one, other)
        while options:
            chosen = options.pop(int(rng.integers(len(options))))
            child = _graft(one, other, chosen)
            if child is not None and normalise(child) not in (normalise(first), normalise(second)):
                return child, chosen.description
    except Unsupported as error:
        log.info("no crossover: %s", error)
    return None


def _path(kernel: KernelSource, function: cst.FunctionDef) -> str:
    names = [function.name.value]
    scope = kernel.enclosing(function, cst.FunctionDef)
    while scope is not None:
        names.append(scope.name.value)
        scope = kernel.enclosing(scope, cst.FunctionDef)
    return ".".join(reversed(names))


def _signature(function: cst.FunctionDef) -> tuple[str, ...]:
    listed = [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
    return tuple(p.name.value for p in listed)


def _same(one: str, other: str) -> bool:
    return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))


def _loops(function: cst.FunctionDef) -> list[cst.For]:
    return [s for s in statements(function.body) if isinstance(s, cst.For)]


def _bound(node: cst.CSTNode) -> set[str]:
    """Names a piece of code binds."""
    found: set[str] = set()
    for child in walk(node):
        if isinstance(child, (cst.AssignTarget, cst.AugAssign | cst.For)):
            found |= set(target_names(child.target))
        elif isinstance(child, cst.FunctionDef):
            found.add(child.name.value)
            found |= {p.name.value for p in child.params.params}
            found |= {p.name.value for p in child.params.kwonly_params}
    return found


def _module_names(kernel: KernelSource) -> dict[str, cst.CSTNode]:
    """Module-level functions and constants by name, declarations left out."""
    found: dict[str, cst.CSTNode] = {}
    for statement in kernel.module.body:
        if isinstance(statement, cst.FunctionDef):
            found[statement.name.value] = statement
        elif (bound := assigned_value(statement)) is not None:
            found.update(dict.fromkeys(bound[0], statement))
    return {n: s for n, s in found.items() if n not in kernel.literals}


def _visible(kernel: KernelSource, node: cst.CSTNode) -> set[str]:
    """Names in scope where ``node`` stands."""
    names = set(BUILTINS) | set(kernel.aliases) | set(_module_names(kernel))
    scope = kernel.enclosing(node, cst.FunctionDef)
    while scope is not None:
        names |= _bound(scope)
        scope = kernel.enclosing(scope, cst.FunctionDef)
    return names


def _fits(first: KernelSource, second: KernelSource, receiver: cst.CSTNode, donor: cst.CSTNode) -> bool:
    """Whether everything the donor reads is visible at the receiver, and called there as the donor calls it."""
    wanted = reads_of(dedented(second, donor)) - _bound(donor)
    mine = {f.name.value: _signature(f) for f in first.functions}
    theirs = {f.name.value: _signature(f) for f in second.functions}
    if any(mine[name] != theirs[name] for name in wanted & set(mine) & set(theirs)):
        return False
    return wanted <= _visible(first, receiver) | set(_module_names(second)) | set(second.aliases)


def _graft(first: KernelSource, second: KernelSource, chosen: Swap) -> str | None:
    edit = Edit(first)
    text = dedented(second, chosen.donor)
    edit.replace_statement(chosen.receiver, text)
    _bring(edit, first, second, chosen.receiver, text, _bound(chosen.donor))
    _declare(edit, first, second, text)
    result = edit.finish()
    return result.source if result is not None else None


def _bring(
    edit: Edit, first: KernelSource, second: KernelSource, receiver: cst.CSTNode, text: str, own: set[str]
) -> None:
    """Module-level functions, constants and imports of the donor's module that the graft needs."""
    theirs, here = _module_names(second), _visible(first, receiver)
    pending, brought = sorted(reads_of(text) - own - here), set()
    anchor = first.statement(receiver)
    while first.parents.get(anchor) is not first.module:
        anchor = first.statement(first.parents[anchor])
    pieces: list[str] = []
    while pending:
        name = pending.pop()
        if name in brought or name in here:
            continue
        brought.add(name)
        if name in theirs:
            piece = dedented(second, theirs[name])
            pieces.insert(0, piece)
            pending += sorted(reads_of(piece) - _bound(theirs[name]))
        elif name in second.aliases:
            edit.imports.append(_import_line(second, name))
    for piece in dict.fromkeys(pieces):
        edit.before(anchor, "\n\n" + piece)


def _import_line(kernel: KernelSource, name: str) -> str:
    origin = kernel.aliases[name]
    head, _, tail = origin.rpartition(".")
    if not head:
        return f"import {origin}" if origin == name else f"import {origin} as {name}"
    return f"from {head} import {tail}" if tail == name else f"from {head} import {tail} as {name}"


def _declare(edit: Edit, first: KernelSource, second: KernelSource, text: str) -> None:
    """Parameters of the donor's space that the graft reads and the receiver's space lacks."""
    strings = {
        n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }
    for name, values in second.space.items():
        if name in strings and name not in first.space and name in second.defaults:
            listed = "(" + ", ".join(map(repr, values)) + ("," if len(values) == 1 else "") + ")"
            edit.items["SPACE"].append((repr(name), listed))
            edit.items["DEFAULTS"].append((repr(name), repr(second.defaults[name])))
    known = set(first.space) | {n for n in second.space if n in strings}
    for expression, reason in second.constraints.items():
        foreign = reads_of(expression) & set(second.space)
        if foreign and foreign <= known and not foreign <= set(first.space):
            edit.add_constraint(expression, reason)


@dataclass
class SourceCrossover:
    """Implements ``Proposer``: grafts a piece of one elite's source into another's."""

    archive: Archive
    space_of: Callable[[str], Space]
    violations: Callable[[str], Sequence[str]]
    name: str = "source_crossover"
    kind: MutationKind = MutationKind.CROSSOVER

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        """A child of two elites with different sources that was not tried before, or None."""
        for _ in range(TRIES):
            one = self.archive.select(island, rng)
            other = self.archive.select(int(rng.integers(self.archive.islands)), rng)
            if one is None or other is None:
                return None
            parent, mate = one.candidate.genome, other.candidate.genome
            if parent.source_id == mate.source_id:
                continue
            made = self._child(history, parent, mate, rng)
            genome = self._genome(made[0], made[1]) if made is not None else None
            if made is not None and genome is not None and not history.tried(genome):
                return Proposal(genome, (parent.id, mate.id), Mutation(self.kind, self.name, made[2]))
        return None

    def _child(
        self, history: History, parent: Genome, mate: Genome, rng: np.random.Generator
    ) -> tuple[str, Mapping[str, Value], str] | None:
        """(source, parameters, description): by repeating rewrites where the mate's line has some to offer."""
        if rng.random() >= GRAFT:
            made = transplant(history, parent, mate, rng)
            if made is not None:
                return made
        grafted = cross(parent.source, mate.source, rng)
        if grafted is None:
            return None
        params = {**mate.params, **parent.params}
        for name in sorted(set(parent.params) & set(mate.params)):
            if rng.random() < 0.5:
                params[name] = mate.params[name]
        return grafted[0], params, f"{grafted[1]} from {mate.id}"

    def _genome(self, source: str, params: Mapping[str, Value]) -> Genome | None:
        if reasons := self.violations(source):
            log.info("a crossover left the dialect: %s", reasons[0])
            return None
        try:
            return Genome(source, inherit(self.space_of(source), params))
        except SpaceError as error:
            log.info("a crossover left no legal point: %s", error)
            return None
