"""Crossover of parameter values: a child has one parent's source and each value from either parent."""

from __future__ import annotations

import numpy as np

from evolve.archive import Archive, Elite
from evolve.genome import Genome
from evolve.history import Candidate, History, Mutation, MutationKind, Proposal
from evolve.proposers.parameters import KnownSpaces, SpaceOf, changes
from evolve.space import Space

_TRIES = 30

OTHER_ISLAND_SHARE = 0.2
"""Share of crossovers whose second parent lives on another island."""


class ParameterCrossover:
    """Uniform crossover between two elites, of one source or of several that share parameter names."""

    name = "crossover"
    kind = MutationKind.CROSSOVER

    def __init__(self, archive: Archive, space_of: SpaceOf) -> None:
        self._archive = archive
        self._spaces = KnownSpaces(space_of)

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        for _ in range(_TRIES):
            other_island = rng.random() < OTHER_ISLAND_SHARE
            mate_island = int(rng.integers(self._archive.islands)) if other_island else island
            parent, mate = self._archive.select(island, rng), self._archive.select(mate_island, rng)
            if parent is None or mate is None:
                return None
            if parent.candidate.genome.id == mate.candidate.genome.id:
                mate = self._other(parent.candidate, mate_island, rng)
            space = self._spaces[parent.candidate.genome.source]
            if mate is None or space is None:
                continue
            proposal = self._cross(history, parent.candidate, mate.candidate, space, rng)
            if proposal is not None:
                return proposal
        return None

    def _other(self, parent: Candidate, island: int, rng: np.random.Generator) -> Elite | None:
        others = [e for e in self._archive.elites(island) if e.candidate.genome.id != parent.genome.id]
        return others[min(int(rng.geometric(0.5)) - 1, len(others) - 1)] if others else None

    def _cross(
        self, history: History, parent: Candidate, mate: Candidate, space: Space, rng: np.random.Generator
    ) -> Proposal | None:
        params = dict(parent.genome.params)
        for name in params:
            if name in mate.genome.params and rng.random() < 0.5:
                params[name] = mate.genome.params[name]
        if not space.legal(params):
            return None
        child = Genome(parent.genome.source, params)
        if child.id in history:
            return None
        detail = f"with {mate.genome.id[:8]}: {changes(parent.genome.params, child.params)}"
        parents = (parent.genome.id, mate.genome.id)
        return Proposal(child, parents, Mutation(self.kind, self.name, detail))
