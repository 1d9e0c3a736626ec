"""A Ray pool of evaluator actors, local or on a cluster.

Each actor evaluates one candidate at a time through the cascade; candidate code runs only in the
actor's sandboxed children. Requests and replies cross Ray as JSON bytes, so that the driver never
unpickles what a worker computed.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from tilewright.fitness.descriptors import describe
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict
from tilewright.fitness.race import Race
from tilewright.fitness.targets import Target, load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Scope
from tilewright.workers.cascade.compile_only import CompileOnlyCascade
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.child.session import SessionDied
from tilewright.workers.cluster.actor_health import PROBE_SECONDS, Health, Service
from tilewright.workers.cluster.artefacts import Heard, Told, news_of
from tilewright.workers.cluster.local_ray import RayFolder
from tilewright.workers.cluster.ray_start import (
    PoolUnavailable,
    first_line,
    own_folder,
    start_ray,
    target_resource,
)
from tilewright.workers.cluster.station_actor import RemoteStation, ask_comparisons, calibrate, start_stations
from tilewright.workers.device.comparison import Comparison
from tilewright.workers.device.station import DeviceRatio, Entry
from tilewright.workers.request import GIB, Limits

log = logging.getLogger(__name__)


RETRIES = 2
"""Times a job is tried again, elsewhere if possible, after an infrastructure fault."""

CALIBRATION_SEED = 0
"""Of the operands that devices are calibrated on."""

LAGGING = b"lagging"
"""The answer of a worker that was never told what the request takes for granted."""

DEADLINE_SLACK_SECONDS = 30.0
"""Over the sum of the stages' own limits, after which the actor itself is taken for hung."""


class _Genome(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


class WorkItem(Protocol):
    """The part of a job that the pool reads (see ``evolve.campaign.evaluator.Job``)."""

    @property
    def index(self) -> int: ...
    @property
    def genome(self) -> _Genome: ...
    @property
    def seed(self) -> int: ...
    @property
    def known_artefacts(self) -> Collection[str]: ...
    @property
    def best(self) -> float: ...
    @property
    def scope(self) -> Scope: ...
    @property
    def baseline(self) -> str | None: ...
    @property
    def race(self) -> Race | None: ...
    @property
    def only(self) -> Collection[str] | None: ...


@dataclass(frozen=True)
class PoolSettings:
    """Settings of a pool: what every worker evaluates, and within which limits (seconds, GiB) of one child process."""

    operator: str
    target: str
    suite: str
    descriptors: tuple[str, ...]
    check_seconds: float
    measure_seconds: float
    memory_gib: float
    count: int
    address: str | None = None
    gpus: int = 0
    reference: Entry | None = None
    """What several devices of a measured target are calibrated with."""

    def deadline_seconds(self, scope: Scope) -> float:
        """Wall clock of one job, after which its worker is taken for hung: three children at their limits."""
        factor = Limits().final_factor if scope is Scope.FINAL else 1.0
        return factor * (2 * self.check_seconds + self.measure_seconds) + DEADLINE_SLACK_SECONDS


class EvaluatorActor:
    """Runs in a Ray worker process; owns the cascade for one (operator, target, suite)."""

    def __init__(self, settings_json: bytes) -> None:
        settings = json.loads(settings_json)
        self._operator = load_operator(settings["operator"])
        self._descriptors = settings["descriptors"]
        memory = int(settings["memory_gib"] * GIB)
        limits = Limits(
            trace=ChildLimits(settings["check_seconds"], memory),
            compile=ChildLimits(settings["measure_seconds"], memory),
        )
        suite = self._operator.suites[settings["suite"]]
        target = load_target(settings["target"])
        scratch = Path(settings["scratch"]) if settings["scratch"] else None
        scales = {name: DeviceRatio(**scale) for name, scale in settings["scales"].items()}

        def cascade(station: ActorHandle | None) -> ModelledCascade | CompileOnlyCascade | MeasuredCascade:
            if station is not None:
                remote = RemoteStation(station, scales)
                return MeasuredCascade(self._operator, target, suite, remote, limits, scratch=scratch)
            kind = CompileOnlyCascade if target.compile_only else ModelledCascade
            return kind(self._operator, target, suite, limits, scratch=scratch)

        self._made = cascade
        self._cascade = None if target.measured else cascade(None)
        self._heard = Heard()
        self._name = f"{ray.util.get_node_ip_address()}:{os.getpid()}"

    def ping(self) -> None:
        """Answers once the actor is constructed, hence able to evaluate."""

    def evaluate(self, request: bytes, station: ActorHandle | None) -> bytes:
        """One job as JSON, in and out (see ``request_for`` and ``Evaluation``); or ``LAGGING``.

        ``station`` holds the device of a measured target. It comes with every job, the same one for one worker: among
        the arguments of the constructor it would be lost when Ray restarts this actor.
        """
        if self._cascade is None:
            self._cascade = self._made(station)
        job = json.loads(request)
        known = self._heard.hear(job["known_artefacts"])
        if known is None:
            return LAGGING
        scope = Scope(job["scope"])
        baseline = self._operator.kernels[job["baseline"]] if job["baseline"] else None
        evaluation = self._cascade.evaluate(
            job["genome"],
            job["source"],
            job["params"],
            seed=job["seed"],
            scope=scope,
            baseline=baseline,
            known_artefacts=known,
            best=job["best"],
            race=Race.from_data(job["race"]) if job["race"] else None,
            only=job["only"],
        )
        named = {name: str(job["params"][name]) for name in self._descriptors if name in job["params"]}
        scheduled = describe(evaluation.workloads, self._descriptors)
        changes = {
            "worker": self._name,
            "descriptors": {**evaluation.descriptors, **scheduled, **named},
        }
        return evaluation.model_copy(update=changes).model_dump_json().encode()


@dataclass
class _Worker:
    handle: ActorHandle
    number: int
    health: Health
    told: Told = field(default_factory=Told)
    item: WorkItem | None = None
    reply: Any = None
    began: float = 0.0


@dataclass
class RayPool:
    """Implements the search's ``Evaluator`` over Ray actors. ``start`` before use, ``close`` after."""

    settings: PoolSettings
    _workers: list[_Worker] = field(default_factory=list)
    _stations: list[ActorHandle] = field(default_factory=list)
    _queue: deque[WorkItem] = field(default_factory=deque)
    _attempts: dict[int, int] = field(default_factory=dict)
    retried: int = 0
    scales: dict[str, DeviceRatio] = field(default_factory=dict)
    """Of the devices of several stations, by device."""
    _folder: RayFolder | None = None
    """Files of a Ray that is this pool's own."""

    def start(self) -> None:
        """Connect to Ray (start it when no address is given) and create the actors."""
        self._folder = None if self.settings.address else own_folder()
        start_ray(self.settings.address, self.settings.count, self.settings.gpus, self._folder)
        # One actor a core by custom count: the children do the work, the actor itself only waits.
        placed = target_resource(self.settings.target)
        actor: Any = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0, resources=placed)(
            EvaluatorActor
        )
        scratch = str(self._folder.scratch) if self._folder else None
        target = load_target(self.settings.target)
        if target.measured:
            self._start_stations(target, scratch)
        scales = {device: asdict(scale) for device, scale in self.scales.items()}
        told = {**asdict(self.settings), "reference": None, "scales": scales, "scratch": scratch}
        payload = json.dumps(told).encode()
        for number in range(self.settings.count):
            handle = actor.remote(payload)
            worker = _Worker(handle, number, Health(handle.ping))
            if self.settings.address:  # its place on the cluster may not be there yet
                worker.health.doubt(time.monotonic())
            self._workers.append(worker)

    @property
    def slots(self) -> int:
        return self.settings.count

    def submit(self, job: WorkItem) -> None:
        self._queue.append(job)
        self._assign()

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        """Finished jobs; an infrastructure fault is retried here and only its last failure comes back."""
        self._assign()
        busy = {w.reply: w for w in self._workers if w.reply is not None}
        probes = [w.health.probe for w in self._workers if w.health.probe is not None]
        if not busy and not probes:
            if self._queue:  # every worker rests until its next probe
                time.sleep(min(timeout_seconds, PROBE_SECONDS))
            return []
        ready, rest = ray.wait([*busy, *probes], num_returns=1, timeout=timeout_seconds)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        finished = []
        for reply in ready:
            if reply in busy:
                finished += self._collect(busy[reply])
        finished += self._reap_hung()
        self._assign()
        return finished

    def activity(self) -> list[str]:
        now = time.monotonic()
        return [
            f"worker {w.number}: candidate {w.item.index}, {now - w.began:.0f} s"
            if w.item
            else f"worker {w.number}: {w.health.state}"
            for w in self._workers
        ]

    def compare(
        self, genomes: Sequence[_Genome], seed: int, only: Mapping[str, Collection[str]] | None = None
    ) -> Comparison:
        """Genomes side by side on the first device. Raises PoolUnavailable when the station is gone.

        ``only``: by genome id, the workloads it runs on; those it does not name run on all.
        """
        return self._compare(self._stations[:1], genomes, seed, only or {})[0]

    def compare_on_all(self, genomes: Sequence[_Genome], seed: int) -> list[Comparison]:
        """The same on every device at once."""
        return self._compare(self._stations, genomes, seed, {})

    def _compare(
        self,
        stations: Sequence[ActorHandle],
        genomes: Sequence[_Genome],
        seed: int,
        only: Mapping[str, Collection[str]],
    ) -> list[Comparison]:
        suite = load_operator(self.settings.operator).suites[self.settings.suite]
        kept = {name: frozenset(shapes) for name, shapes in only.items()}
        entries = [Entry(g.id, g.source, dict(g.params), kept.get(g.id)) for g in genomes]
        try:
            return ask_comparisons(stations, self.settings.operator, suite.workloads, entries, seed)
        except SessionDied as error:
            raise PoolUnavailable(str(error)) from error

    def close(self) -> None:
        """Kill the actors (their children die with them), leave Ray, and remove the files of one of our own."""
        for handle in [*(worker.handle for worker in self._workers), *self._stations]:
            ray.kill(handle)
        self._workers, self._stations = [], []
        ray.shutdown(wait_for_processes=self._folder is not None)
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _station_of(self, worker: _Worker) -> ActorHandle | None:
        return self._stations[worker.number % len(self._stations)] if self._stations else None

    def _start_stations(self, target: Target, scratch: str | None) -> None:
        """One for each device; several devices are put on one scale before anything else."""
        settings, made = self.settings, start_stations(target, self.settings.gpus, scratch)
        self._stations = made
        if len(made) < 2:
            return
        if settings.reference is None:
            raise PoolUnavailable(
                f"{len(made)} devices of target {target.name} need a reference to be compared"
            )
        try:
            self._stations, self.scales = calibrate(
                made, settings.operator, settings.suite, target, settings.reference, CALIBRATION_SEED
            )
        except SessionDied as error:
            raise PoolUnavailable(str(error)) from error

    # -- one worker ------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Hand the queue to idle workers in service; with every worker lost, their errors are the answer.

        One that is silent has no place to be on, and gets nothing: a node for it may join.
        """
        now = time.monotonic()
        states = [worker.health.look(now) for worker in self._workers]
        lost = all(state is Service.LOST for state in states)
        for worker, state in zip(self._workers, states, strict=True):
            failing = lost and not worker.health.silent
            if worker.item is None and self._queue and (failing or state is Service.IDLE):
                worker.item = self._queue.popleft()
                worker.began = time.monotonic()
                request = request_for(worker.item, worker.told)
                worker.reply = worker.handle.evaluate.remote(request, self._station_of(worker))

    def _collect(self, worker: _Worker) -> list[tuple[int, Evaluation]]:
        item = worker.item
        assert item is not None
        try:
            reply: Any = ray.get(worker.reply)
            if reply == LAGGING:
                worker.told, worker.item, worker.reply = Told(), None, None
                self._queue.appendleft(item)
                return []
            evaluation = Evaluation.model_validate_json(reply)
        except RayError as error:
            how = "died" if isinstance(error, RayActorError) else "failed"
            evaluation = self._fault(item, f"worker {worker.number} {how}: {first_line(error)}")
            worker.health.doubt(time.monotonic())
        worker.item = worker.reply = None
        return self._settle(item, evaluation)

    def _settle(self, item: WorkItem, evaluation: Evaluation) -> list[tuple[int, Evaluation]]:
        if evaluation.verdict is Verdict.INFRA_ERROR and self._attempts.get(item.index, 0) < RETRIES:
            self._attempts[item.index] = self._attempts.get(item.index, 0) + 1
            self.retried += 1
            log.warning("job %d is tried again: %s", item.index, evaluation.reason)
            self._queue.append(item)
            return []
        return [(item.index, evaluation)]

    def _reap_hung(self) -> list[tuple[int, Evaluation]]:
        finished = []
        for worker in self._workers:
            item = worker.item
            if item is None or time.monotonic() - worker.began < self.settings.deadline_seconds(item.scope):
                continue
            ray.kill(worker.handle, no_restart=False)
            worker.health.doubt(time.monotonic())
            worker.item = worker.reply = None
            evaluation = self._fault(item, f"worker {worker.number} did not answer in time")
            finished += self._settle(item, evaluation)
        return finished

    def _fault(self, item: WorkItem, reason: str) -> Evaluation:
        return Evaluation(
            genome=item.genome.id,
            target=self.settings.target,
            suite=self.settings.suite,
            stage=Stage.DIALECT,
            verdict=Verdict.INFRA_ERROR,
            reason=reason,
        )


def request_for(item: WorkItem, told: Told) -> bytes:
    """A job for a worker that was told so much; ``told`` is brought up to date."""
    return json.dumps(
        {
            "genome": item.genome.id,
            "source": item.genome.source,
            "params": dict(item.genome.params),
            "seed": item.seed,
            "scope": item.scope.value,
            "baseline": item.baseline,
            "known_artefacts": news_of(item.known_artefacts, told),
            "best": item.best,
            "race": item.race and item.race.data(),
            "only": None if item.only is None else sorted(item.only),
        }
    ).encode()
