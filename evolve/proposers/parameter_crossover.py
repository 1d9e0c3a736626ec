"""Crossover of parameter values: a child has one parent's source and each value from either parent."""

from __future__ import annotations

import numpy as np

from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, SpaceOf, changes
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space

_TRIES = 12

_MATES = 10
"""Fittest candidates of all islands that stand in where an island has no second elite."""

OTHER_ISLAND_SHARE = 0.2
"""Share of crossovers whose second parent lives on another island."""


class ParameterCrossover:
    """Uniform crossover between two elites, of one source or of several that share parameter names."""

    name = "crossover"
    kind = MutationKind.CROSSOVER

    def __init__(self, archive: Archive, spaces: SpaceOf | KnownSpaces) -> None:
        self._archive = archive
        self._spaces = KnownSpaces.of(spaces)
        self._fittest: list[tuple[float, int, Candidate]] = []
        self._folded = 0

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        self._fold(history)
        for _ in range(_TRIES):
            other_island = rng.random() < OTHER_ISLAND_SHARE
            mate_island = int(rng.integers(self._archive.islands)) if other_island else island
            one, other = self._archive.select(island, rng), self._archive.select(mate_island, rng)
            if one is None or other is None:
                return None
            parent, mate = one.candidate, other.candidate
            if parent.genome.id == mate.genome.id:
                stranger = self._other(parent, rng)
                if stranger is None:
                    return None
                mate = stranger
            space = self._spaces[parent.genome.source]
            if space is None:
                continue
            proposal = self._cross(history, parent, mate, space, rng)
            if proposal is not None:
                return proposal
        return None

    def _other(self, parent: Candidate, rng: np.random.Generator) -> Candidate | None:
        """One of the fittest of all: an island may hold one elite only."""
        others = [c for _, _, c in self._fittest if c.genome.id != parent.genome.id]
        return others[int(rng.integers(len(others)))] if others else None

    def _fold(self, history: History) -> None:
        for candidate, evaluation in history.evaluated[self._folded :]:
            if evaluation.fitness is not None:
                self._fittest.append((-evaluation.fitness, candidate.index, candidate))
        if self._folded < len(history.evaluated):
            self._fittest = sorted(self._fittest, key=lambda entry: entry[:2])[:_MATES]
        self._folded = len(history.evaluated)

    def _cross(
        self, history: History, parent: Candidate, mate: Candidate, space: Space, rng: np.random.Generator
    ) -> Proposal | None:
        params = dict(parent.genome.params)
        for name in params:
            if name in mate.genome.params and rng.random() < 0.5:
                params[name] = mate.genome.params[name]
        if params == parent.genome.params or not space.legal(params):
            return None
        child = Genome(parent.genome.source, params)
        if history.tried(child):
            return None
        detail = f"with {mate.genome.id[:8]}: {changes(parent.genome.params, child.params)}"
        parents = (parent.genome.id, mate.genome.id)
        return Proposal(child, parents, Mutation(self.kind, self.name, detail))
