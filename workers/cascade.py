"""The cascade: from a genome to an evaluation, stopping at the first stage that fails.

Order, cheapest wall first: the dialect on the syntax tree (milliseconds); one child that traces the candidate and
runs it on the gates' inputs (about 2.5 s); one child that compiles and simulates what was traced, without the
candidate's Python (1 s and up). The parent alone holds the oracle, reads the dumps, and says the verdict.

Unless one of the checked shapes is measured, a candidate that would be the best so far passes the gates once more
on a measured shape; so does one whose kernel does other kinds of operations there than on the checked shapes. A
finalist passes them on all kinds of inputs, and on a measured shape that was not checked before.
"""

from __future__ import annotations

import math
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fitness.evaluation import Evaluation, Stage, Verdict
from fitness.score import geometric_mean
from fitness.targets import Target
from seeds.operator import Operator, SeedKernel, Suite, Workload
from workers import recipe
from workers.attempt import Failure, Found, Request, StageStep
from workers.limits import Limits
from workers.processes import Template
from workers.sandbox import environment, temporary_folder
from workers.stages import CompileStage, MeasureStage, TraceStage, VerifyStage, to_verify
from workers.steps import DialectStage, run_steps
from workers.truth import Truth

_VMEM_EDGES = (8, 16, 32, 64)  # MiB
_LOG_BYTES = 32 << 10
_PRELOADED = ("workers.runners.pallas_trace", "workers.runners.pallas_compile")


class Cascade:
    """Evaluates genomes of one operator on one modelled TPU target, one at a time.

    Not safe for several threads; make one per worker. ``known_artefacts`` maps an artefact's hash to the
    genome that had it first, or None.
    """

    def __init__(
        self,
        operator: Operator,
        target: Target,
        suite: Suite,
        limits: Limits | None = None,
        known_artefacts: Callable[[str], str | None] | None = None,
        *,
        scratch: Path | None = None,
    ) -> None:
        self._operator = operator
        self._truth = Truth(operator)
        self._target = target
        self._suite = suite
        self._limits = limits or Limits()
        self._known = known_artefacts or (lambda artefact: None)
        self._scratch = scratch
        self._worker = socket.gethostname()
        self._launcher = pallas_template()

    def evaluate(
        self,
        genome_id: str,
        source: str,
        params: Mapping[str, Any],
        *,
        seed: int,
        figures: str = "cycles",
        workloads: str = "suite",
        baseline: SeedKernel | None = None,
        known_artefacts: Collection[str] = (),
        best: float = 0.0,
        on_stage: Callable[[Stage], None] | None = None,
    ) -> Evaluation:
        """Judge one genome.

        ``figures``: ``cycles``, or ``timeline`` for a critical path and lanes to draw as well (first workload).
        ``workloads``: ``suite`` for those that decide fitness, ``final`` for the winner's check. A
        ``baseline`` answers to its own inputs and is held to no gate. ``seed`` makes the gates' inputs.
        What has a fitness over ``best`` (TFLOP/s) passes the gates on a measured shape, too. A ``timeline``, and an
        infinite ``best`` among ``final`` workloads, only time what has passed them before.
        Raises ValueError for another ``figures`` or ``workloads``.
        """
        if figures not in ("cycles", "timeline"):
            raise ValueError(f"figures is {figures!r}; it is 'cycles' or 'timeline'")
        chosen = self._suite.timed(workloads)
        if figures == "timeline":
            chosen = chosen[:1]
        began = time.monotonic()
        found = Found()
        stage = Stage.DIALECT
        try:
            with temporary_folder(self._scratch) as folder:
                timed_again = figures == "timeline" or (workloads == "final" and best == math.inf)
                passed_before = baseline is not None or timed_again
                thorough = workloads == "final" and not passed_before
                spots = self._spots() if thorough else ()
                request = Request(
                    operator=self._operator,
                    truth=self._truth,
                    target=self._target,
                    limits=self._limits,
                    source=source,
                    params=params,
                    seed=seed,
                    timeline=figures == "timeline",
                    measured=chosen,
                    checked=() if passed_before else (*self._suite.check, *spots),
                    baseline=baseline,
                    final=workloads == "final",
                    spots=spots,
                    thorough=thorough,
                    folder=folder,
                    launcher=self._launcher,
                    is_known=lambda artefact: self._earlier(artefact, known_artefacts),
                )
                stage, failure = self._judge(request, found, on_stage, best=best)
        except OSError as error:
            failure = Failure(Verdict.INFRA_ERROR, f"{type(error).__name__}: {error}")
        return self._evaluation(genome_id, stage, failure, found, time.monotonic() - began)

    def _spots(self) -> tuple[Workload, ...]:
        """The shape of least work among those that decided the fitness of a finalist and were never checked."""
        unchecked = [w for w in self._suite.workloads if w not in self._suite.check]
        return tuple(sorted(unchecked, key=self._operator.flops)[:1])

    def _earlier(self, artefact: str, known: Collection[str]) -> str | None:
        return "an earlier genome" if artefact in known else self._known(artefact)

    def _judge(
        self, request: Request, found: Found, on_stage: Callable[[Stage], None] | None, *, best: float
    ) -> tuple[Stage, Failure | None]:
        steps: list[StageStep] = [DialectStage("build"), TraceStage(), CompileStage(), MeasureStage()]
        if (absent := recipe.missing_parts()) is not None:
            steps = [DialectStage("build"), _Missing(absent)]
        stage, failure = run_steps(steps, request, found, on_stage)
        if failure is not None or not request.checked:
            return stage, failure
        fitness = geometric_mean(f.tflops for f in found.figures)
        if not request.thorough and (shapes := to_verify(request, found, best=fitness > best)):
            checked, failure = run_steps([VerifyStage(shapes)], request, found, on_stage)
            stage = checked if failure is not None else stage
        return stage, failure

    def _evaluation(
        self, genome: str, stage: Stage, failure: Failure | None, found: Found, wall: float
    ) -> Evaluation:
        fitness = geometric_mean(f.tflops for f in found.figures) if failure is None else None
        logs = [failure.log if failure else "", *found.logs]
        return Evaluation(
            genome=genome,
            target=self._target.name,
            suite=self._suite.name,
            stage=stage,
            verdict=failure.verdict if failure else Verdict.OK,
            reason=failure.reason if failure else "",
            fitness=fitness,
            interval=(fitness, fitness) if fitness is not None else None,
            workloads=tuple(found.figures),
            gates=tuple(found.gates),
            estimates=found.estimates,
            descriptors=_descriptors(found) if failure is None else {},
            artefact=found.artefact,
            toolchain=recipe.toolchain(),
            log="\n".join(text for text in logs if text)[-_LOG_BYTES:],
            wall_seconds=wall,
            worker=self._worker,
        )


def pallas_template() -> Template:
    """A process that forks trace and compile children; it starts warming up at once."""
    made = Template(_PRELOADED, environment(Path(tempfile.gettempdir()), recipe.trace_environment()))
    made.warm()
    return made


class _Missing:
    """Stands in for the stages that need a part which is not installed."""

    stage = Stage.COMPILE

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def run(self, request: Request, found: Found) -> Failure | None:
        """Always an infrastructure fault: it says nothing about the genome."""
        return Failure(Verdict.INFRA_ERROR, self._reason)


def _descriptors(found: Found) -> dict[str, str]:
    """Where the kernel belongs in an archive, as far as the target knows: its VMEM use, binned."""
    mebibytes = max(f.diagnosis["vmem_bytes"] for f in found.figures) / 2**20
    low = 0
    for edge in _VMEM_EDGES:
        if mebibytes <= edge:
            return {"vmem": f"{low}-{edge}MiB"}
        low = edge
    return {"vmem": f"{low}MiB+"}
