"""What going on would still gain: an expectation for the next evaluations, from how long ago the best last improved.

Searches of made-up spaces agree well enough: the longer the stretch without improvement, against how long it took to
get there, the less the next evaluations bring. ``expected`` is fitted to such runs
(``experiments.studies.search.convergence``); what the floors leave to gain bounds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.headroom import headroom

AHEAD = 32
"""Evaluations that the expectation is for."""

LEAST_GAIN = 0.005
"""Expected gain below which a search has converged."""

IMPROVEMENT = 0.002
"""Relative gain that counts as an improvement: less is noise or nothing."""

LEAST_EVALUATIONS = 48
"""Before so many, nothing is concluded from their silence."""


class Convergence:
    """A fold over evaluations in order of integration. ``floors``: least seconds by workload and unit."""

    def __init__(self, floors: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._floors = floors or {}
        self._count = self._stale = 0
        self._best, self._mark = 0.0, 0.0
        self._left = math.inf

    def add(self, evaluation: Evaluation) -> None:
        """Take in one more; what infrastructure failed is not counted."""
        if evaluation.verdict is Verdict.INFRA_ERROR:
            return
        self._count += 1
        self._stale += 1
        fitness = evaluation.fitness
        if fitness is None or fitness <= self._best:
            return
        self._best = fitness
        if fitness > self._mark * (1.0 + IMPROVEMENT):
            self._mark, self._stale = fitness, 0
        gaps = [
            math.log(row.left) for row in headroom(evaluation.workloads, evaluation.workloads, self._floors)
        ]
        self._left = math.fsum(gaps) / len(gaps) if gaps else math.inf

    @property
    def expected_gain(self) -> float:
        """Relative gain expected of the next 32 evaluations."""
        if self._count < LEAST_EVALUATIONS:
            return math.inf
        return min(expected(self._count, self._stale), math.expm1(min(self._left, 50.0)))

    @property
    def reached(self) -> bool:
        """Whether the next evaluations are not worth their price."""
        return self.expected_gain < LEAST_GAIN


def expected(count: int, stale: int) -> float:
    """Mean relative gain of the next 32 evaluations after ``count``, the last ``stale`` of them without improvement."""
    return SCALE * math.exp(-stale / STALE) * (LEAST_EVALUATIONS / count) ** POWER


SCALE, STALE, POWER = 0.05, 22.0, 0.5
"""Fitted to 2,700 moments of 330 runs on development spaces, then raised by half: a stop too early costs more."""
