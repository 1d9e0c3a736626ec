"""Recorded search spaces as evaluators: the campaign code runs on them as on a device, in no time.

A table is ``NAME.csv.gz`` (all parameters, then ``time_ms``; empty where that point failed) beside ``NAME.json``
(``parameters`` in order, ``constraints``, ``source``; ``kernel`` where several tables share one). A point's
legality is its presence in the table.
"""

import csv
import gzip
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from testkit import SPACES
from testkit.evaluations import failed, figures, passed
from tilewright.evolve.space.genome import Genome, Value
from tilewright.evolve.space.space import Space, SpaceError
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.jobs import Job


@dataclass(frozen=True)
class Table:
    """A recorded space. ``times`` [points] in seconds, NaN where the recording failed; ``codes`` sorted."""

    name: str
    source: str
    space: Space
    codes: np.ndarray
    times: np.ndarray
    kernel: str
    """A stand-in for kernel source: tables have parameters only. Shapes of one kernel share it."""

    @property
    def optimum(self) -> float:
        """Least recorded time, seconds."""
        return float(np.nanmin(self.times))

    def time(self, genome: Genome) -> float:
        """Recorded seconds of a legal point, NaN where it failed."""
        code = self.space.codes(self.space.encode(genome.params)[None])[0]
        return float(self.times[np.searchsorted(self.codes, code)])

    def fraction(self, genome: Genome) -> float:
        """Optimum over this point's time: 1 at the optimum, 0 for a failure."""
        time = self.time(genome)
        return 0.0 if math.isnan(time) else self.optimum / time

    def space_of(self, source: str) -> Space:
        return self.space

    def random_genome(self, rng: np.random.Generator) -> Genome:
        return Genome(self.kernel, self.space.sample(rng))


class RecordedSpace(Space):
    """A space in which ``rows`` [points, parameters], of value indices, are the only legal points."""

    def __init__(
        self, parameters: Mapping[str, Sequence[Value]], constraints: Mapping[str, str], rows: np.ndarray
    ) -> None:
        self._recorded = np.unique(rows, axis=0)
        super().__init__(parameters, constraints)

    def is_legal_row(self, row: np.ndarray) -> bool:
        return bool(self.legal_rows(row[None])[0])

    def legal_rows(self, rows: np.ndarray) -> np.ndarray:
        return super().legal_rows(rows) & np.isin(self.codes(rows), self.codes(self._recorded))

    @cached_property
    def points(self) -> np.ndarray:
        return self._recorded[self.legal_rows(self._recorded)]


def read_table(description: Path) -> Table:
    """Read ``NAME.json`` and the ``NAME.csv.gz`` beside it."""
    record = json.loads(description.read_text())
    parameters: dict[str, tuple[Value, ...]] = {n: tuple(v) for n, v in record["parameters"].items()}
    with gzip.open(description.with_suffix(".csv.gz"), "rt", newline="") as file:
        lines = list(csv.DictReader(file))
    places = {name: {str(v): i for i, v in enumerate(values)} for name, values in parameters.items()}
    rows = np.array([[places[n][line[n]] for n in parameters] for line in lines], dtype=np.int16)
    times = np.array([float(line["time_ms"] or "nan") / 1e3 for line in lines])
    constraints = dict.fromkeys(record.get("constraints", ()), "recorded constraint")
    try:
        space = Space(parameters, constraints)
        agrees = space.points is not None and len(space.points) == len(rows) and space.legal_rows(rows).all()
    except SpaceError:  # a constraint in a form that kernels here may not use: the rows alone decide
        constraints, agrees = {}, False
    if not agrees:
        space = RecordedSpace(parameters, constraints, rows)
    codes = space.codes(rows)
    order = np.argsort(codes)
    name = record.get("name", description.stem)
    kernel = f'"""{record.get("kernel", name)}"""\n'
    return Table(name, record.get("source", ""), space, codes[order], times[order], kernel)


def read_tables(folder: Path = SPACES) -> list[Table]:
    """Every table of a folder by name. Raises FileNotFoundError when there is none."""
    found = [read_table(path) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise FileNotFoundError(f"{folder} holds no recorded space (NAME.json beside NAME.csv.gz)")
    return found


@dataclass
class AtOnce:
    """An ``Evaluator`` whose jobs are done when they are submitted; subclasses say how (``evaluate``)."""

    _finished: list[tuple[int, Evaluation]] = field(default_factory=list, init=False)

    def submit(self, job: Job) -> None:
        self._finished.append((job.index, self.evaluate(job)))

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        finished, self._finished = self._finished, []
        return finished

    def drop(self, indices: Collection[int]) -> None: ...

    def activity(self) -> list[str]:
        return []

    def close(self) -> None: ...

    def evaluate(self, job: Job) -> Evaluation:
        raise NotImplementedError


class PoolAtOnce(AtOnce):
    """Stands in for the workers' pool of a campaign on the small GEMM: everything passes, at ``rate``."""

    slots, thread_cpu_seconds = 1, 0.0

    def __init__(self, *arguments: object) -> None:
        super().__init__()

    def start(self) -> None: ...

    def rate(self, job: Job) -> float:
        """TFLOP/s."""
        return 100.0 + len(str(dict(job.genome.params)))

    def evaluate(self, job: Job) -> Evaluation:
        rate = self.rate(job)
        shape = "512x256x512" if job.scope is Scope.FINAL else "256x256x512"
        read = figures(shape, 1 / rate, diagnosis={"spills": 4711})
        return passed(job.genome, read, fitness=rate, target="tpu7x", suite="tiny")


@dataclass
class TableEvaluator(AtOnce):
    """An ``Evaluator`` that looks results up. ``noise`` is the relative standard deviation it adds.

    Noise is drawn from the job's seed, so one job always reads the same and a second measurement of a
    point, under another seed, reads anew. Fitness is 1 TFLOP over the seconds read.
    """

    table: Table
    slots: int = 1
    noise: float = 0.0
    evaluations: int = field(default=0, init=False)

    def submit(self, job: Job) -> None:
        self.evaluations += 1
        super().submit(job)

    def evaluate(self, job: Job) -> Evaluation:
        seconds = self.table.time(job.genome)
        about = {"suite": self.table.name, "target": f"recorded:{self.table.name}"}
        if math.isnan(seconds):
            why = {"stage": Stage.COMPILE, "reason": "failed when recorded"}
            return failed(job.genome, Verdict.COMPILE_ERROR, **why, **about)
        if self.noise:
            seconds *= math.exp(self.noise * np.random.default_rng(job.seed).standard_normal())
        read = figures(self.table.name, seconds, kind=FigureKind.MEASURED)
        spread = math.exp(1.96 * self.noise)
        interval = (1.0 / seconds / spread, spread / seconds)
        return passed(job.genome, read, fitness=1.0 / seconds, interval=interval, **about)
