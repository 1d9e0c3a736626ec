"""A program under way: its partitions, what each knows of the others, copies in flight, and who runs next.

Each partition has a clock of its own. Arriving at a barrier tells it what the partition knows, waiting for a phase
tells the partition what all who arrived knew. An access of shared memory is safe when the partition knows of every
earlier one that it must not overlap; that holds or does not whatever order the partitions happened to run in.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.workers.runners.gluon_emulator.values import Deadlock, EmulationError

Clock = dict[Any, int]
"""What is known: actor (a partition's number, or a barrier) to its time."""

MOST_TURNS = 2_000_000
"""Turns of one program's partitions before it is said to hang."""


class Partition:
    """A group of warps that runs as one. ``number`` is unique in its program."""

    def __init__(self, number: int, name: str, clock: Clock) -> None:
        self.number, self.name = number, name
        self.clock: Clock = dict(clock)
        self.clock[number] = 1
        self.products: list[Any] = []
        """Asynchronous products not waited for, oldest first."""

        self.stores: list[Any] = []
        """Copies to global memory whose source is not known to be read, oldest first."""

        self.waits_for: Callable[[], bool] | None = None
        self.waits_text = ""

    def tick(self) -> tuple[int, int]:
        """A moment of this partition, later than all before."""
        self.clock[self.number] += 1
        return self.number, self.clock[self.number]

    def knows(self, moment: tuple[Any, int]) -> bool:
        return self.clock.get(moment[0], 0) >= moment[1]

    def learn(self, clock: Clock) -> None:
        for actor, time in clock.items():
            if time > self.clock.get(actor, 0):
                self.clock[actor] = time


class Machine:
    """Runs one program at a time. ``seed`` draws the order of partitions and copies."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.grid: tuple[int, int, int] = (1, 1, 1)
        self.program: tuple[int, int, int] = (0, 0, 0)
        self.copies: list[Any] = []
        """Copies to shared memory under way: objects with ``land()``."""

        self.allocations: list[Any] = []
        self.partition = Partition(0, "the program", {})
        self._count = 1
        self._turns = 0
        self._baton: dict[int, threading.Semaphore] = {}
        self._scheduler: threading.Semaphore | None = None

    def run_program(self, place: tuple[int, int, int], body: Callable[[], None]) -> None:
        """Run ``body`` as the program at ``place``. Raises EmulationError."""
        self.program = place
        self.copies, self.allocations = [], []
        self.partition, self._count, self._turns = Partition(0, "the program", {}), 1, 0
        body()
        self._at_end(self.partition)
        while self.copies:
            self._land_one()

    def _at_end(self, partition: Partition) -> None:
        if partition.stores:
            raise EmulationError("a program ends while a copy to global memory still reads its shared memory")
        if partition.products:
            raise EmulationError("a program ends before a product is waited for")

    def _land_one(self) -> None:
        self.copies.pop(int(self.rng.integers(len(self.copies)))).land()

    # -- waiting ------------------------------------------------------------------------------------------

    def wait_until(self, passed: Callable[[], bool], text: Callable[[], str]) -> None:
        """Let others go on until ``passed``. Raises Deadlock when none can."""
        if self._scheduler is None:
            while not passed():
                if not self.copies:
                    raise Deadlock(f"deadlock: {self.partition.name} waits for {text()}, and nothing is under way")
                self._land_one()
            return
        mine = self.partition
        if passed() and self.rng.random() < 0.5:
            return
        mine.waits_for, mine.waits_text = passed, text()
        self._scheduler.release()
        self._baton[mine.number].acquire()
        if self._stopped:
            raise _Stop
        self.partition = mine

    # -- partitions ---------------------------------------------------------------------------------------

    def specialize(self, bodies: Sequence[tuple[str, Callable[[], Any]]]) -> Any:
        """Run partitions side by side; what the first returns. Raises what one of them raises, or Deadlock."""
        if self._scheduler is not None:
            raise EmulationError("warp_specialize inside of a partition")
        outer = self.partition
        parts = [Partition(self._count + i, name, outer.clock) for i, (name, _) in enumerate(bodies)]
        self._count += len(parts)
        self._scheduler = threading.Semaphore(0)
        self._stopped = False
        failures: list[BaseException] = []
        results: dict[int, Any] = {}
        alive = list(parts)

        def serve(part: Partition, body: Callable[[], Any]) -> None:
            self._baton[part.number].acquire()
            try:
                if not self._stopped:
                    self.partition = part
                    results[part.number] = body()
                    self._at_end(part)
            except _Stop:
                pass
            except BaseException as error:  # noqa: BLE001 - handed to the thread that asked
                failures.append(error)
            finally:
                alive.remove(part)
                assert self._scheduler is not None
                self._scheduler.release()

        threads = []
        for part, (_, body) in zip(parts, bodies, strict=True):
            self._baton[part.number] = threading.Semaphore(0)
            threads.append(threading.Thread(target=serve, args=(part, body), daemon=True))
            threads[-1].start()
        try:
            self._schedule(alive, failures)
        except EmulationError as error:
            failures.append(error)
        self._stop(alive)
        for thread in threads:
            thread.join()
        self._scheduler, self._baton = None, {}
        self.partition = outer
        if failures:
            raise failures[0]
        for part in parts:
            outer.learn(part.clock)
        return results[parts[0].number]

    def _schedule(self, alive: list[Partition], failures: list[BaseException]) -> None:
        assert self._scheduler is not None
        while alive and not failures:
            ready = [p for p in alive if p.waits_for is None or p.waits_for()]
            choices = len(ready) + (1 if self.copies else 0)
            if not choices:
                waits = "; ".join(f"{p.name} for {p.waits_text}" for p in alive)
                raise Deadlock(f"deadlock: {waits}, and nothing is under way")
            self._turns += 1
            if self._turns > MOST_TURNS:
                raise EmulationError("a program does not end")
            drawn = int(self.rng.integers(choices))
            if drawn == len(ready):
                self._land_one()
                continue
            ready[drawn].waits_for = None
            self._baton[ready[drawn].number].release()
            self._scheduler.acquire()

    def _stop(self, alive: list[Partition]) -> None:
        assert self._scheduler is not None
        self._stopped = True
        while alive:
            self._baton[alive[0].number].release()
            self._scheduler.acquire()

    _stopped = False


class _Stop(BaseException):
    """Ends a partition's thread when another has failed."""
