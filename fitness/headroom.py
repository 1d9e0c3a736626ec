"""How much of the way from the first seed to the floor a campaign has come, by workload."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.fitness.evaluation import WorkloadFigures

_OPTIONAL = ("vector_two_ops",)
"""Floors of one way to do the work, which another way beats."""


@dataclass(frozen=True)
class Headroom:
    """Seconds of one workload: the first seed's, the best's, and the least that its operator needs on its target."""

    workload: str
    before: float
    now: float
    floor: float

    @property
    def closed(self) -> float:
        """Share of the gap between seed and floor that is closed; 1 where there was none."""
        gap = self.before - self.floor
        return 1.0 if gap <= 0.0 else (self.before - self.now) / gap

    @property
    def gain(self) -> float:
        """Rate of the best over that of the first seed."""
        return self.before / self.now

    @property
    def left(self) -> float:
        """What could still be gained at most, as a factor."""
        return max(1.0, self.now / self.floor)


def headroom(
    before: Iterable[WorkloadFigures],
    now: Iterable[WorkloadFigures],
    floors: Mapping[str, Mapping[str, float]],
) -> list[Headroom]:
    """For each workload that both ran and a floor is known for."""
    first = {figures.workload: figures.seconds for figures in before}
    found = []
    for figures in now:
        known = [
            s for unit, s in floors.get(figures.workload, {}).items() if unit not in _OPTIONAL and s > 0.0
        ]
        if known and figures.workload in first:
            found.append(Headroom(figures.workload, first[figures.workload], figures.seconds, max(known)))
    return found


def mean_gain(rows: Sequence[Headroom]) -> float:
    """Geometric mean of the gains over workloads."""
    return math.exp(math.fsum(math.log(row.gain) for row in rows) / len(rows))


def mean_closed(rows: Iterable[Headroom]) -> float | None:
    """The share closed in the mean over workloads, None where none has a floor."""
    shares = [row.closed for row in rows]
    return math.fsum(shares) / len(shares) if shares else None
