"""Findings of the cascade for one genome: verdict, figures, diagnosis. Plain, typed data."""

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
    """The kernel's Python ran in one process with its inputs, and no device ran it; nothing is promoted by that."""


UNIT_SLUGS = {"TFLOP/s": "tflops", "GB/s": "gbytes", "passes": "passes"}
"""Units of a fitness as parts of names."""


class WorkloadFigures(BaseModel):
    """Figures of one workload on one target: ``seconds`` of a call, ``tflops`` in 1e12 operations per second.

    ``gbytes``, in 1e9 compulsory bytes per second, is set for operators bound by memory and ranks them. ``diagnosis``
    explains the time (cycles, spills, busy units and so on) under names that the time model documents.
    ``model_version`` is that of the time model; figures of different versions do not compare.
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
        """Give records that are older than the time model's versions the first one."""
        if isinstance(data, dict) and data.get("kind") == "modelled" and data.get("model_version") is None:
            return {**data, "model_version": 1}
        return data

    @property
    def seconds_interval(self) -> tuple[float, float]:
        """Low and high end of a real device's time, if a modelled figure has them; else the time itself, twice."""
        ends = (self.diagnosis.get(end, self.seconds) for end in ("seconds_low", "seconds_high"))
        low, high = map(float, ends)
        return low, high

    @property
    def rate(self) -> float:
        """The figure that ranks the workload, in ``unit``."""
        return self.tflops if self.gbytes is None else self.gbytes

    @property
    def unit(self) -> str:
        """The unit of ``rate``."""
        return "TFLOP/s" if self.gbytes is None else "GB/s"


class GateReading(BaseModel):
    """The reading of one gate on one kind of inputs. ``value``: dB of an SNR, mismatches of bits, or the share of equal
    elements.

    ``bar``: the share that was needed, if the inputs decide it. ``detail``: the fault of single elements in an output
    whose ``value`` is high enough.
    """

    model_config = ConfigDict(frozen=True)

    gate: str
    inputs: str
    value: float | None
    passed: bool
    bar: float | None = None
    detail: str = ""
    workload: str = ""
    """Id of the shape; empty in older records."""
    sampled: bool = False
    """Whether only some rows and columns were read."""
    artefact: str = ""
    """Hash of the traced kernel that ran on the inputs (TPU targets); figures have that of the timed one."""


class Evaluation(BaseModel):
    """The cascade's answer for one genome. Records of older versions lack the fields that came later."""

    model_config = ConfigDict(frozen=True)

    genome: str
    target: str
    suite: str
    stage: Stage
    """The last stage that ran."""
    verdict: Verdict
    reason: str = ""
    """One line for any verdict but ``ok``."""
    fitness: float | None = None
    """In ``unit``; only with the verdict ``ok``."""
    interval: tuple[float, float] | None = None
    """Of a measured fitness the 95 % interval; of a modelled one the 90 % interval of a real TPU's
    (``fitness.tpu.time_model``)."""
    workloads: tuple[WorkloadFigures, ...] = ()
    gates: tuple[GateReading, ...] = ()
    projected: float | None = None
    """Fitness that the first workloads of an outpaced candidate suggest: for the search's models, never compared with a
    fitness."""
    descriptors: dict[str, str] = Field(default_factory=dict)
    """The candidate's cell in the archive."""
    compiled: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Facts of the compiled code by kernel (``fitness.isa.KernelIsa.data``)."""
    artefact: str | None = None
    """Hash of what was compiled: equal artefacts are duplicates."""
    toolchain: dict[str, str] = Field(default_factory=dict)
    log: str = ""
    wall_seconds: float = 0.0
    spent: dict[str, float] = Field(default_factory=dict)
    """Seconds of each stage (wall clock), of the ``device`` while this candidate held it, and of ``cpu`` (worker and
    children)."""
    worker: str = ""
    reached: Reached | None = None
    """What ran the candidate on the gates' inputs, if anything did."""
    drawn: tuple[str, ...] = ()
    """Ids of the randomly drawn shapes on which a finalist passed the gates (``workers.cascade.drawn_shapes``)."""
    outside: tuple[str, ...] = ()
    """Ids of the drawn shapes where it does not compile, or where the operator's own kernel is wrong as well."""

    @property
    def failed(self) -> bool:
        """Whether the verdict is a fault; a duplicate and a candidate that lost a race are none."""
        return self.verdict not in (Verdict.OK, Verdict.DUPLICATE, Verdict.OUTPACED)

    @property
    def model_version(self) -> int | None:
        """Version of the time model behind the fitness; None if it is not modelled."""
        return self.workloads[0].model_version if self.workloads else None

    def even_with(self, other: "Evaluation") -> bool:
        """Whether two modelled fitnesses differ by less than the model's own error."""
        if self.fitness is None or other.fitness is None or self.interval is None or self.model_version is None:
            return False
        if self.model_version != other.model_version:
            return False
        low, high = self.interval
        return low <= other.fitness <= high

    @property
    def unit(self) -> str:
        """The unit of ``fitness``: the geometric mean of the workloads' rates, or 1 if the target only compiles."""
        return self.workloads[0].unit if self.workloads else "passes"

    @property
    def believed(self) -> float | None:
        """Fitness, else the projected one, for a model of the search to learn from; no choice uses it."""
        return self.projected if self.fitness is None else self.fitness

    @model_validator(mode="after")
    def _fitness_only_when_ok(self) -> "Evaluation":
        if (self.verdict is Verdict.OK) != (self.fitness is not None):
            raise ValueError("an evaluation has a fitness exactly when its verdict is ok")
        if self.verdict is not Verdict.OK and not self.reason:
            raise ValueError(f"verdict {self.verdict} needs a reason")
        if self.projected is not None and self.verdict is not Verdict.OUTPACED:
            raise ValueError(f"verdict {self.verdict} has no projected fitness")
        return self
