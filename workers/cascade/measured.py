"""The cascade of a measured target: dialect, compile ahead on this CPU, then gates and times on a station.

On a TPU target candidates are traced, interpreted on the gates' inputs and judged by their structure here, as on
modelled ones, before a station compiles them.

What screens near the champion or above is confirmed at once: interleaved with it, and with the champion a second
time as control. Only a paired interval that excludes "no faster" makes a new champion; the fitness of what is not
confirmed never exceeds the champion's.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path

from tilewright.fitness.chips import Chip
from tilewright.fitness.evaluation import Stage
from tilewright.fitness.score import geometric_mean
from tilewright.fitness.targets import Target
from tilewright.seeds.operator import Operator, Suite
from tilewright.workers.cascade.base import Cascade
from tilewright.workers.cascade.common_stages import DialectStage, RaceStage, dealt_kinds, run_steps
from tilewright.workers.cascade.drawn_shapes import INTERPRETED, LARGE, MEASURED, DrawnStage
from tilewright.workers.cascade.measured_stages import (
    KINDS,
    NEAR,
    Confirmation,
    GateStage,
    HandOverStage,
    ScreenStage,
    confirm,
    host_seconds,
    interval,
    worst_gates,
)
from tilewright.workers.cascade.modelled import pallas_template
from tilewright.workers.cascade.modelled_stages import CompileStage, TraceStage
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.launch import Launcher, Spawn
from tilewright.workers.child.session import SessionDied
from tilewright.workers.device.plan_compiler import CompilePace, PlanStage
from tilewright.workers.device.station import CLAIM_SECONDS, Champion, Entry, LocalStation, Station, compile_children
from tilewright.workers.device.timing import Samples, measure
from tilewright.workers.request import Failure, Findings, Limits, Request, StageStep, Truth
from tilewright.workers.toolchains import libtpu_simulator
from tilewright.workers.toolchains import triton as triton_toolchain

_SHARED_EDGES = (64, 128, 192)  # KiB
_WAIT_SECONDS = 0.25
"""Seconds between two tries to claim the champion."""


def in_background(task: Callable[..., object], *given: object) -> Future[object]:
    """The future of a task in a thread of its own, which ends with the process."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(task(*given))
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="in the background").start()
    return future


class MeasuredCascade(Cascade):
    """Evaluates genomes of one operator on one measured target, one at a time.

    Not safe for several threads; make one per worker. Several may share a station. ``close`` ends its children.
    ``best`` is not used: the station knows the champion.
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
        compiler: ForkedChildren | None = None,
        truth: Truth | None = None,
        samples: Samples | None = None,
        pace: CompilePace | None = None,
    ) -> None:
        """``compiler``: children that compile for the target, where some were started before; closed with this.

        ``truth``, ``samples``: of the operator, for cascades that share them. ``pace``: that candidates compile at.
        """
        self._pallas = isinstance(target.part, Chip)
        launcher: Launcher = pallas_template() if self._pallas else Spawn()
        super().__init__(operator, target, suite, limits, scratch, launcher, truth)
        self._samples = samples or Samples(operator, station)
        self._station = station
        self._pace = pace
        ahead = not (self._pallas or target.interpreted)
        self._compiler = (compiler or compile_children(target.gpu, scratch)) if ahead else None
        self._due: list[Future[object]] = []
        """Compute the right answers for a candidate's inputs while other processes compile it."""

    def close(self) -> None:
        """Kill the compiling child."""
        super().close()
        if self._compiler is not None:
            self._compiler.close()

    def _judge(
        self, request: Request, found: Findings, on_stage: Callable[[Stage], None]
    ) -> tuple[Stage, Failure | None]:
        steps: list[StageStep] = [DialectStage(request.target.entry), *self._prepared()]
        gates, screen = GateStage(self._station), ScreenStage(self._station, self._samples)
        if not self._pallas:
            wait(self._due)  # of an evaluation that ended early
            self._due = [in_background(gates.prepare, request), in_background(screen.prepare, request)]
            gates.due, screen.due = (future.result for future in self._due)
        race = RaceStage([screen], _descriptors)
        stage, failure = run_steps([*steps, gates, race], request, found, on_stage)
        if failure is None and request.final and request.baseline is None:
            stage, failure = run_steps([self._on_drawn()], request, found, on_stage)
        # what keeps to a part of the suite has no fitness to compare with the champion's
        whole = request.only is None and not request.final
        if failure is None and whole:
            settled = self._settle(request, found)
            failure = settled if isinstance(settled, Failure) else None
            if isinstance(settled, Confirmation):
                found.crowned = settled.accepted
                first = found.figures[0]
                noted = {**first.diagnosis, "confirmation": settled.data()}
                found.figures[0] = first.model_copy(update={"diagnosis": noted})
        found.gates = list(worst_gates(found.gates))
        return stage, failure

    def _prepared(self) -> list[StageStep]:
        """The stages from a source to what the station launches."""
        if self._pallas:
            return [TraceStage(checks=True), CompileStage(compiles=False), HandOverStage()]
        return [PlanStage(self._compiler, self._pace)] if self._compiler is not None else []

    def _on_drawn(self) -> DrawnStage:
        """Large shapes only where operands are made on the device and answers are sampled."""
        if self._target.interpreted:
            return DrawnStage((INTERPRETED, self._gated))
        large = [(LARGE, self._sampled)] if self._samples.sampled else []
        return DrawnStage((MEASURED, self._gated), *large)

    def _gated(self, request: Request, found: Findings) -> Failure | None:
        def kinds(request: Request, place: int) -> Sequence[str]:
            return dealt_kinds(request, request.checked[place], KINDS)

        return run_steps([*self._prepared(), GateStage(self._station, kinds)], request, found, None)[1]

    def _sampled(self, request: Request, found: Findings) -> Failure | None:
        timed = dataclasses.replace(request, measured=request.checked, checked=())
        failure = run_steps(self._prepared(), timed, found, None)[1]
        if failure is not None:
            return failure
        entry = Entry(request.genome, request.source, request.params, plans=found.plans)
        once = measure(self._station, timed, found, self._samples, [entry], (1, 1), {}, kinds=KINDS)
        return once if isinstance(once, Failure) else None

    def _settle(self, request: Request, found: Findings) -> Confirmation | Failure | None:
        """The result against the champion, None where they did not meet; a faster candidate is crowned."""
        entry = Entry(request.genome, request.source, request.params, plans=found.plans)
        for _ in range(int(CLAIM_SECONDS / _WAIT_SECONDS)):
            champion = self._station.champion()
            if champion is not None and (champion.entry.id == entry.id or not _may_be_faster(champion, found)):
                return None
            if self._station.claim(entry.id):
                return self._contend(entry, request, found)
            time.sleep(_WAIT_SECONDS)
        return None

    def _contend(self, entry: Entry, request: Request, found: Findings) -> Confirmation | Failure | None:
        """The same for the holder of the claim, so that nobody else is crowned meanwhile."""
        verdict: Confirmation | Failure | None = None
        crowned = None
        try:
            champion = self._station.champion()
            if champion is not None and _may_be_faster(champion, found):
                fitness = geometric_mean(f.rate for f in found.figures)
                verdict = confirm(self._station, request, found, self._samples, champion, fitness)
            if isinstance(verdict, Confirmation) and verdict.accepted and not self._target.interpreted:
                more = measure(self._station, request, found, self._samples, [entry], (1, 1), {}, kinds=KINDS)
                verdict = more if isinstance(more, Failure) else verdict
            if isinstance(verdict, Confirmation) and champion is not None:
                crowned = dataclasses.replace(champion, screens=verdict.screens)
            if champion is None or (isinstance(verdict, Confirmation) and verdict.accepted):
                fitness = geometric_mean(f.rate for f in found.figures)
                screens = verdict.screens if isinstance(verdict, Confirmation) else 1.0
                crowned = Champion(entry, fitness, tuple(found.figures), screens)
        finally:
            self._station.release(entry.id, crowned)
        return verdict

    def _cpu_seconds(self) -> float:
        if isinstance(self._station, LocalStation):  # the process may have other children
            return time.thread_time() + (self._compiler.cpu_seconds if self._compiler is not None else 0.0)
        return super()._cpu_seconds()

    def _cpu_seconds_beside(self, found: Findings) -> float:
        return found.device_cpu_seconds

    def _worth(self, found: Findings) -> tuple[float, tuple[float, float], dict[str, str]]:
        fitness = geometric_mean(f.rate for f in found.figures)
        champion = self._station.champion()
        if champion is not None and not found.crowned:
            fitness = min(fitness * (1.0 if found.paired else champion.screens), champion.fitness)
        return fitness, interval(found.figures, fitness), _descriptors(found)

    def _toolchain(self, failure: Failure | None) -> dict[str, str]:
        versions = libtpu_simulator.toolchain() if self._pallas else triton_toolchain.toolchain()
        if failure is not None:
            return versions
        try:
            hello = self._station.hello()
        except (OSError, SessionDied):
            return versions
        return {**versions, **{k: str(hello[k]) for k in ("device", "cuda", "torch", "triton") if k in hello}}


def _may_be_faster(champion: Champion, found: Findings) -> bool:
    """Whether a candidate with these screened figures may be faster than the champion."""
    fitness = geometric_mean(f.rate for f in found.figures)
    return fitness * champion.screens >= NEAR * champion.fitness


def _descriptors(found: Findings) -> dict[str, str]:
    """Descriptors of a kernel's cell: its shared memory and the host's time for a launch, binned."""
    result = {}
    if "shared" in found.claimed:
        kibibytes = int(found.claimed["shared"]) / 1024
        low = max((edge for edge in _SHARED_EDGES if edge < kibibytes), default=0)
        result["shared"] = f"{low}+KiB"
    host = host_seconds(found.figures)
    if host > 0:
        result["host"] = "under 60us" if host < 60e-6 else "60us+"
    return result
