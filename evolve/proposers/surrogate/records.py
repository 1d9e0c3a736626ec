"""Records of parameters, as a campaign's evaluations teach them: a fold over its history."""

import math
from dataclasses import dataclass, field

import numpy as np

from tilewright.evolve.proposers.surrogate.features import Encoder, neighbour_means
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


LEAST_RECORDS = 8
"""Own records of a source before they are held against what was known before."""

LEAST_SPREAD = 0.02
LEAST_SHARE = 0.3
"""Standard deviation of their log fitness, and its share of that of the earlier ones, below which there is nothing to
tell apart: points that right records led to are good without exception."""

LEAST_CORRELATION = 0.1
"""Rank correlation of what was foretold with what came; below it, an earlier campaign misleads."""


def misleads(earlier: SourceRecords, own: SourceRecords) -> bool:
    """Whether the earlier records alone rank the own ones, by their neighbours, no better than chance.

    Records of one source alone are compared: what another source's parameters do is another matter.
    """
    if earlier.space.names != own.space.names or len(own.rows) < LEAST_RECORDS:
        return False
    came = _with_failures_as_worst(own.targets)
    before = _with_failures_as_worst(earlier.targets)
    if came.std() < max(LEAST_SPREAD, LEAST_SHARE * before.std()):
        return False
    encoder = Encoder([earlier.space])
    rows = [earlier.space.legal_row(own.space.decode(row)) for row in own.rows]
    both = [k for k, row in enumerate(rows) if row is not None]
    if len(both) < LEAST_RECORDS:
        return False
    known, asked = (encoder.smooth(0, np.array(r)) for r in (earlier.rows, [rows[k] for k in both]))
    predictions = neighbour_means(known, before, asked)
    ranks = [_ranks(np.round(values, 9)) for values in (predictions, came[both])]
    foretold, found = (rank - rank.mean() for rank in ranks)
    scale = math.sqrt(float(foretold @ foretold) * float(found @ found))
    return scale == 0.0 or round(float(foretold @ found) / scale, 9) < LEAST_CORRELATION


def _with_failures_as_worst(targets: list[float]) -> np.ndarray:
    """Failures count as the worst that worked."""
    values = np.array(targets, dtype=float)
    worst = np.nanmin(values) if not np.isnan(values).all() else 0.0
    return np.where(np.isnan(values), worst, values)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Place of each value in ascending order; equal ones share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - 0.5 * (counts - 1))[place]
