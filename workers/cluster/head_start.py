"""Jobs that are judged in this process while Ray starts, so that no verdict waits for it."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.fitness.evaluation import Evaluation
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload
from tilewright.workers.cluster.artefacts import Told
from tilewright.workers.cluster.evaluating import Evaluating
from tilewright.workers.device.comparison import Comparison, compare
from tilewright.workers.device.compile_ahead import CompilePace
from tilewright.workers.device.shared_station import SharedStation
from tilewright.workers.device.station import Champion, Entry
from tilewright.workers.device.timing import Samples
from tilewright.workers.device.warm import WarmDevice
from tilewright.workers.request import ENTRIES, Truth

log = logging.getLogger(__name__)

ENDING_SECONDS = 5.0
"""How long the threads may take to see that their children are gone."""

KEPT = 16
"""Inputs of gates that all threads together keep, with the answers due."""


@dataclass
class Seat:
    """One thread that judges, a job at a time. It lives as long as the head start: children die with their thread."""

    evaluating: Evaluating
    told: Told = field(default_factory=Told)
    item: Any = None
    began: float = 0.0
    cpu_seconds: float = 0.0
    """Of the thread, which this process's own CPU time holds as well."""
    orders: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)


class HeadStart:
    """Judges jobs in this process, several at a time; candidates run in confined children here as in any worker."""

    def __init__(self, settings_json: bytes, seats: int, device: WarmDevice | None = None) -> None:
        """The children begin to warm up at once. Raises OSError where no process can be made.

        ``device``: of a measured target. Its station is closed with this, and its compiler is not.
        """
        settings = json.loads(settings_json)
        scratch, shared = settings["scratch"], None
        if device is None:  # one answer of the oracle serves them all
            shared = Truth(load_operator(settings["operator"]), ENTRIES * seats)
        made = [Evaluating(settings_json, shared) for _ in range(seats)]
        self._device = device
        self._station = SharedStation(device.station) if device is not None else None
        self._samples: Samples | None = None
        if device is not None and self._station is not None:
            operator, target = made[0].operator, made[0].target
            truth, samples = Truth(operator, KEPT), Samples(operator, self._station)
            self._samples, pace = samples, CompilePace()
            for one in made:
                compiler = device.compiler(target, Path(scratch) if scratch else None)
                one.prepare(self._station.another(), compiler, truth, samples, pace)
        self._answers: queue.SimpleQueue[tuple[Seat, bytes | None]] = queue.SimpleQueue()
        self._seats = [Seat(one) for one in made]
        self._retired = False
        self._threads = [threading.Thread(target=self._serve, args=(s,), daemon=True) for s in self._seats]
        for thread in self._threads:
            thread.start()

    def _serve(self, seat: Seat) -> None:
        while (request := seat.orders.get()) is not None:
            reply = None
            try:
                reply = seat.evaluating.evaluate(request, None)
            except Exception:
                log.exception("a job that was judged beside Ray's start did not end")
            seat.cpu_seconds = time.thread_time()
            self._answers.put((seat, reply))

    @property
    def seats(self) -> int:
        """Jobs that it judges at once."""
        return len(self._seats)

    @property
    def busy(self) -> list[Seat]:
        """Those at work, whoever began first."""
        return sorted((seat for seat in self._seats if seat.item is not None), key=lambda seat: seat.began)

    @property
    def free(self) -> bool:
        """Whether another job may begin."""
        return not self._retired and len(self.busy) < len(self._seats)

    @property
    def retired(self) -> bool:
        """Whether it ends with the jobs that are under way."""
        return self._retired

    def retire(self) -> None:
        """Take no more jobs."""
        self._retired = True

    def begin(self, item: Any, request: Callable[[Any, Told], bytes]) -> None:
        """Evaluate ``item``, which ``request`` says to the cascade. Only while it is ``free``."""
        seat = next(seat for seat in self._seats if seat.item is None)
        seat.item, seat.began = item, time.monotonic()
        seat.orders.put(request(item, seat.told))

    def finished(self, seconds: float = 0.0) -> list[tuple[Any, Evaluation | None]]:
        """What is done, after at most so long until there is something; None where the machinery failed."""
        found: list[tuple[Any, Evaluation | None]] = []
        try:
            while True:
                wait = seconds if not found and seconds > 0.0 else 0.0
                seat, reply = self._answers.get(block=wait > 0.0, timeout=wait or None)
                found.append((seat.item, None if reply is None else Evaluation.model_validate_json(reply)))
                seat.item = None
        except queue.Empty:
            return found

    def champion(self) -> Champion | None:
        """What the jobs left on the device of a measured target."""
        return self._station.champion() if self._station is not None else None

    def compare(self, workloads: Sequence[Workload], entries: Sequence[Entry], seed: int) -> Comparison:
        """Entries side by side on that device. Raises SessionDied."""
        assert self._station is not None
        evaluating = self._seats[0].evaluating
        return compare(
            self._station,
            evaluating.operator,
            evaluating.target,
            workloads,
            entries,
            seed,
            samples=self._samples,
        )

    @property
    def measures(self) -> bool:
        """Whether there is a device."""
        return self._device is not None

    @property
    def cpu_seconds(self) -> float:
        """Of its threads, which this process's own CPU time holds as well."""
        return sum(seat.cpu_seconds for seat in self._seats)

    def close(self) -> None:
        """Kill the children, also one that was just being started; what is under way is lost."""
        self._retired = True
        if self._station is not None:
            self._station.end()
        for seat in self._seats:
            seat.orders.put(None)
        self._end_children()
        deadline = time.monotonic() + ENDING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            log.warning("jobs did not end within %g s of their children", ENDING_SECONDS)
        self._end_children()

    def _end_children(self) -> None:
        for seat in self._seats:
            seat.evaluating.close()
        if self._device is not None:
            self._device.station.close()
