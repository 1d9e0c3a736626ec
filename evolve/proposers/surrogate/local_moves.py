"""Parameter mutations without a model: local moves from the archive's elites, and random restarts."""

from collections.abc import Callable, Iterator, Mapping
from typing import Self

import numpy as np

from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History, Mutation, MutationKind, Proposal
from tilewright.evolve.space.constraints import SpaceError
from tilewright.evolve.space.genome import Genome, Value
from tilewright.evolve.space.space import Rows, Space

SpaceOf = Callable[[str], Space]
"""The space a kernel source declares, under the workloads of the campaign. Raises SpaceError."""

RESTART_SHARE = 0.1
"""Share of proposals that are random points: no landscape can trap the search for good."""

LEAP_SHARE = 0.25
"""Share of local moves that change two parameters."""

_REMEMBERED = 1024
_ELITES = 64
"""Points, and elites with their neighbours, that are remembered."""

_TRIES = 20
_RESTART_TRIES = 50


class KnownSpaces:
    """Spaces by source text, each read once; ``None`` for a source whose space cannot be used.

    Proposers of one campaign share one, so that each point is looked up once.
    """

    @classmethod
    def of(cls, spaces: SpaceOf | Self) -> Self:
        return spaces if isinstance(spaces, KnownSpaces) else cls(spaces)

    def __init__(self, space_of: SpaceOf) -> None:
        self.space_of = space_of
        """Reads a space and remembers nothing."""

        self._spaces: dict[str, Space | None] = {}
        self._points: dict[str, tuple[Rows, int] | None] = {}

    def __getitem__(self, source: str) -> Space | None:
        if source not in self._spaces:
            try:
                self._spaces[source] = self.space_of(source)
            except SpaceError:
                self._spaces[source] = None
        return self._spaces[source]

    def row(self, genome: Genome) -> Rows | None:
        """Value indices of a legal point of a usable space."""
        point = self.point(genome)
        return None if point is None else point[0]

    def point(self, genome: Genome) -> tuple[Rows, int] | None:
        """Value indices and code of a legal point of a usable space; those of the latest are remembered."""
        if genome.id not in self._points:
            space = self[genome.source]
            row = None if space is None else space.legal_row(genome.params)
            self.remember(genome, row)
        return self._points[genome.id]

    def remember(self, genome: Genome, row: Rows | None) -> None:
        """What ``row`` will say of this genome: its legal row, or that it has none."""
        if len(self._points) >= _REMEMBERED:
            self._points.clear()
        space = self[genome.source]
        if space is None or row is None:
            self._points[genome.id] = None
        else:
            self._points[genome.id] = row, int(space.codes(row[None])[0])


class TriedPoints:
    """Points a campaign has proposed, by source: a fold over its history."""

    def __init__(self, spaces: KnownSpaces) -> None:
        self._spaces = spaces
        self._codes: dict[str, set[int]] = {}
        self._folded = 0

    def fold(self, history: History) -> None:
        for candidate in history.candidates[self._folded :]:
            point = self._spaces.point(candidate.genome)
            if point is not None:
                self._codes.setdefault(candidate.genome.source, set()).add(point[1])
        self._folded = len(history.candidates)

    def untried(self, source: str, rows: Rows) -> Iterator[Rows]:
        """The rows that are new, in the same order. Another text of the same source may have them still."""
        space, known = self._spaces[source], self._codes.get(source, set())
        if space is not None:
            codes = space.codes(rows).tolist()
            yield from (row for row, code in zip(rows, codes, strict=True) if code not in known)


class ParameterProposer:
    """One or two steps from a fit elite of the island, sometimes anywhere in an elite's space."""

    name = "parameters"
    kind = MutationKind.PARAMETER

    def __init__(self, archive: Archive, spaces: SpaceOf | KnownSpaces) -> None:
        self._archive = archive
        self._spaces = KnownSpaces.of(spaces)
        self._tried = TriedPoints(self._spaces)
        self._neighbours: dict[str, Rows] = {}

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        self._tried.fold(history)
        for _ in range(_TRIES):
            base = self._base(history, island, rng)
            space = self._spaces[base.genome.source] if base else None
            row = self._spaces.row(base.genome) if base else None
            if base is None or space is None or row is None:
                continue
            if rng.random() >= RESTART_SHARE:
                proposal = self._step(history, base, space, row, rng)
                if proposal is not None:
                    return proposal
            proposal = self._restart(history, base, space, rng)
            if proposal is not None:
                return proposal
        return None

    def _base(self, history: History, island: int, rng: np.random.Generator) -> Candidate | None:
        elite = self._archive.select(island, rng)
        if elite is not None:
            return elite.candidate
        return history.candidates[int(rng.integers(len(history.candidates)))] if history.candidates else None

    def _step(
        self, history: History, base: Candidate, space: Space, row: Rows, rng: np.random.Generator
    ) -> Proposal | None:
        near = self._near(base.genome, space, row)
        if len(near) and rng.random() < LEAP_SHARE:
            near = space.neighbour_rows(near[int(rng.integers(len(near)))], steps=None)
        for other in self._tried.untried(base.genome.source, near[rng.permutation(len(near))]):
            proposal = self._offer(history, base, space, other)
            if proposal is not None:
                return proposal
        return None

    def _near(self, genome: Genome, space: Space, row: Rows) -> Rows:
        """Legal points one step away; those of the latest elites are remembered."""
        if genome.id not in self._neighbours:
            if len(self._neighbours) >= _ELITES:
                self._neighbours.clear()
            self._neighbours[genome.id] = space.neighbour_rows(row)
        return self._neighbours[genome.id]

    def _restart(
        self, history: History, base: Candidate, space: Space, rng: np.random.Generator
    ) -> Proposal | None:
        for row in self._tried.untried(base.genome.source, space.sample_rows(rng, _RESTART_TRIES)):
            proposal = self._offer(history, base, space, row)
            if proposal is not None:
                return proposal
        return None

    def _offer(self, history: History, base: Candidate, space: Space, row: Rows) -> Proposal | None:
        genome = Genome(base.genome.source, space.decode(row))
        if genome.id in history:
            return None
        self._spaces.remember(genome, row.copy())
        detail = changes(base.genome.params, genome.params)
        return Proposal(genome, (base.genome.id,), Mutation(self.kind, self.name, detail))


def changes(old: Mapping[str, Value], new: Mapping[str, Value]) -> str:
    """What a person reads in the lineage: ``block_m 256→512, stages 2→3``."""
    parts = [f"{name} {old.get(name, '–')}→{value}" for name, value in new.items() if old.get(name) != value]
    return ", ".join(parts) or "as its parent"
