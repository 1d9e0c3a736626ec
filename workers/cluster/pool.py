"""A Ray pool of evaluator actors, local or on a cluster.

Each actor evaluates one candidate at a time through the cascade; candidate code runs only in the
actor's sandboxed children. Requests and replies cross Ray as JSON bytes, so that the driver never
unpickles what a worker computed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from threadpoolctl import threadpool_limits

from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.child.session import SessionDied
from tilewright.workers.cluster.actor_health import PROBE_SECONDS, Health, Service
from tilewright.workers.cluster.artefacts import Told
from tilewright.workers.cluster.crew import Crew, Muster, compare_on, made_crew, told
from tilewright.workers.cluster.evaluating import LAGGING
from tilewright.workers.cluster.evaluator_actor import Warming, Worker
from tilewright.workers.cluster.head_start import HeadStart, Seat
from tilewright.workers.cluster.local_ray import RayFolder
from tilewright.workers.cluster.ray_start import (
    PoolUnavailable,
    first_line,
    own_folder,
)
from tilewright.workers.cluster.retries import Retries
from tilewright.workers.cluster.settings import PoolSettings
from tilewright.workers.cluster.work import WorkGenome, WorkItem, entries_of, request_for
from tilewright.workers.device.comparison import Comparison
from tilewright.workers.device.station import DeviceRatio
from tilewright.workers.device.warm import WarmDevice, judged_here, warm_device

SEATS, MOST_SEATS = 12, 16
"""Jobs for one GPU that are judged at once in this process while Ray starts; and where they are all that there may be,
so that Ray is not needed."""

FEW_SEATS = 4
"""The same where nothing is measured: judging takes a quarter of its children's time, and of one interpreter."""

HEAD_LOOK_SECONDS = 0.02
"""How long an answer of theirs may lie while workers are waited for."""

FIRST_SECONDS = 8.0
"""How long Ray's start waits for a first verdict, which it would hold up, where one device measures."""

LEAVE_SECONDS = 1.0
"""How long a process that ends waits for an orderly end of what it started."""

WARMING_LOOK_SECONDS = 0.1
"""Between two looks at workers that get ready meanwhile."""


@dataclass
class RayPool:
    """Implements the search's ``Evaluator`` over Ray actors. ``start`` before use, ``close`` after.

    After ``open`` jobs may be submitted at once: they are judged in this process until workers are ready, which
    ``start_beside`` starts meanwhile.
    """

    settings: PoolSettings
    _workers: list[Worker] = field(default_factory=list)
    _stations: list[ActorHandle] = field(default_factory=list)
    _queue: deque[WorkItem] = field(default_factory=deque)
    scales: Mapping[str, DeviceRatio] = field(default_factory=dict)
    """Of the devices of several stations, by device."""
    _folder: RayFolder | None = None
    """Files of a Ray that is this pool's own."""
    _looked: float = 0.0
    workers_ready: bool = False
    """Whether workers have taken over from this process."""
    _head: HeadStart | None = None
    _first_seed: int | None = None
    _muster: Muster = field(default_factory=Muster)
    _starting: futures.Future[Crew] | None = None
    _one_thread: threadpool_limits | None = None
    device: WarmDevice | None = None
    """Of a measured target, where one was started before the campaign; it is closed with this."""
    say: Callable[[str], None] | None = None
    """Told what the cluster lacks, so that nobody waits unaware."""
    _judged: float = 0.0
    """CPU seconds of a head start that has ended."""
    _retries: Retries = field(init=False)

    def __post_init__(self) -> None:
        self._retries = Retries(self.settings)

    def open(self) -> None:
        """Be ready for first jobs, on this machine and where one device or none is needed. Raises PoolUnavailable."""
        settings, target = self.settings, load_target(self.settings.target)
        if settings.address or not judged_here(target, settings.gpus):
            if self.device is not None:
                self.device.close()
                self.device = None
            return
        self._folder = own_folder()
        # Ray forks this process for each of its own: OpenBLAS hangs when that comes amid a product on several threads
        self._one_thread = threadpool_limits(limits=1, user_api="blas")
        try:
            if target.measured and self.device is None:
                self.device = warm_device(target, Path(self._folder.scratch))
            seats = _seats(settings, measured=target.measured)
            scratch = str(self._folder.scratch)
            self._head = HeadStart(told(settings, {}, scratch, self._compiler), seats, self.device)
        except OSError as error:
            raise PoolUnavailable(f"no process can be started: {error}") from error

    def start(self) -> None:
        """Connect to Ray (start it when no address is given) and create the actors. Raises PoolUnavailable."""
        self.start_beside()
        self._take_workers(wait=True)

    def start_for_few(self) -> None:
        """As ``start``, for a few jobs: one device of this machine is asked from this process, which waits for no Ray.

        Should this process fail in that, Ray is started after all. Raises PoolUnavailable.
        """
        if self.settings.gpus == 1 and not self.settings.address:
            self.open()
        if self._head is None:
            self.start()

    def start_more(self) -> None:
        """``start_beside``, unless this process judges as many jobs at once as there would be workers."""
        head = self._head
        if head is None or head.seats < self.settings.count:
            self.start_beside()

    def start_beside(self) -> None:
        """Begin with that in another thread. Where it fails, ``wait`` raises PoolUnavailable."""
        if self._folder is None and not self.settings.address:
            self._folder = own_folder()
        patience = FIRST_SECONDS if self._head is not None and self._head.measures else 0.0
        self._starting = self._muster.begin(self._made_workers, patience)

    def _made_workers(self) -> Crew:
        return made_crew(self.settings, self._folder, self._compiler)

    def _take_workers(self, *, wait: bool = False) -> None:
        """Those that ``start_beside`` has made, once it has. Raises PoolUnavailable where it failed."""
        if self._starting is None or not (wait or self._starting.done()):
            return
        made, self._starting = self._starting, None
        self._muster.hurry()
        futures.wait([made])
        self._let_threads()
        crew = made.result()
        if crew.lacking and self.say is not None:
            self.say(crew.lacking)
        self._workers, self._stations, self.scales = crew.workers, crew.stations, crew.scales
        if self._head is not None:  # jobs are judged here until they are as ready as this process is
            for worker in self._workers:
                worker.health = Health(
                    Warming(worker.handle, self._station_of(worker), self._first_seed or 0)
                )
                worker.health.doubt(time.monotonic())
        self._assign()

    def _let_threads(self) -> None:
        """Where neither Ray starts nor jobs are judged here, each in a thread of its own.

        In the thread that asked for one: from another it has no effect.
        """
        if self._one_thread is not None and self._starting is None and self._head is None:
            self._one_thread.restore_original_limits()
            self._one_thread = None

    @property
    def _compiler(self) -> str | None:
        return self.device.address if self.device is not None else None

    @property
    def judged_here(self) -> float:
        """CPU seconds of this process that the evaluations made in it have counted."""
        return self._judged + (self._head.cpu_seconds if self._head is not None else 0.0)

    @property
    def retried(self) -> int:
        """Times that jobs were tried again."""
        return self._retries.retried

    @property
    def slots(self) -> int:
        return self.settings.count

    def submit(self, job: WorkItem) -> None:
        if self._first_seed is None:
            self._first_seed = job.seed
        self._queue.append(job)
        self._assign()

    def drop(self, indices: Collection[int]) -> None:
        """Those that wait never begin; what comes of the others is not told."""
        self._retries.drop(indices)
        self._queue = deque(item for item in self._queue if item.index not in indices)

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        """Finished jobs; an infrastructure fault is retried here and only its last failure comes back."""
        self._take_workers()
        self._assign()
        at_work = any(w.reply is not None or w.health.probe is not None for w in self._workers)
        finished = self._collect_head(0.0 if at_work else timeout_seconds)
        if at_work:
            finished += self._collect_ready(0.0 if finished else timeout_seconds) + self._reap_hung()
        elif not finished and self._head is None:
            if self._starting is not None:
                futures.wait([self._starting], timeout_seconds)
            elif self._queue and self._workers:  # every worker rests until its next probe
                time.sleep(min(timeout_seconds, PROBE_SECONDS))
        self._assign()
        return finished

    def _collect_ready(self, seconds: float) -> list[tuple[int, Evaluation]]:
        """What workers have answered, after at most so long until one has."""
        replies = {w.reply: w for w in self._workers if w.reply is not None}
        probes = [w.health.probe for w in self._workers if w.health.probe is not None]
        if not replies and (not probes or seconds <= 0.0):
            return []
        patience = min(seconds, HEAD_LOOK_SECONDS) if self._head is not None else seconds
        ready, rest = ray.wait([*replies, *probes], num_returns=1, timeout=patience)
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        finished = []
        for reply in ready:
            if reply in replies:
                finished += self._collect(replies[reply])
        return finished

    def activity(self) -> list[str]:
        now = time.monotonic()
        lines = [
            f"worker {w.number}: candidate {w.item.index}, {now - w.began:.0f} s"
            if w.item
            else f"worker {w.number}: {w.health.state}"
            for w in self._workers
        ]
        if self._head is not None:
            here = [f"here: candidate {s.item.index}, {now - s.began:.0f} s" for s in self._head.busy]
            lines = here + lines
        return lines

    def compare(
        self, genomes: Sequence[WorkGenome], seed: int, only: Mapping[str, Collection[str]] | None = None
    ) -> Comparison:
        """Genomes side by side on the first device. Raises PoolUnavailable when the station is gone.

        ``only``: by genome id, the workloads it runs on; those it does not name run on all.
        """
        if self._head is not None and self._head.measures and not self._head.retired:
            suite = load_operator(self.settings.operator).suites[self.settings.suite]
            try:
                return self._head.compare(suite.workloads, entries_of(genomes, only or {}), seed)
            except (SessionDied, OSError) as error:
                raise PoolUnavailable(str(error)) from error
        self._take_workers(wait=True)
        return compare_on(self.settings, self._stations[:1], genomes, seed, only or {})[0]

    def compare_on_all(self, genomes: Sequence[WorkGenome], seed: int) -> list[Comparison]:
        """The same on every device at once."""
        self._take_workers(wait=True)
        return compare_on(self.settings, self._stations, genomes, seed, {})

    def leave(self) -> None:
        """``close``, by a process that ends right after: for a moment, as what is left then dies with the process."""
        if self._folder is not None:
            self._folder.close_later()
        closing = threading.Thread(target=self.close, daemon=True)
        closing.start()
        closing.join(LEAVE_SECONDS)

    def close(self) -> None:
        """Kill the actors (their children die with them), leave Ray, and remove the files of one of our own."""
        self._end_head()
        with contextlib.suppress(PoolUnavailable):  # nothing waits for them any more
            self._take_workers(wait=True)
        self._let_threads()
        if self.device is not None:
            self.device.close()
        for handle in [*(worker.handle for worker in self._workers), *self._stations]:
            ray.kill(handle)
        self._workers, self._stations = [], []
        ray.shutdown(wait_for_processes=self._folder is not None)
        self._muster.end()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _station_of(self, worker: Worker) -> ActorHandle | None:
        return self._stations[worker.number % len(self._stations)] if self._stations else None

    def _assign(self) -> None:
        """Hand the queue to idle workers in service; with every worker lost, their errors are the answer.

        One that is silent has no place to be on, and gets nothing: a node for it may join. What is judged in this
        process has the place of a worker.
        """
        now = time.monotonic()
        if self._head is None or now - self._looked >= WARMING_LOOK_SECONDS:
            self._looked = now
            for worker in self._workers:
                worker.health.look(now)
        states = [worker.health.state for worker in self._workers]
        lost = self._head is None and all(state is Service.LOST for state in states)
        self._retire_head(states.count(Service.IDLE))
        room = self.settings.count - (len(self._head.busy) if self._head is not None else 0)
        room -= sum(worker.item is not None for worker in self._workers)
        for worker, state in zip(self._workers, states, strict=True):
            failing = lost and not worker.health.silent
            if room > 0 and worker.item is None and self._queue and (failing or state is Service.IDLE):
                room -= 1
                worker.item = self._queue.popleft()
                worker.began = time.monotonic()
                request = request_for(worker.item, worker.told)
                worker.reply = worker.handle.evaluate.remote(request, self._station_of(worker))
        while self._head is not None and self._head.free and self._queue and room > 0:
            room -= 1
            self._head.begin(self._queue.popleft(), request_for)

    def _retire_head(self, ready: int) -> None:
        """Judge nothing more here once as many workers are ready as jobs are judged here; they know the champion."""
        head = self._head
        if head is None or not ready or ready < min(head.seats, len(self._workers)):
            return
        if not head.retired:
            head.retire()
            self._pass_on(head)
        if not head.busy:
            self._pass_on(head)
            self._end_head()
            self.workers_ready = True

    def _pass_on(self, head: HeadStart) -> None:
        if (champion := head.champion()) is not None:
            for station in self._stations:
                station.inherit.remote(champion)

    def _collect_head(self, seconds: float) -> list[tuple[int, Evaluation]]:
        """What was judged in this process. What takes too long is tried again by a worker, and all beside it."""
        if self._head is None:
            return []
        done = self._head.finished(seconds if self._head.busy else 0.0)
        if done:
            self._muster.hurry()
        if any(self._is_hung(seat) for seat in self._head.busy):
            done += [(seat.item, None) for seat in self._head.busy]
            self._end_head()
            if self._starting is None and not self._workers:
                self.start_beside()
        finished = []
        for item, evaluation in done:
            answer = evaluation or self._retries.fault(item, "a job judged here did not answer")
            finished += self._retries.settle(item, answer, self._queue)
        return finished

    def _is_hung(self, seat: Seat) -> bool:
        return time.monotonic() - seat.began >= self.settings.deadline_seconds(seat.item.scope)

    def _end_head(self) -> None:
        if self._head is not None:
            self._head.close()
            self._judged += self._head.cpu_seconds
            self._head = None
            self._let_threads()

    def _collect(self, worker: Worker) -> list[tuple[int, Evaluation]]:
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
            evaluation = self._retries.fault(item, f"worker {worker.number} {how}: {first_line(error)}")
            worker.health.doubt(time.monotonic())
        worker.item = worker.reply = None
        return self._retries.settle(item, evaluation, self._queue)

    def _reap_hung(self) -> list[tuple[int, Evaluation]]:
        finished = []
        for worker in self._workers:
            item = worker.item
            if item is None or time.monotonic() - worker.began < self.settings.deadline_seconds(item.scope):
                continue
            ray.kill(worker.handle, no_restart=False)
            worker.health.doubt(time.monotonic())
            worker.item = worker.reply = None
            evaluation = self._retries.fault(item, f"worker {worker.number} did not answer in time")
            finished += self._retries.settle(item, evaluation, self._queue)
        return finished


def _seats(settings: PoolSettings, *, measured: bool) -> int:
    """Jobs that this process judges at once; an interpreter, which times what it runs, has one."""
    if settings.gpus:
        return settings.count if settings.count <= MOST_SEATS else SEATS
    return settings.count if not measured and settings.count <= FEW_SEATS else 1
