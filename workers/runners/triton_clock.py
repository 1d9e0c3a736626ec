"""Clocks for candidates: device events with a flushed L2 on a GPU, the wall clock under the interpreter.

On a GPU every timed call follows a write over more than twice the L2, and waits behind a spinning kernel so that host
work is hidden; host time is measured apart. A pause after each burst keeps the board under its power limit, where
kernels would be timed at clocks that depend on what ran before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

SPIN_CYCLES = 400_000
"""About a fifth of a millisecond: more than a plan of ten launches takes on the host."""

PAUSE_SECONDS = 0.002
PAUSE_FACTOR = 1.5
"""The pause after a burst: 2 ms, and 1.5 times what its calls took."""

WALL_ATTEMPTS = 3
"""Times the wall clock is read; a process that another one interrupts reads too much, and none reads too little."""

NEAR_FACTOR, NEAR_SLACK_SECONDS = 1.5, 3e-4
"""A wall time this near the device time needs no second reading."""

LONG_SECONDS = 1e-3
"""Calls this long are issued once to see what that takes the host."""


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
        prepare: Callable[[], object] = lambda: None,
        keep: Callable[[Any], Any] = lambda results: results,
        warm: bool = False,
    ) -> tuple[list[float], Any]:
        """One call that is thrown away, then ``count`` timed ones: their times, and what is kept of any one of them.

        ``prepare`` comes before each call and is not timed; ``keep`` makes what is kept of a call's results, before the
        next call. ``warm``: after a ``rest`` it was just called; none is thrown away.
        """
        ...

    def overheads(self, call: Callable[[], Any], brief: bool, seconds: float) -> tuple[float, float]:
        """Host time to issue one call, and wall time of one.

        The former is the mean of two, where ``brief`` or the call is long that of the one call on the wall clock. The
        latter is the least of a few, or the first that is near ``seconds``, the call's device time.
        """
        ...


class GpuClock:
    """Device events on the current CUDA device. ``flush_bytes`` are written before each timed call."""

    def __init__(self, flush_bytes: int) -> None:
        self._flush = torch.empty(flush_bytes // 4, dtype=torch.int32)
        self._event = torch.cuda.Event
        self._sleep = torch.cuda._sleep
        self._rested = 0.0

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def burst(
        self,
        call: Callable[[], Any],
        count: int,
        prepare: Callable[[], object] = lambda: None,
        keep: Callable[[Any], Any] = lambda results: results,
        warm: bool = False,
    ) -> tuple[list[float], Any]:
        chosen = int.from_bytes(os.urandom(2)) % count
        kept = None
        if not warm:
            self.rest()
            prepare()
            call()
        pairs = []
        for number in range(count):
            prepare()
            self._flush.zero_()
            self._sleep(SPIN_CYCLES)
            start, end = self._event(enable_timing=True), self._event(enable_timing=True)
            start.record()
            results = call()
            end.record()
            pairs.append((start, end))
            if number == chosen:
                kept = keep(results)
            del results
        torch.cuda.synchronize()
        found = [start.elapsed_time(end) * 1e-3 for start, end in pairs]
        self._rested = time.monotonic() + PAUSE_SECONDS + PAUSE_FACTOR * sum(found)
        return found, kept

    def rest(self) -> None:
        time.sleep(max(0.0, self._rested - time.monotonic()))

    def overheads(self, call: Callable[[], Any], brief: bool, seconds: float) -> tuple[float, float]:
        torch.cuda.synchronize()
        one = brief or seconds > LONG_SECONDS
        if one:
            host, wall = self._alone(call)
        else:
            self._sleep(4 * SPIN_CYCLES)
            begun = time.perf_counter()
            for _ in range(2):
                call()
            host = (time.perf_counter() - begun) / 2
            torch.cuda.synchronize()
            _, wall = self._alone(call)
        calls = 1 if one else 3
        for _ in range(WALL_ATTEMPTS - 1):
            if wall > NEAR_FACTOR * seconds + NEAR_SLACK_SECONDS:
                wall, calls = min(wall, self._alone(call)[1]), calls + 1
        self._rested += calls * seconds  # no part of the rest
        return host, wall

    @staticmethod
    def _alone(call: Callable[[], Any]) -> tuple[float, float]:
        """Seconds to issue one call, and to see it done, the device idle before and after."""
        begun = time.perf_counter()
        call()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        return issued - begun, time.perf_counter() - begun


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
        prepare: Callable[[], object] = lambda: None,
        keep: Callable[[Any], Any] = lambda results: results,
        warm: bool = False,
    ) -> tuple[list[float], Any]:
        chosen = int.from_bytes(os.urandom(2)) % count
        found, kept = [], None
        for number in range(count):
            prepare()
            begun = time.perf_counter()
            results = call()
            found.append(time.perf_counter() - begun)
            if number == chosen:
                kept = keep(results)
        return found, kept

    def overheads(self, call: Callable[[], Any], brief: bool, seconds: float) -> tuple[float, float]:
        return 0.0, 0.0
