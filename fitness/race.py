"""Races: a candidate measured on a few workloads stays in while it can be a contender on the whole suite.

What stands behind the numbers of a ``Race`` is made by the search (``evolve.campaign.racing``); here a
candidate's first
figures are held against them. What is stopped has no fitness: it was never measured on the whole suite.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.fitness.evaluation import FigureKind, WorkloadFigures
from tilewright.fitness.intervals import NORMAL_95

HOPELESS = 0.25
"""A share of the greatest fitness below which a candidate is the elite of nothing."""

DRIFT = 0.02
"""By how much a device's clock may have drifted since the figures a measured candidate is held against."""


@dataclass(frozen=True)
class Rung:
    """``workloads`` are the ids of all that are measured by then.

    A candidate's log fitness is its mean log rate on them less ``offset``, give or take ``half_width`` (95 %).
    """

    workloads: tuple[str, ...]
    offset: float
    half_width: float


@dataclass(frozen=True)
class Race:
    """Bars that one candidate is held against. Rates are those that make the fitness (TFLOP/s or GB/s).

    ``cells``: descriptors and fitness of every elite it may have to beat. ``fastest``: least seconds by workload.
    """

    rungs: tuple[Rung, ...]
    cells: tuple[tuple[Mapping[str, str], float], ...]
    fastest: Mapping[str, float]
    best: float = 0.0
    """Fitness of the fittest."""

    def bar(self, descriptors: Mapping[str, str]) -> float:
        """Fitness of the elite of this cell; where what is known fits several cells, the least.

        A new cell is no place for what is slower than the fittest by ``HOPELESS``.
        """
        fits = (
            fitness
            for cell, fitness in self.cells
            if all(descriptors.get(name, value) == value for name, value in cell.items())
        )
        return max(min(fits, default=0.0), HOPELESS * self.best)

    def outpaced(
        self, rung: Rung, figures: Sequence[WorkloadFigures], descriptors: Mapping[str, str]
    ) -> "Outpaced | None":
        """Why a candidate with these figures is no contender; None while it may be one.

        It may be one if it may become the elite of its cell, or is among the fastest on a workload.
        """
        seen = [f for f in figures if f.workload in rung.workloads]
        if not seen:
            return None
        bar = self.bar(descriptors)
        fitness = math.exp(statistics.fmean(math.log(f.rate) for f in seen) - rung.offset)
        drift = DRIFT if any(f.kind is FigureKind.MEASURED for f in seen) else 0.0
        half = math.hypot(rung.half_width, math.hypot(*map(_error, seen)) / len(seen)) + drift
        if fitness * math.exp(half) >= bar:
            return None
        leads = (f.seconds * math.exp(-_error(f)) <= self.fastest.get(f.workload, math.inf) for f in seen)
        return None if any(leads) else Outpaced(len(seen), fitness, half, bar, seen[0].unit)

    def data(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Race":
        """What ``data`` gave."""
        rungs = tuple(Rung(tuple(r["workloads"]), r["offset"], r["half_width"]) for r in data["rungs"])
        cells = tuple((cell, fitness) for cell, fitness in data["cells"])
        return cls(rungs, cells, data["fastest"], data["best"])


@dataclass(frozen=True)
class Outpaced:
    """By ``seen`` workloads the fitness is ``projected``, up to e^half more or less; ``bar`` was to be beaten."""

    seen: int
    projected: float
    half: float
    bar: float
    unit: str

    def __str__(self) -> str:
        share, spread = self.projected / self.bar, math.exp(self.half)
        return (
            f"by {self.seen} workloads {share:.3f} ({share / spread:.3f} to {share * spread:.3f}) of the "
            f"{self.bar:.4g} {self.unit} to beat; not measured on the rest"
        )


def _error(figures: WorkloadFigures) -> float:
    """Half of a 95 % interval of a log rate; 0 for a model's figure."""
    if figures.kind is not FigureKind.MEASURED:
        return 0.0
    return NORMAL_95 * float(figures.diagnosis.get("relative_error", 0.05))
