"""The cascade of a measured target: dialect, compile ahead on this CPU, then gates and times on a station.

On a TPU target candidates are traced, interpreted on the gates' inputs and judged by their structure here, as on
modelled ones, before a station compiles them.

What screens near the champion or above is confirmed at once: interleaved with it, and with the champion a second
time as control. Only a paired interval that excludes "no faster" makes a new champion; the fitness of what is not
confirmed never exceeds the champion's.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fitness.chips import Chip
from fitness.evaluation import Evaluation, Stage, Verdict
from fitness.score import geometric_mean
from fitness.targets import Target
from seeds.operator import Operator, SeedKernel, Suite
from workers import gpu_recipe, recipe
from workers.attempt import Failure, Found, Request, StageStep, one_line
from workers.cascade import pallas_template
from workers.limits import Limits
from workers.measured_stages import (
    NEAR,
    CompileAheadStage,
    Confirmation,
    GateStage,
    ScreenStage,
    confirm,
    host_seconds,
    interval,
    worst_gates,
)
from workers.processes import Launcher, Spawn
from workers.sandbox import temporary_folder
from workers.session import Keeper, SessionDied
from workers.stages import CompileStage, TraceStage
from workers.station import CLAIM_SECONDS, Champion, Entry, Station, compile_config
from workers.steps import DialectStage, run_steps
from workers.timing import Samples
from workers.truth import Truth

_SHARED_EDGES = (64, 128, 192)  # KiB
_LOG_BYTES = 32 << 10
_WAIT_SECONDS = 0.25
"""Between two tries to claim the champion."""


class MeasuredCascade:
    """Evaluates genomes of one operator on one measured target, one at a time.

    Not safe for several threads; make one per worker. Several may share a station. ``close`` ends its children.
    """

    def __init__(
        self,
        operator: Operator,
        target: Target,
        suite: Suite,
        station: Station,
        limits: Limits | None = None,
        *,
        scratch: Path | None = None,
    ) -> None:
        self._operator = operator
        self._truth = Truth(operator)
        self._samples = Samples(operator)
        self._target = target
        self._suite = suite
        self._station = station
        self._limits = limits or Limits()
        self._pallas = isinstance(target.part, Chip)
        ahead = not (self._pallas or target.interpreted)
        self._compiler = Keeper(compile_config(target.gpu)) if ahead else None
        self._launcher: Launcher = pallas_template() if self._pallas else Spawn()
        self._scratch = scratch
        self._worker = socket.gethostname()

    def close(self) -> None:
        """Kill the compiling child."""
        if self._compiler is not None:
            self._compiler.close()

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
        """Judge one genome; as ``workers.cascade.Cascade.evaluate``, less what only a model can give.

        ``figures`` ``timeline`` measures the first workload alone. ``best`` is not used: the station knows the
        champion. Raises ValueError for another ``workloads`` than ``suite`` and ``final``.
        """
        chosen = self._suite.timed(workloads)
        if figures == "timeline":
            chosen = chosen[:1]
        began = time.monotonic()
        found = Found()
        stage, failure, confirmation = Stage.DIALECT, None, None
        try:
            with temporary_folder(self._scratch) as folder:
                request = Request(
                    operator=self._operator,
                    truth=self._truth,
                    target=self._target,
                    limits=self._limits,
                    source=source,
                    params=params,
                    seed=seed,
                    timeline=False,
                    measured=chosen,
                    checked=() if baseline else self._suite.check,
                    baseline=baseline,
                    final=workloads == "final",
                    folder=folder,
                    launcher=self._launcher,
                    is_known=lambda artefact: "an earlier genome" if artefact in known_artefacts else None,
                )
                stage, failure = self._run(request, found, on_stage)
                if failure is None and workloads == "suite" and figures != "timeline":
                    confirmation = self._settle(genome_id, request, found)
                    failure = confirmation if isinstance(confirmation, Failure) else None
        except (OSError, SessionDied) as error:
            reason = one_line(f"{type(error).__name__}: {error}")
            failure = Failure(Verdict.INFRA_ERROR, reason)
        settled = confirmation if isinstance(confirmation, Confirmation) else None
        return self._evaluation(genome_id, stage, failure, found, settled, time.monotonic() - began)

    def _run(
        self, request: Request, found: Found, on_stage: Callable[[Stage], None] | None
    ) -> tuple[Stage, Failure | None]:
        steps: list[StageStep] = [DialectStage(request.target.entry)]
        if self._pallas:
            steps += [TraceStage(), CompileStage(compiles=False)]
        if self._compiler is not None:
            steps.append(CompileAheadStage(self._compiler))
        steps += [GateStage(self._station), ScreenStage(self._station, self._samples)]
        return run_steps(steps, request, found, on_stage)

    def _settle(self, genome_id: str, request: Request, found: Found) -> Confirmation | Failure | None:
        """Measure against the champion what may be faster, and crown what is. None when it met nobody."""
        entry = Entry(genome_id, request.source, request.params)
        for _ in range(int(CLAIM_SECONDS / _WAIT_SECONDS)):
            champion = self._station.champion()
            fitness = geometric_mean(f.rate for f in found.figures)
            if champion is not None and (champion.entry.id == genome_id or fitness < NEAR * champion.fitness):
                return None
            if self._station.claim(genome_id):
                return self._contend(entry, request, found)
            time.sleep(_WAIT_SECONDS)
        return None

    def _contend(self, entry: Entry, request: Request, found: Found) -> Confirmation | Failure | None:
        """With the claim in hand: nobody else is crowned meanwhile."""
        verdict: Confirmation | Failure | None = None
        crowned = None
        try:
            champion = self._station.champion()
            fitness = geometric_mean(f.rate for f in found.figures)
            if champion is not None and fitness >= NEAR * champion.fitness:
                verdict = confirm(self._station, request, found, self._samples, champion, fitness)
            if champion is None or (isinstance(verdict, Confirmation) and verdict.accepted):
                fitness = geometric_mean(f.rate for f in found.figures)
                crowned = Champion(entry, fitness, tuple(found.figures))
        finally:
            self._station.release(entry.id, crowned)
        return verdict

    def _evaluation(
        self,
        genome: str,
        stage: Stage,
        failure: Failure | None,
        found: Found,
        confirmation: Confirmation | None,
        wall: float,
    ) -> Evaluation:
        fitness = span = None
        if failure is None:
            fitness = geometric_mean(f.rate for f in found.figures)
            champion = self._station.champion()
            if champion is not None and not (confirmation is not None and confirmation.accepted):
                fitness = min(fitness, champion.fitness)
            span = interval(found.figures, fitness)
        if confirmation is not None and found.figures:
            first = found.figures[0]
            noted = {**first.diagnosis, "confirmation": confirmation.data()}
            found.figures[0] = first.model_copy(update={"diagnosis": noted})
        logs = [failure.log if failure else "", *found.logs[-1:]] if failure else []
        return Evaluation(
            genome=genome,
            target=self._target.name,
            suite=self._suite.name,
            stage=failure.stage or stage if failure else stage,
            verdict=failure.verdict if failure else Verdict.OK,
            reason=failure.reason if failure else "",
            fitness=fitness,
            interval=span,
            workloads=tuple(found.figures),
            gates=worst_gates(found.gates),
            descriptors=_descriptors(found) if failure is None else {},
            artefact=found.artefact,
            toolchain=self._toolchain(failure),
            log="\n".join(text for text in logs if text)[-_LOG_BYTES:],
            wall_seconds=wall,
            worker=self._worker,
        )

    def _toolchain(self, failure: Failure | None) -> dict[str, str]:
        versions = recipe.toolchain() if self._pallas else gpu_recipe.toolchain()
        if failure is not None:
            return versions
        try:
            hello = self._station.hello()
        except (OSError, SessionDied):
            return versions
        return {**versions, **{k: str(hello[k]) for k in ("device", "cuda", "torch", "triton") if k in hello}}


def _descriptors(found: Found) -> dict[str, str]:
    """Where a kernel belongs in an archive: its shared memory, and what a launch costs the host, binned."""
    result = {}
    if "shared" in found.claimed:
        kibibytes, low = int(found.claimed["shared"]) / 1024, 0
        for edge in _SHARED_EDGES:
            if kibibytes <= edge:
                break
            low = edge
        result["shared"] = f"{low}+KiB"
    host = host_seconds(found.figures)
    if host > 0:
        result["host"] = "under 60us" if host < 60e-6 else "60us+"
    return result
