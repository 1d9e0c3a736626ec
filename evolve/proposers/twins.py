"""Proposals that would compile to what is known, seen before anything compiles.

A rewrite may change nothing that a compiler looks at (the mask of a load that is always full, an option of a loop that
there is not), and so may a parameter. What such a source or value compiled to so far tells: once two of its points came
out as those without it did, and none otherwise, its other points are expected to be *twins* of what is known as well,
as far as their values are among those of the points that came out alike: a hint may tell with one stage alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tilewright.evolve.record.history import Candidate, History, Proposal
from tilewright.evolve.space.genome import Genome, Value
from tilewright.fitness.evaluation import Evaluation

SEEN_ALIKE = 2
"""Points that must have compiled to the same, and none to another thing."""

ATTEMPTS = 4
"""Proposals that are asked for before a twin is taken for want of others."""

_Point = frozenset[tuple[str, Value]]


class Searcher(Protocol):
    """As of ``evolve.campaign.loop``."""

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None: ...


@dataclass
class _Likeness:
    alike: int = 0
    other: int = 0
    covered: set[tuple[str, Value]] = field(default_factory=set)
    """Values of the points that were alike."""

    def holds(self, point: _Point) -> bool:
        """Whether it is expected of this point."""
        return self.alike >= SEEN_ALIKE and not self.other and point <= self.covered

    def count(self, same: bool, point: _Point) -> None:
        """One point more."""
        self.alike += same
        self.other += not same
        if same:
            self.covered |= point


@dataclass
class Twins:
    """What compiled to the same, as a fold over the history."""

    _compiled: dict[str, dict[_Point, str]] = field(default_factory=dict)
    """By source id and parameters, the artefact."""

    _names: dict[str, frozenset[str]] = field(default_factory=dict)
    _sources: dict[tuple[str, str], _Likeness] = field(default_factory=dict)
    """Of a source to another that has some of its parameters or all."""

    _values: dict[tuple[str, str], _Likeness] = field(default_factory=dict)
    """Of points of a source that differ in one parameter alone."""

    _without: dict[tuple[str, str, _Point], tuple[Value, str]] = field(default_factory=dict)
    """By source id, parameter and the other values: the value of the first such point, and what it compiled to."""

    _folded: int = 0

    def fold(self, history: History) -> None:
        """Take in what was evaluated since."""
        for candidate, evaluation in history.evaluated[self._folded :]:
            self._take(candidate, evaluation)
        self._folded = len(history.evaluated)

    def _take(self, candidate: Candidate, evaluation: Evaluation) -> None:
        artefact, source = evaluation.artefact, candidate.genome.source_id
        if artefact is None:
            return
        point = frozenset(candidate.genome.params.items())
        self._names[source] = frozenset(candidate.genome.params)
        for other, shared in self._shared(source, point):
            known = self._compiled[other].get(shared)
            if known is not None:
                self._sources.setdefault((source, other), _Likeness()).count(known == artefact, shared)
        for name, value in point:
            key = (source, name, point - {(name, value)})
            earlier, first = self._without.setdefault(key, (value, artefact))
            if earlier != value:
                self._values.setdefault((source, name), _Likeness()).count(first == artefact, key[2])
        self._compiled.setdefault(source, {})[point] = artefact

    def _shared(self, source: str, point: _Point) -> list[tuple[str, _Point]]:
        """Other sources, each with the point that says the same of it."""
        names = self._names.get(source) or frozenset(name for name, _ in point)
        return [
            (other, frozenset(pair for pair in point if pair[0] in theirs))
            for other, theirs in self._names.items()
            if other != source and theirs <= names
        ]

    def expected(self, genome: Genome) -> bool:
        """Whether it is likely to compile to what is known."""
        source, point = genome.source_id, frozenset(genome.params.items())
        for other, shared in self._shared(source, point):
            likeness = self._sources.get((source, other))
            if likeness is not None and likeness.holds(shared) and shared in self._compiled[other]:
                return True
        return any(
            (likeness := self._values.get((source, name))) is not None
            and likeness.holds(rest := point - {(name, value)})
            and (source, name, rest) in self._without
            for name, value in point
        )


@dataclass
class Distinct:
    """A searcher that asks ``then`` again for what would be a twin. Holds a fold over the history."""

    then: Searcher
    twins: Twins = field(default_factory=Twins, init=False)
    avoided: Counter[str] = field(default_factory=Counter, init=False)
    """Proposals that were not taken, by proposer."""

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        self.twins.fold(history)
        proposal = self.then.propose(history, island, rng)
        for _ in range(ATTEMPTS - 1):
            if proposal is None or not self.twins.expected(proposal.genome):
                break
            self.avoided[proposal.mutation.proposer] += 1
            proposal = self.then.propose(history, island, rng)
        return proposal
