"""The gain that a search may still expect from its next evaluations, and when it has converged.

How likely an improvement is falls with the number of evaluations and with what a model of the space still expects of
the most promising points; how long a search was silent adds nothing to these two. What comes then is often large, since
nobody saw it coming. All are fitted to searches of made-up spaces (experiments/records/search/search_converged.md);
what the floors leave to gain bounds the last.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.score import headroom

AHEAD = 32
"""Evaluations that the expectation is for."""

LEAST_GAIN = 0.005
"""Expected gain below which a search has converged."""

IMPROVEMENT = 0.002
"""Relative gain that counts as an improvement: less is noise or nothing."""

LEAST_EVALUATIONS = 48
"""A search has converged after this many evaluations at the earliest, and after as many without an improvement."""

LEAST_SHARE = 1.0 / 3.0
"""Least share of all evaluations, the latest ones, without an improvement: a search that still improves goes on."""


@dataclass(frozen=True)
class Outlook:
    """How likely and how large an improvement within the next 32 evaluations is: a logistic regression and a mean.

    Fitted to 132 searches of made-up spaces; ``size`` is the mean gain where an improvement has become unlikely.
    """

    level: float = -2.17
    age: float = -1.72
    """For each factor e in evaluations, from 100 on."""

    trust: float = 0.28
    """For each factor e in what a model expects of the 32 most promising points, from 0.67 % on."""

    size: float = 0.15

    silence: int = 144
    """Without a model, silent evaluations after which 0.5 % are expected."""

    stale: float = 22.0
    """After how many more e times less is expected."""

    def chance(self, count: int, foretold: float) -> float:
        """Probability of an improvement after ``count`` evaluations, where a model expects ``foretold``."""
        trust = math.log(max(foretold, _LEAST_FORETOLD) / _USUAL_FORETOLD)
        return 1.0 / (1.0 + math.exp(-self.level - self.age * math.log(count / 100.0) - self.trust * trust))

    def expected_gain(self, count: int, foretold: float, left: float = math.inf) -> float:
        """Relative gain expected, of at most ``left``; sizes as an exponential distribution has them."""
        return self.chance(count, foretold) * self.size * -math.expm1(-left / self.size)

    def of_silence(self, stale: int) -> float:
        """The same where there is no model, after ``stale`` evaluations without an improvement."""
        return LEAST_GAIN * math.exp((self.silence - stale) / self.stale)


_USUAL_FORETOLD = math.exp(-5.0)
_LEAST_FORETOLD = 1e-5


class Convergence:
    """A fold over evaluations in order of integration. ``floors``: least seconds by workload and unit."""

    def __init__(self, floors: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._floors, self._outlook = floors or {}, Outlook()
        self._count = self._stale = 0
        self._best, self._mark = 0.0, 0.0
        self._left = math.inf

    def add(self, evaluation: Evaluation) -> None:
        """Add one evaluation; infrastructure faults do not count."""
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

    def expected_gain(self, foretold: Callable[[], float | None] = lambda: None) -> float:
        """Relative gain expected of the next 32 evaluations.

        ``foretold`` is what a model expects of the 32 most promising points, None where there is none; it is asked
        only where its answer matters.
        """
        if self._count < LEAST_EVALUATIONS:
            return math.inf
        left = math.expm1(min(self._left, 50.0))
        if self._stale < max(LEAST_EVALUATIONS, LEAST_SHARE * self._count) or left < LEAST_GAIN:
            return left
        prediction = foretold()
        if prediction is None:
            return min(left, self._outlook.of_silence(self._stale))
        return self._outlook.expected_gain(self._count, prediction, left)

    @property
    def stale(self) -> int:
        """Evaluations since the last improvement."""
        return self._stale

    def reached(self, foretold: Callable[[], float | None] = lambda: None) -> bool:
        """Whether the next evaluations are expected to gain less than ``LEAST_GAIN``."""
        return self.expected_gain(foretold) < LEAST_GAIN
