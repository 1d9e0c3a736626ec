"""What a campaign's evaluations teach about parameters: a fold over its history."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from evolve.history import Candidate, History
from evolve.proposers.parameters import KnownSpaces
from evolve.space import Rows, Space
from fitness.evaluation import Evaluation, Verdict

_UNINFORMATIVE = (Verdict.INFRA_ERROR, Verdict.DUPLICATE)
"""Verdicts that say nothing about a point: the fault of others, or known under another name."""


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

    @property
    def best(self) -> float:
        """Largest log fitness, minus infinity while nothing succeeded."""
        return max((t for t in self.targets if not math.isnan(t)), default=-math.inf)


class Records:
    """Records by source, in order of first evaluation. Sources without a usable space are left out."""

    def __init__(self, spaces: KnownSpaces) -> None:
        self._spaces = spaces
        self._by_source: dict[str, SourceRecords] = {}
        self.order: list[tuple[SourceRecords, int]] = []
        """Every record as (source, position there) in order of integration."""

        self._folded = 0

    def next_new(self, history: History) -> bool:
        """Fold one more evaluation; false when all are folded."""
        if self._folded >= len(history.evaluated):
            return False
        self._take(*history.evaluated[self._folded])
        self._folded += 1
        return True

    @property
    def sources(self) -> list[SourceRecords]:
        return list(self._by_source.values())

    def _take(self, candidate: Candidate, evaluation: Evaluation) -> None:
        source = candidate.genome.source
        space = self._spaces[source]
        if space is None or evaluation.verdict in _UNINFORMATIVE or not space.legal(candidate.genome.params):
            return
        records = self._by_source.setdefault(source, SourceRecords(source, space))
        records.rows.append(space.encode(candidate.genome.params))
        fitness = evaluation.fitness
        records.targets.append(math.log(fitness) if fitness is not None and fitness > 0 else math.nan)
        records.candidates.append(candidate)
        self.order.append((records, len(records.rows) - 1))
