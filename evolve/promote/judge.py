"""Judgement of a promotion: an improvement, per shape against what serves it now, with a floor for every shape."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.evolve.promote.nominate import Nomination
from tilewright.evolve.promote.verify import Refusal, Verification, Verified
from tilewright.fitness.evaluation import FigureKind, WorkloadFigures
from tilewright.fitness.intervals import NORMAL_95, Ratio, paired_ratio, relative_error
from tilewright.fitness.score import geometric_mean
from tilewright.fitness.tpu import time_model
from tilewright.seeds.operator import Workload
from tilewright.workers.device.comparison import Comparison

FLOOR = 0.95
"""Of the incumbent's rate: what every shape must keep."""


@dataclass(frozen=True)
class Shape:
    """One workload's figures. ``seconds`` a call; ``gain``: the incumbent's seconds over ours.

    Intervals are as ``Judgement.share`` says. ``kept``: ``genome`` is of a kernel that the library has, surely faster.
    """

    figures: WorkloadFigures
    dims: Mapping[str, int]
    genome: str
    seconds: float
    interval: tuple[float, float]
    incumbent: str
    incumbent_genome: str
    incumbent_seconds: float
    gain: float
    gain_interval: tuple[float, float]
    kept: bool = False


@dataclass(frozen=True)
class Judgement:
    """Every shape, and the geometric mean of the gains with its interval (``share``)."""

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
        opposed = any(shape.incumbent_genome != shape.genome or shape.kept for shape in self.shapes)
        if not self.interval[0] > 1.0 and opposed:
            low, high = self.interval
            refusal = (
                f"promotion refused: {self.gain:.4f} x {self.incumbents} (geometric mean of {len(self.shapes)} shapes, "
                f"{self.kind.value}, {self.share} interval {low:.4f} to {high:.4f})"
            )
            if self.kind is FigureKind.MODELLED and self.gain > 1.0:
                return f"{refusal} is a tie: the time model's error is larger than the gain."
            return f"{refusal} is no gain."
        return None

    @property
    def share(self) -> str:
        """How often an interval is meant to hold: Student's on a device, of the time model's errors else."""
        return f"{100 * time_model.COVERAGE:.0f} %" if self.kind is FigureKind.MODELLED else "95 %"

    @property
    def incumbents(self) -> str:
        return " and ".join(dict.fromkeys(shape.incumbent for shape in self.shapes))

    def require(self, forced: str | None) -> str | None:
        """The objection that was overruled by ``forced``, if any. Raises Refusal where it was not."""
        objection = self.objection()
        if objection is not None and not forced:
            raise Refusal(objection)
        return objection


def judge(
    nomination: Nomination,
    verification: Verification,
    names: Mapping[str, str],
    serving: Mapping[str, str],
    held: Collection[str] = (),
) -> Judgement:
    """Compare. ``names``: genome id to contender's name; ``serving``: workload id to the incumbent's name.

    ``held``: genome ids of what the library has, which serves where it is surely faster.
    """
    suite, target = nomination.resolved.suite, nomination.resolved.target
    comparison = verification.comparison
    shapes = []
    # side by side on a device are the suite's own workloads only
    for workload in dict.fromkeys((*suite.workloads, *(() if comparison else suite.final))):
        genome = nomination.genome_for(workload.id)
        ours, theirs = verification.found[names[genome]], verification.found[serving[workload.id]]
        shape = _shape(workload, genome, ours, theirs, comparison)
        for other in verification.found.values() if comparison else (theirs,):
            there = other.contender.genome.id
            if there not in held or there not in (comparison.rounds[workload.id] if comparison else held):
                continue
            if _shape(workload, shape.genome, ours, other, comparison).gain_interval[1] < 1.0:
                ours, shape = other, replace(_shape(workload, there, other, theirs, comparison), kept=True)
        shapes.append(shape)
    gain = geometric_mean(shape.gain for shape in shapes)
    return Judgement(tuple(shapes), gain, _overall(shapes, comparison, gain), target.kind)


def _shape(workload: Workload, genome: str, ours: Verified, theirs: Verified, comparison: Comparison | None) -> Shape:
    """On a device medians over all calls, and Student's interval of the gain, paired by round.

    Of modelled ones the gain's interval is what the model's error leaves: little between schedules of one source.
    """
    other, ratio = theirs.contender.genome.id, Ratio(1.0, 1.0, 1.0)
    figures, interval = own_figures(ours, workload.id, comparison)
    if comparison is None:
        incumbent = theirs.seconds(workload.id)[0]
        gain, error = incumbent / figures.seconds, _error_of_gain(ours, theirs, figures)
        ratio = Ratio(gain, gain * math.exp(-error), gain * math.exp(error))
    else:
        incumbent = comparison.seconds(workload.id, other)
        if other != genome:
            ratio = comparison.ratio(other, genome, [workload.id])
    return Shape(
        figures=figures,
        dims=dict(workload.dims),
        genome=genome,
        seconds=figures.seconds,
        interval=interval,
        incumbent=theirs.contender.name,
        incumbent_genome=other,
        incumbent_seconds=incumbent,
        gain=ratio.value,
        gain_interval=(ratio.low, ratio.high),
    )


def _error_of_gain(ours: Verified, theirs: Verified, figures: WorkloadFigures) -> float:
    """How far the log of a modelled gain may be off."""
    if ours.contender.genome.id == theirs.contender.genome.id:
        return 0.0
    if ours.contender.genome.source == theirs.contender.genome.source:
        return time_model.SAME_STRUCTURE
    low, high = figures.seconds_interval
    return max(math.log(high / figures.seconds), math.log(figures.seconds / low))


def _overall(shapes: Sequence[Shape], comparison: Comparison | None, gain: float) -> tuple[float, float]:
    if all(shape.incumbent_genome == shape.genome for shape in shapes):
        return gain, gain
    if comparison is None:
        # one model errs alike on all shapes: their errors do not average out
        errors = [math.log(shape.gain_interval[1] / shape.gain) for shape in shapes]
        return gain * math.exp(-max(errors)), gain * math.exp(max(errors))
    rounds = {shape.figures.workload: comparison.rounds[shape.figures.workload] for shape in shapes}
    ratio = paired_ratio(
        {shape.figures.workload: rounds[shape.figures.workload][shape.incumbent_genome] for shape in shapes},
        {shape.figures.workload: rounds[shape.figures.workload][shape.genome] for shape in shapes},
    )
    return ratio.low, ratio.high


def own_figures(
    verified: Verified, workload: str, comparison: Comparison | None
) -> tuple[WorkloadFigures, tuple[float, float]]:
    """A contender's figures on a workload, with the interval of its seconds: of the comparison, where there is one."""
    figures = next(f for e in verified.evaluations for f in e.workloads if f.workload == workload)
    if comparison is None:
        return figures, figures.seconds_interval
    genome = verified.contender.genome.id
    seconds = comparison.seconds(workload, genome)
    error = NORMAL_95 * relative_error(comparison.rounds[workload][genome]) * seconds
    scale = figures.seconds / seconds
    changes = {
        "seconds": seconds,
        "tflops": figures.tflops * scale,
        "gbytes": None if figures.gbytes is None else figures.gbytes * scale,
        "roofline_fraction": figures.roofline_fraction * scale,
    }
    return figures.model_copy(update=changes), (seconds - error, seconds + error)
