"""A pool of threads of this process, for one GPU, an interpreter, or a few workers of a model. It needs no Ray."""

import ctypes
import logging
import queue
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from threadpoolctl import threadpool_limits

from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.cascade.measured_stages import KINDS
from tilewright.workers.child.session import SessionDied
from tilewright.workers.cluster.evaluator import Evaluator, SharedState
from tilewright.workers.cluster.jobs import Job, PoolGenome, QueuedPool, entries_of, request_for
from tilewright.workers.cluster.pool_folder import PoolFolder
from tilewright.workers.cluster.settings import PoolSettings, PoolUnavailable, evaluator_settings
from tilewright.workers.device.comparison import Comparison, compare
from tilewright.workers.device.plan_compiler import CompilePace
from tilewright.workers.device.station import Champion, Entry
from tilewright.workers.device.timing import Samples
from tilewright.workers.device.warm_device import WarmDevice, warm_device
from tilewright.workers.request import Truth

log = logging.getLogger(__name__)

ENDING_SECONDS = 5.0
"""Seconds that the threads may take to end after their children were killed."""

MEASURED_SEEDS = 4
"""Input seeds, as of candidates in flight, whose inputs and references a measured target keeps for all input kinds."""


@dataclass
class Slot:
    """One thread that evaluates a job at a time. It lives as long as its pool: children die with their thread."""

    evaluator: Evaluator
    job: Job | None = None
    began: float = 0.0
    cpu_seconds: float = 0.0
    requests: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)


class EvaluatorThreads:
    """The threads of a pool, each with its evaluator; those of a measured target share one station."""

    def __init__(self, settings: PoolSettings, scratch: Path, device: WarmDevice | None) -> None:
        """Start the threads and their children. Raises OSError if no process can be started.

        ``device``: of a measured target; it is closed with this.
        """
        payload = evaluator_settings(settings, {}, str(scratch))
        operator, target = load_operator(settings.operator), load_target(settings.target)
        self._device = device
        self._station = device.station if device is not None else None
        if device is not None and self._station is not None:
            truth = Truth(operator, MEASURED_SEEDS * (len(operator.input_kinds) + KINDS + 1))
            samples, pace = Samples(operator, self._station), CompilePace(outcomes=device.outcomes)
            self.shared = SharedState(truth, samples, pace)
        else:
            # gates make and free arrays of 30 MB: new pages for each would take longer than the arithmetic
            for option, value in ((-8, 1), (-4, 0), (-1, 1 << 30)):  # one arena, no maps, a heap that stays
                ctypes.CDLL(None).mallopt(option, value)
            self.shared = SharedState(Truth(operator))
        self.slots = [Slot(Evaluator(payload, self.shared)) for _ in range(settings.count)]
        for slot in self.slots:
            if device is not None and self._station is not None:
                slot.evaluator.attach(self._station, device.compiler(target, scratch))
        self._answers: queue.SimpleQueue[tuple[Slot, bytes | None]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, args=(s,), daemon=True) for s in self.slots]
        for thread in self._threads:
            thread.start()

    def _serve(self, slot: Slot) -> None:
        while (request := slot.requests.get()) is not None:
            reply = None
            try:
                reply = slot.evaluator.evaluate(request)
            except Exception:
                log.exception("an evaluation failed with an exception of the machinery")
            slot.cpu_seconds = time.thread_time()
            self._answers.put((slot, reply))

    @property
    def busy(self) -> list[Slot]:
        """Slots with a job, the one that began first first."""
        return sorted((slot for slot in self.slots if slot.job is not None), key=lambda slot: slot.began)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the threads (they are part of this process's CPU time)."""
        return sum(slot.cpu_seconds for slot in self.slots)

    def begin(self, job: Job) -> None:
        """Evaluate ``job`` in a free slot; there must be one."""
        slot = next(slot for slot in self.slots if slot.job is None)
        slot.job, slot.began = job, time.monotonic()
        slot.requests.put(request_for(job))

    def finished(self, seconds: float) -> list[tuple[Job, Evaluation | None]]:
        """Finished jobs, after waiting at most ``seconds`` for the first; evaluation None if the evaluator itself
        failed."""
        found: list[tuple[Job, Evaluation | None]] = []
        try:
            while True:
                wait = seconds if not found and seconds > 0.0 else 0.0
                slot, reply = self._answers.get(block=wait > 0.0, timeout=wait or None)
                assert slot.job is not None
                found.append((slot.job, None if reply is None else Evaluation.model_validate_json(reply)))
                slot.job = None
        except queue.Empty:
            return found

    @property
    def champion(self) -> Champion | None:
        """The best kernel that jobs have confirmed on the device of a measured target."""
        return self._station.champion() if self._station is not None else None

    def inherit(self, champion: Champion) -> None:
        """Adopt the champion of threads that have ended."""
        if self._station is not None:
            self._station.inherit(champion)

    def compare(self, suite: str, entries: Sequence[Entry], seed: int) -> Comparison:
        """See ``Pool.compare``. Raises SessionDied, OSError."""
        assert self._station is not None
        judge, samples = self.slots[0].evaluator, self.shared.samples
        workloads = judge.operator.suites[suite].workloads
        return compare(self._station, judge.operator, judge.target, workloads, entries, seed, samples=samples)

    def close(self) -> None:
        """Kill all children, also those just being started; jobs under way are lost."""
        if self._station is not None:
            self._station.end()
        for slot in self.slots:
            slot.requests.put(None)
        self._end_children()
        deadline = time.monotonic() + ENDING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            log.warning("jobs did not end within %g s of their children", ENDING_SECONDS)
        self._end_children()

    def _end_children(self) -> None:
        for slot in self.slots:
            slot.evaluator.close()
        if self._device is not None:
            self._device.close()


class LocalPool(QueuedPool):
    """Implements ``pool.Pool`` with ``settings.count`` threads."""

    def __init__(self, settings: PoolSettings, device: WarmDevice | None = None) -> None:
        super().__init__(settings)
        self._device = device
        self._folder: PoolFolder | None = None
        self._threads: EvaluatorThreads | None = None
        self._blas: threadpool_limits | None = None
        self._ended_cpu_seconds = 0.0

    @property
    def thread_cpu_seconds(self) -> float:
        return self._ended_cpu_seconds + (self._threads.cpu_seconds if self._threads is not None else 0.0)

    def start(self) -> None:
        """Raises PoolUnavailable."""
        # each of several threads that judge would otherwise start as many threads of BLAS as there are processors
        self._blas = threadpool_limits(limits=1, user_api="blas")
        try:
            self._folder = PoolFolder()
        except OSError as error:
            raise PoolUnavailable(f"no folder for temporary files can be made: {error}") from error
        self._start_threads()

    def _start_threads(self) -> None:
        assert self._folder is not None
        target, scratch = load_target(self.settings.target), self._folder.scratch
        try:
            if target.measured and self._device is None:
                self._device = warm_device(target, scratch)
            self._threads = EvaluatorThreads(self.settings, scratch, self._device)
        except OSError as error:
            raise PoolUnavailable(f"no process can be started: {error}") from error

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        """Raises PoolUnavailable when no process can be started in place of one that hangs."""
        self._assign()
        if self._threads is None:
            return []
        done = self._threads.finished(timeout_seconds if self._threads.busy else 0.0)
        held = [(slot.job.scope, time.monotonic() - slot.began) for slot in self._threads.busy if slot.job]
        if any(seconds >= self.settings.deadline_seconds(scope) for scope, seconds in held):
            done += [(slot.job, None) for slot in self._threads.busy if slot.job is not None]
            self._restart()
        finished = []
        for job, evaluation in done:
            answer = evaluation or self._fault(job, "the thread that evaluated it did not answer")
            finished += self._settle(job, answer)
        self._assign()
        return finished

    def activity(self) -> list[str]:
        now, slots = time.monotonic(), self._threads.slots if self._threads is not None else []
        doing = (f"candidate {s.job.index}, {now - s.began:.0f} s" if s.job else "idle" for s in slots)
        return [f"worker {number}: {text}" for number, text in enumerate(doing)]

    def compare(
        self, genomes: Sequence[PoolGenome], seed: int, only: Mapping[str, Collection[str]] | None = None
    ) -> Comparison:
        assert self._threads is not None
        try:
            return self._threads.compare(self.settings.suite, entries_of(genomes, only), seed)
        except (SessionDied, OSError) as error:
            raise PoolUnavailable(str(error)) from error

    def close(self) -> None:
        self._end_threads()
        if self._device is not None:  # where the threads were never started
            self._device.close()
            self._device = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        if self._blas is not None:
            self._blas.restore_original_limits()
            self._blas = None

    def _assign(self) -> None:
        while self._threads is not None and self._queue and len(self._threads.busy) < self.slots:
            self._threads.begin(self._queue.popleft())

    def _restart(self) -> None:
        """New threads, children and, for a measured target, a new station with the champion of the old one."""
        champion = self._threads.champion if self._threads is not None else None
        self._end_threads()
        self._start_threads()
        if champion is not None and self._threads is not None:
            self._threads.inherit(champion)

    def _end_threads(self) -> None:
        if self._threads is not None:
            self._threads.close()
            self._ended_cpu_seconds += self._threads.cpu_seconds
            self._threads = self._device = None
