"""Suites of recorded workloads as evaluators: what racing saves and costs is measured on them.

A suite is made of recorded tables of one kernel, a table a workload, or of one table whose workloads are made up: each
multiplies the recorded time of a point by effects of its own for every value of every parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from testkit.spaces.tables import AtOnce, Table
from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.space.genome import Genome
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures
from tilewright.fitness.score import geometric_mean
from tilewright.seeds.operator import Workload
from tilewright.workers.cascade.common_stages import RaceStage
from tilewright.workers.request import Failure, Findings, Request


@dataclass(frozen=True)
class SuiteTable:
    """``times`` [points, workloads] in seconds, NaN where a point failed; ``codes`` and ``kernel`` as in ``Table``."""

    name: str
    kernel: str
    space: Space
    codes: np.ndarray
    times: np.ndarray
    workloads: tuple[str, ...]
    kind: FigureKind

    def space_of(self, source: str) -> Space:
        return self.space

    def seconds(self, genome: Genome) -> np.ndarray:
        """By workload."""
        (code,) = self.space.codes(self.space.encode(genome.params)[None])
        return cast(np.ndarray, self.times[np.searchsorted(self.codes, code)])

    @property
    def optimum(self) -> float:
        """Largest fitness: geometric mean of 1 / seconds."""
        return float(np.nanmax(np.exp(-np.log(self.times).mean(axis=1))))

    def fraction(self, genome: Genome) -> float:
        """Fitness over the optimum; 0 for a failure."""
        fitness = float(np.exp(-np.log(self.seconds(genome)).mean()))
        return 0.0 if math.isnan(fitness) else fitness / self.optimum


def joined(name: str, tables: Sequence[Table], kind: FigureKind) -> SuiteTable:
    """Tables of one kernel and the same points, a table a workload."""
    first = tables[0]
    assert all(np.array_equal(first.codes, table.codes) for table in tables)
    times = np.stack([table.times for table in tables], axis=1)
    return SuiteTable(
        name, first.kernel, first.space, first.codes, times, tuple(t.name for t in tables), kind
    )


def made_up(table: Table, workloads: int, spread: float, seed: int = 0) -> SuiteTable:
    """``spread``: standard deviation of the effects, in log time, of one value of one parameter on one workload."""
    rng = np.random.default_rng([seed, workloads])
    rows = [dict(zip(table.space.parameters, place, strict=True)) for place in _places(table)]
    effects = {
        name: spread * rng.standard_normal((len(values), workloads))
        for name, values in table.space.parameters.items()
    }
    added = np.array([sum(effects[name][place] for name, place in row.items()) for row in rows])
    times = table.times[:, None] * np.exp(added)
    names = tuple(f"w{number:02d}" for number in range(workloads))
    title = f"{table.name}, spread {spread:g}"
    return SuiteTable(title, table.kernel, table.space, table.codes, times, names, FigureKind.MEASURED)


def _places(table: Table) -> np.ndarray:
    """Rows of value numbers in the order of ``codes``."""
    points = table.space.points
    assert points is not None
    return cast(np.ndarray, points[np.argsort(table.space.codes(points))])


@dataclass
class SuiteEvaluator(AtOnce):
    """An ``Evaluator`` that looks up one workload after the other, as the cascade's own ``RaceStage`` asks for them.

    ``noise``: relative standard deviation of a reading. ``spent``: workloads read by job index.
    """

    suite: SuiteTable
    slots: int = 1
    noise: float = 0.0
    spent: dict[int, int] = field(default_factory=dict)

    def evaluate(self, job: Job) -> Evaluation:
        suite, found = self.suite, Findings()
        about: dict[str, Any] = {
            "genome": job.genome.id,
            "target": f"recorded:{suite.name}",
            "suite": suite.name,
        }
        seconds = suite.seconds(job.genome)
        if np.isnan(seconds).any():
            self.spent[job.index] = 0
            why = {"verdict": Verdict.COMPILE_ERROR, "reason": "failed when recorded"}
            return Evaluation(**about, stage=Stage.COMPILE, **why)
        rng = np.random.default_rng(job.seed + job.index)
        seconds = seconds * np.exp(self.noise * rng.standard_normal(len(seconds)))
        read = dict(zip(suite.workloads, seconds.tolist(), strict=True))
        step = _Reading(read, suite.kind, self.noise)
        failure = RaceStage([step], lambda found: {}).run(_request(suite, job), found)
        self.spent[job.index] = len(found.figures)
        about |= {"stage": Stage.MEASURE, "workloads": tuple(found.figures)}
        if failure is not None:
            why = {"verdict": failure.verdict, "reason": failure.reason}
            return Evaluation(**about, **why, projected=found.projected)
        fitness = geometric_mean(f.rate for f in found.figures)
        return Evaluation(**about, verdict=Verdict.OK, fitness=fitness)


@dataclass(frozen=True)
class _Reading:
    """A stage that reads the workloads it is asked for."""

    seconds: dict[str, float]
    kind: FigureKind
    noise: float
    stage: Stage = Stage.MEASURE

    def run(self, request: Request, found: Findings) -> Failure | None:
        for workload in request.measured:
            seconds = self.seconds[workload.id]
            found.figures.append(
                WorkloadFigures(
                    workload=workload.id,
                    seconds=seconds,
                    tflops=1.0 / seconds,
                    roofline_fraction=0.0,
                    kind=self.kind,
                    diagnosis={"relative_error": self.noise},
                )
            )
        return None


def _request(suite: SuiteTable, job: Job) -> Request:
    """As far as reading a table needs one."""
    nothing = cast(Any, None)
    return Request(
        operator=nothing,
        truth=nothing,
        target=nothing,
        limits=nothing,
        source=job.genome.source,
        params=job.genome.params,
        seed=job.seed,
        timeline=False,
        measured=tuple(Workload(name, {}) for name in suite.workloads),
        checked=(),
        baseline=None,
        final=False,
        folder=Path(),
        is_known=lambda artefact: None,
        race=job.race,
    )
