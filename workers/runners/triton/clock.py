"""Clocks for candidates: device events with a flushed L2 on a GPU, the wall clock under the interpreter.

On a GPU every timed call follows a write over more than twice the L2, and waits behind a spinning kernel so that host
work is hidden; host time is measured apart. A pause after each burst keeps the board under its power limit, where
kernels would be timed at clocks that depend on what ran before.
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

SPIN_CYCLES = 400_000
"""About a fifth of a millisecond: more than a plan of ten launches takes on the host."""

PAUSE_SECONDS = 0.0005
PAUSE_FACTOR = 1.5
"""The pause after a burst: half a millisecond, and 1.5 times what its calls took."""

WALL_ATTEMPTS = 8
"""Times the wall clock is read; a process that another one interrupts reads too much, and none reads too little. Three
were too few for an honest kernel (3.9 ms, never below 15 ms) while eight processes shared an H200 and 12 processors."""

NEAR_FACTOR, NEAR_SLACK_SECONDS = 1.5, 3e-4
"""A wall time this near the device time needs no second reading."""

LONG_SECONDS = 1e-3
"""Calls this long need no call before them that is thrown away: what that would warm up is nothing to them."""


def nothing() -> None:
    """To be done before a call."""


@dataclass(frozen=True)
class Burst:
    """Times of calls, in seconds: of each on the device, of issuing one on the host, of one by the wall clock.

    ``kept``: what was kept of the results of any one of them.
    """

    seconds: list[float]
    host: float
    wall: float
    kept: Any


class Clock(Protocol):
    """Times calls; all times in seconds."""

    def synchronise(self) -> None:
        """Wait for the device. Raises RuntimeError when it has failed."""
        ...

    def rest(self) -> None:
        """Wait until what was timed last no longer heats the device."""
        ...

    def burst(
        self,
        call: Callable[[], Any],
        count: int,
        prepare: Callable[[], object] = nothing,
        keep: Callable[[Any], Any] = lambda results: results,
        warm: bool = False,
    ) -> Burst:
        """After a rest, one call that is thrown away, then ``count`` timed ones.

        ``prepare`` comes before each call and is not timed; ``keep`` makes what is kept of a call's results, before the
        next call. ``warm``: nothing is thrown away.
        """
        ...


class GpuClock:
    """Device events on the current CUDA device. ``flush_bytes`` are written before each timed call."""

    def __init__(self, flush_bytes: int) -> None:
        self._flush = torch.empty(flush_bytes // 4, dtype=torch.int32, device="cuda")
        self._event = torch.cuda.Event
        self._sleep = torch.cuda._sleep
        self._rested = 0.0

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def burst(
        self,
        call: Callable[[], Any],
        count: int,
        prepare: Callable[[], object] = nothing,
        keep: Callable[[Any], Any] = lambda results: results,
        warm: bool = False,
    ) -> Burst:
        chosen, kept = int.from_bytes(os.urandom(2)) % count, None
        self.rest()
        if not warm:
            prepare()
            call()
        pairs, host = [], []
        for number in range(count):
            prepare()
            self._flush.zero_()
            waiting, start, end = (self._event(enable_timing=True) for _ in range(3))
            if number == count - 1:
                torch.cuda.synchronize()
                begun = time.perf_counter()
                waiting.record()
            self._sleep(SPIN_CYCLES)
            start.record()
            issued = time.perf_counter()
            results = call()
            host.append(time.perf_counter() - issued)
            end.record()
            pairs.append((start, end))
            if number == count - 1:
                torch.cuda.synchronize()
                wall = time.perf_counter() - begun - waiting.elapsed_time(start) * 1e-3
            if number == chosen:
                kept = keep(results)
            del results
        found = [start.elapsed_time(end) * 1e-3 for start, end in pairs]
        self._rested = time.monotonic() + PAUSE_SECONDS + PAUSE_FACTOR * sum(found)
        wall = self._seen(call, wall, statistics.median(found))
        return Burst(found, statistics.median(host), wall, kept)

    def rest(self) -> None:
        time.sleep(max(0.0, self._rested - time.monotonic()))

    def _seen(self, call: Callable[[], Any], wall: float, seconds: float) -> float:
        """The least wall time of a few calls, or the first that is near ``seconds``, the device time. The wait of
        an empty kernel is no part of it: processes that share a GPU take turns of some 2 ms."""
        least, wait = wall, math.inf
        for _ in range(WALL_ATTEMPTS - 1):
            if wall > NEAR_FACTOR * seconds + NEAR_SLACK_SECONDS:
                wait = min(wait, self._wall_of(lambda: self._sleep(1)))
                least = min(least, self._wall_of(call))
                wall = max(seconds, least - wait)
                self._rested += seconds  # no part of the rest
        return wall

    def _wall_of(self, call: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - begun


class CpuClock:
    """The wall clock of a machine without a device."""

    def synchronise(self) -> None:
        return

    def rest(self) -> None:
        return

    def burst(
        self,
        call: Callable[[], Any],
        count: int,
        prepare: Callable[[], object] = nothing,
        keep: Callable[[Any], Any] = lambda results: results,
        warm: bool = False,
    ) -> Burst:
        chosen = int.from_bytes(os.urandom(2)) % count
        found, kept = [], None
        for number in range(count):
            prepare()
            begun = time.perf_counter()
            results = call()
            found.append(time.perf_counter() - begun)
            if number == chosen:
                kept = keep(results)
        return Burst(found, 0.0, 0.0, kept)
