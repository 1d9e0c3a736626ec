"""Clocks for programs on a TPU: the profiler's device times, or the wall clock where a CPU stands in for the TPU."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax

from tilewright.workers.runners.pallas.profile import ProfileError, program_seconds, read_profile


@dataclass(frozen=True)
class Program:
    """A compiled candidate for one workload; ``name`` is that of the jitted function and ours alone."""

    name: str
    call: Callable[..., Sequence[jax.Array]]


class Clock(Protocol):
    """Times calls; all times in seconds."""

    def burst(self, program: Program, operands: Sequence[Any], count: int) -> tuple[list[float], Any]:
        """One call that is thrown away, then ``count`` timed ones: their times, and the results of any one of them."""
        ...


class ProfilerClock:
    """Device times of a trace. Every call is awaited before the next, so that none waits in a queue."""

    def burst(self, program: Program, operands: Sequence[Any], count: int) -> tuple[list[float], Any]:
        jax.block_until_ready(program.call(*operands))
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 0
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            with jax.profiler.trace(folder, profiler_options=options):
                _, kept = _call(program, operands, count)
            times = program_seconds(read_profile(Path(folder)), program.name)
        if len(times) != count:
            raise ProfileError(f"the profile has {len(times)} runs of {count}")
        return times, kept


class WallClock:
    """For tests without a TPU; the times mean nothing."""

    def burst(self, program: Program, operands: Sequence[Any], count: int) -> tuple[list[float], Any]:
        jax.block_until_ready(program.call(*operands))
        return _call(program, operands, count)


def overheads(program: Program, operands: Sequence[Any], brief: bool) -> tuple[float, float]:
    """Host time to issue one call, and wall time per call of calls issued back to back; ``brief``: of one call."""
    count = 1 if brief else 2
    begun = time.perf_counter()
    results = [program.call(*operands) for _ in range(count)]
    host = (time.perf_counter() - begun) / count
    jax.block_until_ready(results)
    begun = time.perf_counter()
    jax.block_until_ready([program.call(*operands) for _ in range(count)])
    return host, (time.perf_counter() - begun) / count


def _call(program: Program, operands: Sequence[Any], count: int) -> tuple[list[float], Any]:
    """Calls one after the other: wall times, and the results of one that nobody can foresee."""
    chosen = int.from_bytes(os.urandom(2)) % count
    times, kept = [], None
    for number in range(count):
        begun = time.perf_counter()
        results = jax.block_until_ready(program.call(*operands))
        times.append(time.perf_counter() - begun)
        if number == chosen:
            kept = results
    return times, kept
