"""The archive of candidates to build on: islands, each with the fittest candidate of every descriptor cell.

MAP-Elites after Mouret and Clune (2015), on islands joined in a ring. The archive is a fold over evaluations
in the order they were integrated, so a resumed campaign rebuilds it exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tilewright.evolve.record.history import Candidate
from tilewright.fitness.evaluation import Evaluation, Verdict, WorkloadFigures

Cell = tuple[tuple[str, str], ...]
"""Sorted descriptor items."""

SELECTION_PRESSURE = 0.5
"""Probability that selection stops at an elite when it walks them from the fittest down."""


@dataclass(frozen=True)
class Elite:
    """The fittest candidate of one cell of one island."""

    candidate: Candidate
    evaluation: Evaluation

    @property
    def fitness(self) -> float:
        """The candidate's fitness on the suite, in the operator's unit."""
        return self.evaluation.fitness or 0.0

    @property
    def cell(self) -> Cell:
        return tuple(sorted(self.evaluation.descriptors.items()))


class Archive:
    """``islands`` >= 1 maps from cell to elite, joined in a ring. After every ``migration_interval`` >= 1 additions
    each island's fittest elite is offered to the next island. Raises ValueError for smaller numbers."""

    def __init__(self, islands: int, migration_interval: int) -> None:
        if islands < 1 or migration_interval < 1:
            raise ValueError("an archive needs at least one island and one addition between migrations")
        self._islands: list[dict[Cell, Elite]] = [{} for _ in range(islands)]
        self._interval = migration_interval
        self._added = 0
        self._workloads: dict[str, tuple[Candidate, WorkloadFigures]] = {}

    def add(self, candidate: Candidate, evaluation: Evaluation) -> None:
        """Offer a candidate to its cell on its island; one whose verdict is not ``ok`` is not kept."""
        if evaluation.verdict is not Verdict.OK:
            return
        elite = Elite(candidate, evaluation)
        self._offer(candidate.island % len(self._islands), elite)
        for figures in evaluation.workloads:
            known = self._workloads.get(figures.workload)
            if known is None or figures.seconds < known[1].seconds:
                self._workloads[figures.workload] = (candidate, figures)
        self._added += 1
        if self._added % self._interval == 0:
            self._migrate()

    def elites(self, island: int) -> Sequence[Elite]:
        """The elites of an island, fittest first, earlier ones first on a tie."""
        return sorted(self._islands[island].values(), key=lambda e: (-e.fitness, e.candidate.index))

    @property
    def islands(self) -> int:
        return len(self._islands)

    @property
    def per_workload(self) -> Mapping[str, tuple[Candidate, WorkloadFigures]]:
        """The fastest candidate of every workload, with its figures there, by the workload's id."""
        return MappingProxyType(self._workloads)

    def select(self, island: int, rng: np.random.Generator) -> Elite | None:
        """An elite of the island, fitter ones more often; ``None`` while it is empty."""
        elites = self.elites(island)
        if not elites:
            return None
        depth = int(rng.geometric(SELECTION_PRESSURE)) - 1
        return elites[depth % len(elites)]

    def _offer(self, island: int, elite: Elite) -> None:
        holder = self._islands[island].get(elite.cell)
        if holder is None or elite.fitness > holder.fitness:  # on a tie the holder stays
            self._islands[island][elite.cell] = elite

    def _migrate(self) -> None:
        if len(self._islands) == 1:
            return
        bests = [self.elites(island)[:1] for island in range(len(self._islands))]
        for island, best in enumerate(bests):
            for elite in best:
                self._offer((island + 1) % len(self._islands), elite)
