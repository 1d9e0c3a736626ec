"""The base of all cascades: makes a request of a candidate, and an evaluation of what its stages find."""

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from tilewright.fitness.evaluation import Evaluation, Stage, Verdict
from tilewright.fitness.race import Race
from tilewright.fitness.targets import Target
from tilewright.seeds.operator import Operator, Scope, SeedKernel, Suite, Workload, in_order
from tilewright.workers.child.launch import Launcher, Template, cpu_seconds
from tilewright.workers.child.run_once import temporary_folder
from tilewright.workers.child.session import SessionDied
from tilewright.workers.request import Failure, Findings, Limits, Request, Truth, one_line

LOG_BYTES = 32 << 10


class Cascade:
    """Evaluates genomes of one operator on one target, one at a time.

    Not safe for several threads; make one per worker. Subclasses run the stages (``_judge``) and say what a candidate
    that passed is worth (``_worth``).
    """

    def __init__(
        self,
        operator: Operator,
        target: Target,
        suite: Suite,
        limits: Limits | None,
        scratch: Path | None,
        launcher: Launcher,
        truth: Truth | None = None,
    ) -> None:
        """``truth``: of the operator, for cascades that share it."""
        self._operator = operator
        self._truth = truth or Truth(operator)
        self._target = target
        self._suite = suite
        self._limits = limits or Limits()
        self._scratch = scratch
        self._launcher = launcher
        self._worker = socket.gethostname()

    def evaluate(
        self,
        genome_id: str,
        source: str,
        params: Mapping[str, Any],
        *,
        seed: int,
        scope: Scope = Scope.SUITE,
        baseline: SeedKernel | None = None,
        known_artefacts: Collection[str] = (),
        best: float = 0.0,
        race: Race | None = None,
        only: Collection[str] | None = None,
        within: tuple[str, ...] = (),
    ) -> Evaluation:
        """Judge one genome.

        A ``baseline`` answers to its own inputs and is held to no gate. ``seed`` makes the gates' inputs. What compiles
        to one of ``known_artefacts`` is a duplicate. What has a fitness over ``best`` is checked harder (see the
        cascade); what falls behind in a ``race`` is stopped. ``only``: ids of the shapes to keep to, timed and checked
        ones. Raises ValueError where it leaves nothing to time. ``within``: see ``Request``.
        """
        kept = None if only is None else frozenset(only)
        measured = _kept_workloads(self._suite.timed(scope), kept)
        if not measured:
            raise ValueError(f"none of the {scope} workloads is among {sorted(kept or ())}")
        spent, found = _Spending(self._cpu_seconds), Findings()
        stage, failure = Stage.DIALECT, None
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
                    measured=measured,
                    checked=() if baseline else _kept_workloads(self._suite.check, kept),
                    baseline=baseline,
                    final=scope is Scope.FINAL,
                    folder=folder,
                    launcher=self._launcher,
                    is_known=lambda artefact: "an earlier genome" if artefact in known_artefacts else None,
                    genome=genome_id,
                    best=best,
                    race=race,
                    only=kept,
                    within=within,
                )
                stage, failure = self._judge(request, found, spent.enter)
        except (OSError, SessionDied) as error:
            failure = Failure(Verdict.INFRA_ERROR, one_line(f"{type(error).__name__}: {error}"))
        return self._evaluation(genome_id, stage, failure, found, spent)

    def close(self) -> None:
        """Kill the children; an evaluation under way in another thread fails."""
        if isinstance(self._launcher, Template):
            self._launcher.close()

    def _judge(
        self, request: Request, found: Findings, on_stage: Callable[[Stage], None]
    ) -> tuple[Stage, Failure | None]:
        """The stage that decided, and why the candidate failed there (None: it passed)."""
        raise NotImplementedError

    def _cpu_seconds(self) -> float:
        """CPU seconds of all jobs so far, of this thread and its children; other threads may do other things."""
        if isinstance(self._launcher, Template):
            return time.thread_time() + self._launcher.cpu_seconds
        return cpu_seconds(os.getpid())

    def _cpu_seconds_beside(self, found: Findings) -> float:
        """CPU seconds of an evaluation's jobs that ``_cpu_seconds`` leaves out."""
        return 0.0

    def _worth(self, found: Findings) -> tuple[float, tuple[float, float], dict[str, str]]:
        """Fitness, its 95 % interval and the descriptors of a candidate that passed."""
        raise NotImplementedError

    def _toolchain(self, failure: Failure | None) -> dict[str, str]:
        raise NotImplementedError

    def _evaluation(
        self, genome: str, stage: Stage, failure: Failure | None, found: Findings, spent: "_Spending"
    ) -> Evaluation:
        fitness, interval, descriptors = self._worth(found) if failure is None else (None, None, {})
        logs = [failure.log, *found.logs] if failure else []
        wall, seconds = spent.end(found.device_seconds, self._cpu_seconds_beside(found))
        last = failure.stage or stage if failure else stage
        return Evaluation(
            genome=genome,
            target=self._target.name,
            suite=self._suite.name,
            stage=last,
            verdict=failure.verdict if failure else Verdict.OK,
            reason=failure.reason if failure else "",
            fitness=fitness,
            interval=interval,
            workloads=tuple(found.figures),
            gates=tuple(found.gates),
            drawn=tuple(found.drawn),
            outside=tuple(found.outside),
            projected=found.projected,
            descriptors=descriptors,
            compiled=found.compiled,
            artefact=found.artefact,
            toolchain=self._toolchain(failure),
            log="\n".join(text for text in logs if text)[-LOG_BYTES:],
            wall_seconds=wall,
            spent=seconds,
            worker=self._worker,
            reached=self._target.reached if last in (Stage.CHECK, Stage.MEASURE) else None,
        )


class _Spending:
    """Clock of one evaluation: its seconds by stage."""

    def __init__(self, processors: Callable[[], float]) -> None:
        self._processors = processors
        self._began = self._entered = time.monotonic()
        self._cpu = processors()
        self._stage: Stage | None = None
        self._seconds: dict[str, float] = {}

    def enter(self, stage: Stage) -> None:
        self._leave()
        self._stage = stage

    def end(self, device: float, beside: float = 0.0) -> tuple[float, dict[str, float]]:
        """(seconds of wall clock, seconds by stage, ``device`` and ``cpu``); CPU seconds ``beside`` are added."""
        self._leave()
        self._seconds["cpu"] = max(0.0, self._processors() - self._cpu) + beside
        if device > 0.0:
            self._seconds["device"] = device
        return time.monotonic() - self._began, {k: round(v, 4) for k, v in self._seconds.items()}

    def _leave(self) -> None:
        now = time.monotonic()
        if self._stage is not None:
            name = self._stage.value
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._entered
        self._entered = now


def _kept_workloads(workloads: tuple[Workload, ...], only: frozenset[str] | None) -> tuple[Workload, ...]:
    return in_order(w for w in workloads if only is None or w.id in only)
