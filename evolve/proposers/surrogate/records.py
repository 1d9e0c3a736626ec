"""Records of parameters, as a campaign's evaluations teach them: a fold over its history."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces
from tilewright.evolve.record.history import Candidate, History
from tilewright.evolve.space.space import Rows, Space
from tilewright.fitness.evaluation import Evaluation, Verdict


@dataclass
class SourceRecords:
    """Evaluated points of one source: index rows and log fitness, NaN where the point failed."""

    source: str
    space: Space
    rows: list[Rows] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    earlier: bool = False
    """Of another campaign: log fitness relative to the best there, and no candidates."""

    best: float = field(init=False)
    """Largest log fitness, minus infinity while nothing succeeded."""

    successes: int = field(init=False)

    def __post_init__(self) -> None:
        worked = [target for target in self.targets if not math.isnan(target)]
        self.best, self.successes = max(worked, default=-math.inf), len(worked)

    def add(self, candidate: Candidate, row: Rows, target: float) -> None:
        self.rows.append(row)
        self.targets.append(target)
        self.candidates.append(candidate)
        if not math.isnan(target):
            self.best, self.successes = max(self.best, target), self.successes + 1


class Records:
    """Records by source, in order of first evaluation. Sources without a usable space are left out."""

    def __init__(self, spaces: KnownSpaces) -> None:
        self._spaces = spaces
        self._by_source: dict[str, SourceRecords] = {}
        self._of_artefact: dict[str, float] = {}
        self.order: list[tuple[SourceRecords, int]] = []
        """Every record as (source, position there) in order of integration."""

        self.folded = 0
        """Evaluations taken in, whatever they said."""

    def next_new(self, history: History) -> Candidate | None:
        """Fold one more evaluation and say whose; ``None`` when all are folded."""
        if self.folded >= len(history.evaluated):
            return None
        candidate, evaluation = history.evaluated[self.folded]
        self._take(candidate, evaluation)
        self.folded += 1
        return candidate

    @property
    def sources(self) -> list[SourceRecords]:
        return list(self._by_source.values())

    def _take(self, candidate: Candidate, evaluation: Evaluation) -> None:
        source = candidate.genome.source
        space, target = self._spaces[source], self._target(evaluation)
        row = self._spaces.row(candidate.genome)
        if space is None or target is None or row is None:
            return
        records = self._by_source.setdefault(source, SourceRecords(source, space))
        records.add(candidate, row, target)
        self.order.append((records, len(records.rows) - 1))

    def _target(self, evaluation: Evaluation) -> float | None:
        """Log fitness, NaN for a failure; None for what says nothing about the point.

        A duplicate is as fit as what it repeats, which teaches a model the parameters that change nothing.
        """
        if evaluation.verdict is Verdict.INFRA_ERROR:
            return None
        if evaluation.verdict is Verdict.DUPLICATE:
            return self._of_artefact.get(evaluation.artefact or "")
        fitness = evaluation.believed
        if fitness is None or fitness <= 0:
            return math.nan
        if evaluation.artefact:
            self._of_artefact[evaluation.artefact] = math.log(fitness)
        return math.log(fitness)
