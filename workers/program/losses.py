"""Whether a changed program's losses are the original's, compared with what the original differs from itself by.

A percentage of the loss judges nothing: a loss that falls towards nothing differs from itself by more than itself. So
both programs run from the same starts, which differ in their seed and in the last bit of every parameter. The mean
difference over the starts, with its 95 % interval, has to lie within the larger of two numbers: the standard deviation
of the original's own mean loss over the starts, and what the original gains in one step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.fitness.intervals import student_95

STARTS = 3
FIXED_SHARE = 0.01
"""Most that results which no step improves may differ, as a share of the largest: they are outputs, not losses."""

Curve = Sequence[float]
"""A result by step."""


@dataclass(frozen=True)
class LossTest:
    """``difference``: of the means, changed less original, with ``half_width`` of its interval; ``spread`` and
    ``progress`` as above. All in units of the loss."""

    difference: float
    half_width: float
    spread: float
    progress: float
    floor: float = 0.0

    @property
    def most(self) -> float:
        """The largest difference that is not seen."""
        return abs(self.difference) + self.half_width

    @property
    def allowed(self) -> float:
        return max(self.spread, self.progress, self.floor)

    @property
    def passes(self) -> bool:
        return self.most <= self.allowed

    def __str__(self) -> str:
        return (
            f"{self.difference:+.4g} +- {self.half_width:.2g} where the original's starts spread by {self.spread:.2g} "
            f"and a step gains {self.progress:.2g}"
        )


def loss_test(original: Sequence[Curve], changed: Sequence[Curve], trains: bool) -> LossTest:
    """Of curves by start; the worse of the whole run and its last quarter. ``trains``: the results are of a training
    step; of others a share of the largest is allowed."""
    steps = min(len(curve) for curve in (*original, *changed))
    found = [_of_part(original, changed, begin, trains) for begin in {0, steps - max(1, steps // 4)}]
    return max(found, key=lambda test: test.most / max(test.allowed, 1e-300))


def _of_part(original: Sequence[Curve], changed: Sequence[Curve], begin: int, trains: bool) -> LossTest:
    ours = [statistics.fmean(curve[begin:]) for curve in changed]
    own = [statistics.fmean(curve[begin:]) for curve in original]
    if not all(map(math.isfinite, (*ours, *own))):
        return LossTest(math.inf, 0.0, 0.0, 0.0)
    differences = [b - a for a, b in zip(own, ours, strict=True)]
    count, width = len(differences), 0.0
    if count > 1:
        width = student_95(count - 1) * statistics.stdev(differences) / count**0.5
    gained = [abs(curve[0] - curve[-1]) / max(1, len(curve) - 1) for curve in original]
    floor = 0.0 if trains else FIXED_SHARE * max(abs(v) for curve in original for v in curve)
    spread = statistics.stdev(own) if count > 1 else 0.0
    return LossTest(statistics.fmean(differences), width, spread, statistics.fmean(gained), floor)
