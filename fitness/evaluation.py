"""Findings of the cascade for one genome: verdict, figures, diagnosis. Plain, typed data."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Verdict(StrEnum):
    OK = "ok"
    REJECTED = "rejected"
    DUPLICATE = "duplicate"
    COMPILE_ERROR = "compile_error"
    RESOURCE_ERROR = "resource_error"
    INCORRECT = "incorrect"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    IMPLAUSIBLE = "implausible"
    OUTPACED = "outpaced"
    """Stopped in a race (``fitness.race``): too slow on the first workloads, not measured on the rest."""

    INFRA_ERROR = "infra_error"


class Stage(StrEnum):
    """Stages of the cascade in the order they run."""

    DIALECT = "dialect"
    COMPILE = "compile"
    CHECK = "check"
    MEASURE = "measure"


class FigureKind(StrEnum):
    MEASURED = "measured"
    MODELLED = "modelled"
    COMPILED = "compiled"
    """Nothing was timed: the candidate compiles for the target and its answers are right."""


class Reached(StrEnum):
    """Ways a verdict on a candidate's answers is reached."""

    DEVICE = "on the device"
    TRACE = "from traced data"
    INTERPRETER = "by Triton's interpreter alone"
    """The kernel's Python ran beside its inputs, and no device has run the kernel: nothing is promoted by that."""


UNIT_SLUGS = {"TFLOP/s": "tflops", "GB/s": "gbytes", "passes": "passes"}
"""Units of a fitness as parts of names."""


class WorkloadFigures(BaseModel):
    """Figures of one workload on one target. ``seconds`` per call; ``tflops`` in 1e12 operations per second.

    ``gbytes``, 1e9 compulsory bytes per second, is there for operators that memory bounds: they are ranked by it.
    ``diagnosis`` holds whatever explains the time (cycles, spills, unit busy fractions ...),
    keyed by names documented by the time model that produced them. ``model_version`` is that model's, of a modelled
    figure: figures of different versions are not comparable (see ``comparable``).
    """

    model_config = ConfigDict(frozen=True)

    workload: str
    seconds: float = Field(gt=0)
    tflops: float = Field(ge=0)
    gbytes: float | None = Field(default=None, ge=0)
    roofline_fraction: float = Field(ge=0)
    kind: FigureKind
    model_version: int | None = None
    diagnosis: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _of_the_first_model(cls, data: Any) -> Any:
        """Records of before the time model had versions are of its first."""
        if isinstance(data, dict) and data.get("kind") == "modelled" and data.get("model_version") is None:
            return {**data, "model_version": 1}
        return data

    @property
    def seconds_interval(self) -> tuple[float, float]:
        """Where a real device's time would lie, of a modelled figure that says so; else the time itself, twice."""
        ends = (self.diagnosis.get(end, self.seconds) for end in ("seconds_low", "seconds_high"))
        low, high = map(float, ends)
        return low, high

    @property
    def rate(self) -> float:
        """What the workload is ranked by, in ``unit``."""
        return self.tflops if self.gbytes is None else self.gbytes

    @property
    def unit(self) -> str:
        """Of ``rate``."""
        return "TFLOP/s" if self.gbytes is None else "GB/s"


class GateReading(BaseModel):
    """One gate on one input kind. ``value``: dB for SNR, mismatches for bits, share of equal elements for agreement.

    ``bar``: the share that was needed, where the inputs decide it. ``detail``: what is wrong with single elements of an
    output whose value is high enough.
    """

    model_config = ConfigDict(frozen=True)

    gate: str
    inputs: str
    value: float | None
    passed: bool
    bar: float | None = None
    detail: str = ""
    workload: str = ""
    """Shape it was read on; empty in records of before it was noted."""
    sampled: bool = False
    """Read on some rows and columns of the shape, not on all of it."""
    artefact: str = ""
    """Hash of what ran on the inputs, where that is data (TPU targets); figures have the one that was timed."""


class Evaluation(BaseModel):
    """The cascade's answer. ``fitness`` (see ``unit``) exists only for verdict ``ok``.

    ``interval``: of a measured fitness its 95 % interval; of a modelled one where a real TPU's would lie, 90 %
    (``fitness.tpu.time_model``). ``projected`` is what the first workloads of an outpaced candidate say of its fitness:
    for models of the search, never compared with a fitness. ``descriptors`` place the candidate in the archive.
    ``artefact`` is the hash of what was compiled: equal artefacts are duplicates. ``reason`` is one line for any
    verdict but ``ok``. ``spent`` are seconds by what took them: each stage (wall clock), ``device`` (held by this
    candidate) and ``cpu`` (of the worker and its children). ``reached`` says what ran on the gates' inputs, where that
    was got to; None in records of before it was noted. ``drawn``: ids of shapes by lot on which a finalist passed the
    gates (``workers.cascade.drawn_shapes``); ``outside``: those where it does not compile, or the operator's own kernel
    is wrong, too.
    """

    model_config = ConfigDict(frozen=True)

    genome: str
    target: str
    suite: str
    stage: Stage
    verdict: Verdict
    reason: str = ""
    fitness: float | None = None
    interval: tuple[float, float] | None = None
    workloads: tuple[WorkloadFigures, ...] = ()
    gates: tuple[GateReading, ...] = ()
    projected: float | None = None
    descriptors: dict[str, str] = Field(default_factory=dict)
    compiled: dict[str, dict[str, Any]] = Field(default_factory=dict)
    artefact: str | None = None
    toolchain: dict[str, str] = Field(default_factory=dict)
    log: str = ""
    wall_seconds: float = 0.0
    spent: dict[str, float] = Field(default_factory=dict)
    worker: str = ""
    reached: Reached | None = None
    drawn: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether something is wrong: not with the repetition of another candidate, nor with one that lost a race."""
        return self.verdict not in (Verdict.OK, Verdict.DUPLICATE, Verdict.OUTPACED)

    @property
    def model_version(self) -> int | None:
        """Version of the time model that the fitness is of; None of what is not modelled."""
        return self.workloads[0].model_version if self.workloads else None

    def even_with(self, other: Evaluation) -> bool:
        """Whether what tells two modelled fitnesses apart is less than the model's own error."""
        if (
            self.fitness is None
            or other.fitness is None
            or self.interval is None
            or self.model_version is None
        ):
            return False
        if self.model_version != other.model_version:
            return False
        low, high = self.interval
        return low <= other.fitness <= high

    @property
    def unit(self) -> str:
        """Of ``fitness``: the geometric mean of the workloads' rates, or 1 for what only compiles."""
        return self.workloads[0].unit if self.workloads else "passes"

    @property
    def believed(self) -> float | None:
        """What a model of the search may learn: the fitness, or what was projected of it. Nothing is chosen by it."""
        return self.projected if self.fitness is None else self.fitness

    @model_validator(mode="after")
    def _fitness_only_when_ok(self) -> Evaluation:
        if (self.verdict is Verdict.OK) != (self.fitness is not None):
            raise ValueError("an evaluation has a fitness exactly when its verdict is ok")
        if self.verdict is not Verdict.OK and not self.reason:
            raise ValueError(f"verdict {self.verdict} needs a reason")
        if self.projected is not None and self.verdict is not Verdict.OUTPACED:
            raise ValueError(f"verdict {self.verdict} has no projected fitness")
        return self
