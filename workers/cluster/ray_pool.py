"""A pool of Ray actors: on a cluster, on several GPUs, or for more workers than threads of this process can serve.

Each actor evaluates one candidate at a time through the cascade; candidates run only in the actor's confined children.
Requests and replies cross Ray as JSON bytes, so that the driver never unpickles what a worker computed.

An actor gets no job after a fault until it answers a probe. Ray restarts a dead actor, and fails every call made while
it does. Jobs sent in that time would use up their retries within a second, although nothing is wrong with them or with
the other workers.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.targets import Target, load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.child.session import SessionDied
from tilewright.workers.cluster.evaluator import Evaluator
from tilewright.workers.cluster.jobs import Job, PoolGenome, QueuedPool, entries_of, request_for
from tilewright.workers.cluster.pool_folder import PoolFolder
from tilewright.workers.cluster.ray_start import (
    Head,
    first_line,
    keep_lines,
    last_line,
    missing_resource,
    nodes_text,
    start_ray,
    worker_resources,
)
from tilewright.workers.cluster.ray_stations import RemoteStation, ask_comparison, calibrate, start_stations
from tilewright.workers.cluster.settings import PoolUnavailable, evaluator_settings
from tilewright.workers.device.comparison import Comparison
from tilewright.workers.device.station import DeviceRatio

PROBE_SECONDS = 1.0
"""Seconds between two probes of an actor that does not answer."""

RECOVERY_SECONDS = 120.0
"""Seconds that an actor may take to restart before it counts as lost; a cold start took 5 to 20 s on two cores."""


class Service(StrEnum):
    """State of an actor. A ``LOST`` one is still probed, and comes back into service when it answers."""

    IDLE = "idle"
    RESTARTING = "waiting to start"
    LOST = "lost"


@dataclass
class Health:
    """State of one actor and its probe under way; ``call`` is the actor's method that only answers."""

    call: Any
    state: Service = Service.IDLE
    probe: Any = None
    _since: float = 0.0
    _next: float = 0.0

    @property
    def silent(self) -> bool:
        """Whether a probe has no answer yet, not even a failure."""
        return self.probe is not None

    def doubt(self, now: float) -> None:
        """A job ended in a fault of the actor: out of service until a probe is answered."""
        self.state, self.probe, self._since, self._next = Service.RESTARTING, None, now, now

    def look(self, now: float) -> Service:
        """Read the answer to the last probe, or send the next; never waits."""
        if self.state is Service.IDLE:
            return self.state
        if self.probe is None and now >= self._next:
            self.probe = self.call.remote()
        if self.probe is not None and ray.wait([self.probe], timeout=0)[0]:
            self._read(now)
        elif now - self._since > RECOVERY_SECONDS:
            self.state = Service.LOST  # it may have no node to be on
        return self.state

    def _read(self, now: float) -> None:
        answer, self.probe, self._next = self.probe, None, now + PROBE_SECONDS
        try:
            ray.get(answer)
        except ActorUnavailableError:
            if now - self._since > RECOVERY_SECONDS:
                self.state = Service.LOST
        except RayError:
            self.state = Service.LOST
        else:
            self.state = Service.IDLE


class EvaluatorActor:
    """An evaluator in a worker process of Ray."""

    def __init__(self, settings_json: bytes) -> None:
        self._evaluator = Evaluator(settings_json, host=str(ray.util.get_node_ip_address()))

    def evaluate(self, request: bytes, station: ActorHandle | None) -> bytes:
        """See ``Evaluator.evaluate``.

        ``station`` holds the device of a measured target. It comes with every job, the same one for one worker: among
        the arguments of the constructor it would be lost when Ray restarts this actor.
        """
        if not self._evaluator.attached:
            assert station is not None
            self._evaluator.attach(RemoteStation(station, self._evaluator.scales))
        return self._evaluator.evaluate(request)

    def ping(self) -> None:
        """Answers once the actor is constructed, hence able to evaluate."""


@dataclass
class Worker:
    """An actor as its pool sees it, with its job and Ray's reference to the reply; ``began``: monotonic seconds."""

    handle: ActorHandle
    number: int
    health: Health
    job: Job | None = None
    reply: ObjectRef | None = None
    began: float = 0.0


CALIBRATION_SEED = 0
"""Seed of the operands that devices are calibrated on."""


@dataclass
class RayPool(QueuedPool):
    """Implements ``pool.Pool`` with actors of the cluster at ``settings.address``, or of a Ray started here."""

    on_note: Callable[[str], None] | None = None
    """Called with a sentence on each resource that the cluster lacks or loses."""
    scales: Mapping[str, DeviceRatio] = field(default_factory=dict)
    """Scales of the devices of several stations, by device."""
    thread_cpu_seconds: float = 0.0
    """CPU seconds of worker threads: 0, since workers are other processes."""
    _workers: list[Worker] = field(default_factory=list)
    _stations: list[ActorHandle] = field(default_factory=list)
    _head: Head | None = None
    """The head of a cluster that was joined; None for a Ray of this pool."""
    _lost: deque[str] = field(default_factory=deque)
    """Sentences on lost nodes; Ray's thread writes them."""
    _lacked: str = ""
    """What no node had for the workers, when they were looked at last."""
    _folder: PoolFolder | None = None
    """Files of a Ray that is this pool's own."""

    def start(self) -> None:
        """Connect to Ray (start it when no address is given) and create the actors. Raises PoolUnavailable."""
        settings, target = self.settings, load_target(self.settings.target)
        if not settings.address:
            try:
                self._folder = PoolFolder()
            except OSError as error:
                raise PoolUnavailable(f"Ray cannot start: {error}") from error
        keep_lines(target, self._lost.append)
        start_ray(settings.address, settings.count, settings.gpus, self._folder)
        if settings.address:
            self._head = Head.joined()
        scratch = str(self._folder.scratch) if self._folder is not None else None
        if target.measured:
            self._start_stations(target, scratch)
        payload = evaluator_settings(settings, self.scales, scratch)
        asked = worker_resources(settings.target)
        actor: Any = ray.remote(max_restarts=-1, max_task_retries=0, **asked)(EvaluatorActor)
        for number in range(settings.count):
            handle = actor.remote(payload)
            worker = Worker(handle, number, Health(handle.ping))
            if settings.address:  # its place on the cluster may not be there yet
                worker.health.doubt(time.monotonic())
            self._workers.append(worker)
        self._note_nodes()

    def _note_nodes(self) -> None:
        """Tell ``on_note`` the workers' nodes, and the resource that the cluster lacks for them."""
        settings, target = self.settings, load_target(self.settings.target)
        if settings.address and self.on_note is not None:
            self.on_note(f"workers: {settings.count} on {nodes_text(target, settings.address)}")
            if missing := missing_resource(target):
                self.on_note(f"warning: {missing}")

    def _start_stations(self, target: Target, scratch: str | None) -> None:
        """Start a station for each device; several devices are calibrated first. Raises PoolUnavailable."""
        settings = self.settings
        self._stations = start_stations(target, settings.gpus, scratch)
        if len(self._stations) < 2:
            return
        if settings.reference is None:
            raise PoolUnavailable(
                f"{len(self._stations)} devices of target {target.name} need a reference to be compared"
            )
        try:
            self._stations, self.scales = calibrate(
                self._stations, settings.operator, settings.suite, target, settings.reference, CALIBRATION_SEED
            )
        except SessionDied as error:
            raise PoolUnavailable(str(error)) from error

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        """Raises PoolUnavailable where the head of the cluster is gone."""
        if self._head is not None:
            self._head.require()
        while self._lost and self.on_note is not None:
            self.on_note(self._lost.popleft())
        self._assign()
        replies = {w.reply: w for w in self._workers if w.reply is not None}
        probes = [w.health.probe for w in self._workers if w.health.probe is not None]
        finished: list[tuple[int, Evaluation]] = []
        if replies or probes:
            ready, rest = ray.wait([*replies, *probes], num_returns=1, timeout=timeout_seconds)
            if ready and rest:
                ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
            for reply in ready:
                if reply in replies:
                    finished += self._collect(replies[reply])
            finished += self._reap_hung()
        elif self._queue and self._workers:  # every worker rests until its next probe
            time.sleep(min(timeout_seconds, PROBE_SECONDS))
        self._assign()
        return finished

    def activity(self) -> list[str]:
        now = time.monotonic()
        doing = (f"candidate {w.job.index}, {now - w.began:.0f} s" if w.job else w.health.state for w in self._workers)
        return [f"worker {w.number}: {text}" for w, text in zip(self._workers, doing, strict=True)]

    def compare(
        self, genomes: Sequence[PoolGenome], seed: int, only: Mapping[str, Collection[str]] | None = None
    ) -> Comparison:
        operator = self.settings.operator
        workloads = load_operator(operator).suites[self.settings.suite].workloads
        try:
            return ask_comparison(self._stations[0], operator, workloads, entries_of(genomes, only), seed)
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

    def _assign(self) -> None:
        """Hand the queue to idle workers in service; with every worker lost, their errors are the answer.

        While no node has a place for them nobody gets a job, since it would fail unseen; from when one has, they have
        their time to restart.
        """
        now = time.monotonic()
        served = any(worker.health.state is Service.IDLE for worker in self._workers)
        states = [worker.health.look(now) for worker in self._workers]
        if Service.IDLE in states and not served:  # after a loss of all, or at the start
            self._note_nodes()
        lost = bool(states) and all(state is Service.LOST for state in states)
        if lost:
            lacked, self._lacked = self._lacked, missing_resource(load_target(self.settings.target))
            lost = not (lacked or self._lacked)
            for worker in () if lost else self._workers:
                worker.health.doubt(now)
        for worker, state in zip(self._workers, states, strict=True):
            failing = lost and not worker.health.silent
            if worker.job is None and self._queue and (failing or state is Service.IDLE):
                worker.job = self._queue.popleft()
                worker.began = time.monotonic()
                request = request_for(worker.job)
                station = self._stations[worker.number % len(self._stations)] if self._stations else None
                worker.reply = worker.handle.evaluate.remote(request, station)

    def _collect(self, worker: Worker) -> list[tuple[int, Evaluation]]:
        job = worker.job
        assert job is not None and worker.reply is not None
        try:
            reply: Any = ray.get(worker.reply)
            evaluation = Evaluation.model_validate_json(reply)
        except RayError as error:
            died = isinstance(error, RayActorError)
            why = f"died: {first_line(error)}" if died else f"failed: {last_line(error)}"
            evaluation = self._fault(job, f"worker {worker.number} {why}")
            for other in self._workers:  # its node may be gone, with those that have no job to fail
                if other is worker or other.job is None:
                    other.health.doubt(time.monotonic())
        worker.job = worker.reply = None
        return self._settle(job, evaluation)

    def _reap_hung(self) -> list[tuple[int, Evaluation]]:
        finished = []
        for worker in self._workers:
            job = worker.job
            if job is None or time.monotonic() - worker.began < self.settings.deadline_seconds(job.scope):
                continue
            ray.kill(worker.handle, no_restart=False)
            worker.health.doubt(time.monotonic())
            worker.job = worker.reply = None
            evaluation = self._fault(job, f"worker {worker.number} did not answer in time")
            finished += self._settle(job, evaluation)
        return finished
