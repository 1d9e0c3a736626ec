"""Whether a promotion is an improvement: per shape against what serves it now, with a floor for every shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from evolve.promote.choose import Nomination
from evolve.promote.verify import Refusal, Verified
from fitness.evaluation import FigureKind, WorkloadFigures
from fitness.score import geometric_mean

FLOOR = 0.95
"""Of the incumbent's rate: what every shape must keep."""

RESAMPLES = 2000


@dataclass(frozen=True)
class Shape:
    """One workload's figures. ``seconds`` a call; ``gain``: the incumbent's seconds over ours. Intervals: 95 %."""

    figures: WorkloadFigures
    dims: Mapping[str, int]
    genome: str
    seconds: float
    interval: tuple[float, float]
    incumbent: str
    incumbent_seconds: float
    gain: float
    gain_interval: tuple[float, float]


@dataclass(frozen=True)
class Judgement:
    """Every shape, and the geometric mean of the gains with its 95 % interval."""

    shapes: tuple[Shape, ...]
    gain: float
    interval: tuple[float, float]
    kind: FigureKind

    def objection(self) -> str | None:
        """Why this is no improvement, in one sentence; None when it is."""
        worst = min(self.shapes, key=lambda shape: shape.gain)
        if worst.gain < FLOOR:
            return (
                f"promotion refused: {worst.figures.workload} loses {100 * (1 - worst.gain):.1f} % against "
                f"{worst.incumbent} ({worst.seconds * 1e6:.2f} us against {worst.incumbent_seconds * 1e6:.2f} us, "
                f"{self.kind.value}), and no shape may lose more than {100 * (1 - FLOOR):.0f} %; "
                f"the geometric mean of all {len(self.shapes)} is {self.gain:.3f} x."
            )
        if not self.interval[0] > 1.0:
            return (
                f"promotion refused: {self.gain:.4f} x {self.incumbents} (geometric mean of {len(self.shapes)} shapes, "
                f"{self.kind.value}, 95 % interval {self.interval[0]:.4f} to {self.interval[1]:.4f}) is no gain."
            )
        return None

    @property
    def incumbents(self) -> str:
        return " and ".join(dict.fromkeys(shape.incumbent for shape in self.shapes))

    def require(self, forced: str | None) -> str | None:
        """The objection that was overruled by ``forced``, if any. Raises Refusal where it was not."""
        objection = self.objection()
        if objection is not None and not forced:
            raise Refusal(objection, forceable=True)
        return objection


def judge(
    nomination: Nomination,
    found: Mapping[str, Verified],
    names: Mapping[str, str],
    serving: Mapping[str, str],
) -> Judgement:
    """Compare. ``names``: genome id to contender's name; ``serving``: workload id to the incumbent's name."""
    suite = nomination.resolved.suite
    rng = np.random.default_rng(0)
    shapes, ratios = [], []
    for workload in dict.fromkeys((*suite.workloads, *suite.final)):
        genome = nomination.genome_for(workload.id)
        ours, theirs = found[names[genome]], found[serving[workload.id]]
        mine, other = ours.seconds(workload.id), theirs.seconds(workload.id)
        ratio = _paired(mine, other)
        ratios.append(ratio)
        shapes.append(
            Shape(
                figures=_figures(ours, workload.id),
                dims=dict(workload.dims),
                genome=genome,
                seconds=float(np.median(mine)),
                interval=_interval(rng, np.array(mine)),
                incumbent=theirs.contender.name,
                incumbent_seconds=float(np.median(other)),
                gain=float(np.median(ratio)),
                gain_interval=_interval(rng, ratio),
            )
        )
    gain = geometric_mean(shape.gain for shape in shapes)
    draws = [np.log(np.median(_resamples(rng, ratio), axis=1)) for ratio in ratios]
    low, high = np.exp(np.quantile(np.mean(draws, axis=0), [0.025, 0.975]))
    kind = nomination.resolved.target.kind
    interval = (gain, gain) if kind is FigureKind.MODELLED else (float(low), float(high))
    return Judgement(tuple(shapes), gain, interval, kind)


def _paired(mine: list[float], other: list[float]) -> np.ndarray:
    """Ratios round by round where both were measured in it, else all against the other's only figure."""
    count = min(len(mine), len(other))
    return np.array(other[:count]) / np.array(mine[:count])


def _resamples(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return values[rng.integers(len(values), size=(RESAMPLES, len(values)))]


def _interval(rng: np.random.Generator, values: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the median; degenerate for one value."""
    low, high = np.quantile(np.median(_resamples(rng, values), axis=1), [0.025, 0.975])
    return float(low), float(high)


def _figures(verified: Verified, workload: str) -> WorkloadFigures:
    return next(f for e in verified.evaluations for f in e.workloads if f.workload == workload)
