"""Parameter mutations without a model: local moves from the archive's elites, and random restarts."""

from collections.abc import Callable, Iterable, Mapping

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

_TRIES = 20
_RESTART_TRIES = 50


class KnownSpaces:
    """Spaces by source text, each read once; ``None`` for a source whose space cannot be used.

    Proposers of one campaign share one.
    """

    def __init__(self, space_of: SpaceOf) -> None:
        self.space_of = space_of
        """Reads a space and remembers nothing."""

        self._spaces: dict[str, Space | None] = {}

    def __getitem__(self, source: str) -> Space | None:
        if source not in self._spaces:
            try:
                self._spaces[source] = self.space_of(source)
            except SpaceError:
                self._spaces[source] = None
        return self._spaces[source]

    def row(self, genome: Genome) -> Rows | None:
        """Value indices of a legal point of a usable space."""
        space = self[genome.source]
        return None if space is None else space.legal_row(genome.params)


class ParameterProposer:
    """One or two steps from a fit elite of the island, sometimes anywhere in an elite's space."""

    name = "parameters"
    kind = MutationKind.PARAMETER

    def __init__(self, archive: Archive, spaces: KnownSpaces) -> None:
        self._archive = archive
        self._spaces = spaces

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        for _ in range(_TRIES):
            base = self._base(history, island, rng)
            space = self._spaces[base.genome.source] if base else None
            row = self._spaces.row(base.genome) if base else None
            if base is None or space is None or row is None:
                continue
            near = _steps(space, row, rng) if rng.random() >= RESTART_SHARE else ()
            proposal = first_new(history, base, space, near, self.name)
            anywhere = () if proposal else space.sample_rows(rng, _RESTART_TRIES)
            if (proposal := proposal or first_new(history, base, space, anywhere, self.name)) is not None:
                return proposal
        return None

    def _base(self, history: History, island: int, rng: np.random.Generator) -> Candidate | None:
        elite = self._archive.select(island, rng)
        if elite is not None:
            return elite.candidate
        return history.candidates[int(rng.integers(len(history.candidates)))] if history.candidates else None


def _steps(space: Space, row: Rows, rng: np.random.Generator) -> Rows:
    near = space.neighbour_rows(row)
    if len(near) and rng.random() < LEAP_SHARE:
        near = space.neighbour_rows(near[int(rng.integers(len(near)))], steps=None)
    return near[rng.permutation(len(near))]


def first_new(
    history: History, parent: Candidate, space: Space, rows: Iterable[Rows], proposer: str, note: str = ""
) -> Proposal | None:
    """The first of ``rows`` that no candidate is, as a child of ``parent``; ``note`` begins its line."""
    for row in rows:
        genome = Genome(parent.genome.source, space.decode(row))
        if genome.id not in history:
            detail = note + changes(parent.genome.params, genome.params)
            return Proposal(genome, (parent.genome.id,), Mutation(MutationKind.PARAMETER, proposer, detail))
    return None


def changes(old: Mapping[str, Value], new: Mapping[str, Value]) -> str:
    """What a person reads in the lineage: ``block_m 256→512, stages 2→3``."""
    parts = [f"{name} {old.get(name, '–')}→{value}" for name, value in new.items() if old.get(name) != value]
    return ", ".join(parts) or "as its parent"
