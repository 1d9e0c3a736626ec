"""The cascade: from a genome to an evaluation, stopping at the first stage that fails.

Order, cheapest wall first: the dialect on the syntax tree (milliseconds); one child that traces the candidate to
data (``jaxpr_codec``); one child that makes the kernel from that, lowers it and runs it on the gates' inputs (about
2.5 s); one child that compiles and simulates what was lowered (1 s and up). Only the first holds the candidate's
Python. The parent alone holds the oracle, reads the dumps, and says the verdict.

Where the campaign vouches for the source (``best`` is infinite: the user's own, under other parameters), what goes
wrong is that it does not compile, and the gates come after the simulation.

The gates are passed once more on shapes that are chosen after that (``to_verify``): by a candidate that would be the
best so far, by one whose kernel does other kinds of operations there than on the checked shapes, and where it is cheap.
A finalist passes them on all kinds of inputs.
"""

import dataclasses
import math
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.fitness.score import geometric_mean
from tilewright.fitness.targets import Target
from tilewright.fitness.tpu import time_model
from tilewright.seeds.operator import Operator, Suite, in_order
from tilewright.workers.cascade.base import Cascade
from tilewright.workers.cascade.common_stages import DialectStage, RaceStage, run_steps
from tilewright.workers.cascade.drawn_shapes import MODELLED, DrawnStage, verified_alone
from tilewright.workers.cascade.modelled_stages import CheckStage, CompileStage, MeasureStage, TraceStage, check, trace
from tilewright.workers.cascade.verify_shapes import VerifyStage, to_verify
from tilewright.workers.child.launch import Template
from tilewright.workers.child.run_once import environment
from tilewright.workers.request import Failure, Findings, Limits, Request, StageStep, Truth
from tilewright.workers.toolchains import libtpu_simulator

_VMEM_EDGES = (8, 16, 32, 64)  # MiB
_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
"""For glibc, which reads it when a template starts: libtpu's simulator allocates gigabytes in small pieces, on one
thread, and asking the kernel for them piece by piece takes a twelfth of its time."""

_PRELOADED = (
    *(f"tilewright.workers.runners.pallas.{name}" for name in ("trace", "check", "compile")),
    "tilewright.workers.intake.pallas.original",
)


class ModelledCascade(Cascade):
    """Evaluates genomes of one operator on one modelled TPU target, one at a time.

    Not safe for several threads; make one per worker. What has a fitness over ``best`` passes the gates on measured
    and final shapes, too. An infinite ``best`` among ``final`` workloads only times what passed them before.
    """

    def __init__(
        self,
        operator: Operator,
        target: Target,
        suite: Suite,
        limits: Limits | None = None,
        *,
        scratch: Path | None = None,
        truth: Truth | None = None,
    ) -> None:
        super().__init__(operator, target, suite, limits, scratch, pallas_template(), truth)

    def _prepared(self, request: Request) -> Request:
        """With what has to pass the gates, and what may have to after it is traced and timed."""
        if request.final and request.best == math.inf:
            return dataclasses.replace(request, checked=())
        others = dict.fromkeys((*self._suite.workloads, *self._suite.final))
        kept = [w for w in others if request.only is None or w.id in request.only]
        unmeasured = in_order((w for w in kept if w not in request.measured), len(request.measured))
        return dataclasses.replace(request, unmeasured=unmeasured, thorough=request.final and request.baseline is None)

    def _judge(
        self, request: Request, found: Findings, on_stage: Callable[[Stage], None]
    ) -> tuple[Stage, Failure | None]:
        if (absent := libtpu_simulator.missing_parts()) is not None:
            return Stage.COMPILE, Failure(Verdict.INFRA_ERROR, absent)  # it says nothing about the genome
        request = self._prepared(request)
        if request.thorough and request.checked:
            return self._judge_finalist(request, found, on_stage)
        vouched = request.best == math.inf
        steps: list[StageStep] = [DialectStage("build"), TraceStage(checks=not vouched)]
        timing: list[StageStep] = [CompileStage(), MeasureStage()]
        if request.race is not None:
            timing = [CompileStage(compiles=False), RaceStage(timing, _descriptors)]
        gates = [CheckStage()] if vouched and request.checked else []
        stage, failure = run_steps([*steps, *timing, *gates], request, found, on_stage)
        if failure is None and request.checked:
            best = request.final or geometric_mean(f.rate for f in found.figures) > request.best
            if shapes := to_verify(request, found, best=best):
                stage, failure = run_steps([VerifyStage(shapes)], request, found, on_stage)
        return (stage, failure) if failure is not None else (Stage.MEASURE, None)

    def _judge_finalist(
        self, request: Request, found: Findings, on_stage: Callable[[Stage], None]
    ) -> tuple[Stage, Failure | None]:
        """All gates beside the simulation, as either takes as long: of two failures, the gates'."""
        lowering: list[StageStep] = [DialectStage("build"), TraceStage(checks=False), CompileStage(compiles=False)]
        stage, failure = run_steps(lowering, request, found, on_stage)
        if failure is not None:
            return stage, failure
        gates: list[StageStep] = [CheckStage()]
        if shapes := to_verify(request, found, best=True):
            gates.append(VerifyStage(shapes))
        if request.baseline is None:
            gates.append(
                DrawnStage((MODELLED, gate_large_shapes), exact=verified_alone(request.operator, request.target))
            )
        checked = dataclasses.replace(found, gates=[], logs=[], drawn=[], outside=[])
        with ThreadPoolExecutor(1) as other:
            gated = other.submit(run_steps, gates, request, checked, None)
            timed = run_steps([CompileStage(), MeasureStage()], request, found, on_stage)
            on_stage(Stage.CHECK)
        found.gates, found.logs = checked.gates, found.logs + checked.logs
        found.drawn, found.outside = checked.drawn, checked.outside
        for stage, failure in (gated.result(), timed):
            if failure is not None:
                return stage, failure
        return Stage.MEASURE, None

    def _worth(self, found: Findings) -> tuple[float, tuple[float, float], dict[str, str]]:
        fitness = geometric_mean(f.rate for f in found.figures)
        kinds = [figures.diagnosis["error_class"] for figures in found.figures]
        low, high = time_model.relative_error(kinds)
        return fitness, (fitness * math.exp(-high), fitness * math.exp(-low)), _descriptors(found)

    def _toolchain(self, failure: Failure | None) -> dict[str, str]:
        return libtpu_simulator.toolchain()


def gate_large_shapes(request: Request, found: Findings) -> Failure | None:
    """Passes the gates on a request's checked shapes, all of them large ones: on two kinds of inputs."""
    part = dataclasses.replace(request, large_checks=request.checked, thorough=False)
    return trace(part, found) or check(part, found)


def pallas_template() -> Template:
    """A process that forks trace and compile children; it starts warming up at once."""
    quiet = {**libtpu_simulator.trace_environment(), **_ALLOCATOR}
    made = Template(_PRELOADED, environment(Path(tempfile.gettempdir()), quiet))
    made.warm()
    return made


def _descriptors(found: Findings) -> dict[str, str]:
    """Where the kernel belongs in an archive, as far as the target knows: its VMEM use, binned."""
    mebibytes = max(f.diagnosis["vmem_bytes"] for f in found.figures) / 2**20
    low = max((edge for edge in _VMEM_EDGES if edge < mebibytes), default=0)
    high = next((edge for edge in _VMEM_EDGES if edge > low), None)
    return {"vmem": f"{low}-{high}MiB" if high else f"{low}MiB+"}
