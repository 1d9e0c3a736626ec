"""A Ray pool of evaluator actors, local or on a cluster.

Each actor evaluates one candidate at a time through the cascade; candidate code runs only in the
actor's sandboxed children. Requests and replies cross Ray as JSON bytes, so that the driver never
unpickles what a worker computed.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from threadpoolctl import threadpool_limits

from tilewright.fitness.chips import Chip
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict
from tilewright.fitness.race import Race
from tilewright.fitness.targets import Target, load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Scope
from tilewright.workers.child.session import SessionDied
from tilewright.workers.cluster.actor_health import PROBE_SECONDS, Health, Service
from tilewright.workers.cluster.artefacts import Told, news_of
from tilewright.workers.cluster.evaluating import LAGGING, Evaluating, HeadStart
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
from tilewright.workers.device.station import DeviceRatio, Entry, Station
from tilewright.workers.device.warm import WarmDevice
from tilewright.workers.request import Limits

log = logging.getLogger(__name__)


RETRIES = 2
"""Times a job is tried again, elsewhere if possible, after an infrastructure fault."""

CALIBRATION_SEED = 0
"""Of the operands that devices are calibrated on."""

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


class EvaluatorActor(Evaluating):
    """An evaluator in a process of Ray's."""

    def _address(self) -> str:
        return str(ray.util.get_node_ip_address())

    def _station(self, handle: Any, scales: Mapping[str, DeviceRatio]) -> Station | None:
        return None if handle is None else RemoteStation(handle, scales)

    def ping(self) -> None:
        """Answers once the actor is constructed, hence able to evaluate."""


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
    """Implements the search's ``Evaluator`` over Ray actors. ``start`` before use, ``close`` after.

    ``open`` before ``start`` lets a first job be submitted that is judged in this process while Ray starts.
    """

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
    _early: HeadStart | None = None
    _one_thread: threadpool_limits | None = None
    device: WarmDevice | None = None
    """Of a measured target, where one was started before the campaign; it is closed with this."""
    judged_here: float = 0.0
    """CPU seconds of this process that the first job's evaluation has counted."""

    def open(self) -> None:
        """Be ready for a first job, on this machine and where one device or none is needed. Raises PoolUnavailable."""
        if self.settings.address or not _judged_here(load_target(self.settings.target), self.settings.gpus):
            if self.device is not None:
                self.device.close()
            return
        self._folder = own_folder()
        # Ray forks this process for each of its own: OpenBLAS hangs when that comes amid a product on several threads
        self._one_thread = threadpool_limits(limits=1, user_api="blas")
        try:
            self._early = HeadStart(self._told(str(self._folder.scratch)), self.device)
        except OSError as error:
            raise PoolUnavailable(f"no process can be started: {error}") from error

    def start(self) -> None:
        """Connect to Ray (start it when no address is given) and create the actors."""
        if self._folder is None and not self.settings.address:
            self._folder = own_folder()
        try:
            start_ray(self.settings.address, self.settings.count, self.settings.gpus, self._folder)
        finally:
            self._let_threads()
        # One actor a core by custom count: the children do the work, the actor itself only waits.
        placed = target_resource(self.settings.target)
        actor: Any = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0, resources=placed)(
            EvaluatorActor
        )
        scratch = str(self._folder.scratch) if self._folder else None
        target = load_target(self.settings.target)
        if target.measured:
            self._start_stations(target, scratch)
        payload = self._told(scratch)
        for number in range(self.settings.count):
            handle = actor.remote(payload)
            worker = _Worker(handle, number, Health(handle.ping))
            if self.settings.address:  # its place on the cluster may not be there yet
                worker.health.doubt(time.monotonic())
            self._workers.append(worker)
        self._assign()

    def _let_threads(self) -> None:
        if self._one_thread is not None:
            self._one_thread.restore_original_limits()
            self._one_thread = None

    def _told(self, scratch: str | None) -> bytes:
        """What an evaluator is made of."""
        scales = {device: asdict(scale) for device, scale in self.scales.items()}
        return json.dumps(
            {**asdict(self.settings), "reference": None, "scales": scales, "scratch": scratch}
        ).encode()

    @property
    def slots(self) -> int:
        return self.settings.count

    def submit(self, job: WorkItem) -> None:
        if self._early is not None and self._early.item is None and not self._workers:
            self._early.begin(job, request_for(job, Told()))
            return
        self._queue.append(job)
        self._assign()

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        """Finished jobs; an infrastructure fault is retried here and only its last failure comes back."""
        if early := self._collect_early():
            return early
        self._assign()
        busy = {w.reply: w for w in self._workers if w.reply is not None}
        probes = [w.health.probe for w in self._workers if w.health.probe is not None]
        if not busy and not probes:
            if self._early is not None:
                self._early.wait(timeout_seconds)
            elif self._queue:  # every worker rests until its next probe
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
        lines = [
            f"worker {w.number}: candidate {w.item.index}, {now - w.began:.0f} s"
            if w.item
            else f"worker {w.number}: {w.health.state}"
            for w in self._workers
        ]
        if self._early is not None and self._early.item is not None:
            lines.insert(0, f"here: candidate {self._early.item.index}, {now - self._early.began:.0f} s")
        return lines

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
        self._end_early()
        self._let_threads()
        if self.device is not None:
            self.device.close()
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
        # the job that was begun before there were workers has the place of the last of them
        placed = self._workers[: -1 if self._early is not None and len(self._workers) > 1 else None]
        for worker, state in zip(placed, states, strict=False):
            failing = lost and not worker.health.silent
            if worker.item is None and self._queue and (failing or state is Service.IDLE):
                worker.item = self._queue.popleft()
                worker.began = time.monotonic()
                request = request_for(worker.item, worker.told)
                worker.reply = worker.handle.evaluate.remote(request, self._station_of(worker))

    def _collect_early(self) -> list[tuple[int, Evaluation]]:
        """The job that was judged in this process, once it is done or takes too long; a worker tries it again then."""
        early = self._early
        if early is None or (early.item is not None and not early.wait(0) and not self._is_hung(early)):
            return []
        self._end_early()
        if early.item is None:
            return []
        if (champion := early.champion()) is not None:
            for station in self._stations:
                station.inherit.remote(champion)
        evaluation = early.evaluation() or self._fault(early.item, "the first job did not answer")
        return self._settle(early.item, evaluation)

    def _is_hung(self, early: HeadStart) -> bool:
        return time.monotonic() - early.began >= self.settings.deadline_seconds(early.item.scope)

    def _end_early(self) -> None:
        if self._early is not None:
            self._early.close()
            self.judged_here += self._early.cpu_seconds
            self._early = None

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


def _judged_here(target: Target, gpus: int) -> bool:
    """Whether a first job can be judged before there are workers: several devices are compared first."""
    if target.kind is FigureKind.MODELLED:
        return True
    return target.measured and not isinstance(target.part, Chip) and gpus <= 1


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
