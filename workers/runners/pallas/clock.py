"""Clocks for programs on a TPU: the profiler's device times, or the wall clock where a CPU stands in for the TPU.

In a profile, a TPU's plane is called ``/device:TPU:0`` and so on; its line ``XLA Modules`` has one event for each
execution of a program, named ``jit_<function>(<fingerprint>)``, from the device's own clock.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
from jax.profiler import ProfileData

PLANE = "/device:TPU:"
LINE = "XLA Modules"


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


class ProfileError(RuntimeError):
    """A profile that does not hold what was run. One line."""


def read_profile(folder: Path) -> ProfileData:
    """The one profile that a trace left under ``folder``. Raises ProfileError."""
    files = sorted(folder.rglob("*.xplane.pb"))
    if len(files) != 1:
        raise ProfileError(f"the profiler wrote {len(files)} files, not one")
    return ProfileData.from_serialized_xspace(files[0].read_bytes())


def program_seconds(profile: ProfileData, program: str) -> list[float]:
    """Seconds of every execution of the jitted function ``program`` on one TPU core, in order.

    Raises ProfileError when there is none, or when it ran on several cores.
    """
    found = []
    for plane in profile.planes:
        if not plane.name.startswith(PLANE):
            continue
        runs = [
            (event.start_ns, event.duration_ns)
            for line in plane.lines
            if line.name == LINE
            for event in line.events
            if event.name.split("(")[0] == f"jit_{program}"
        ]
        if runs:
            found.append([duration * 1e-9 for _, duration in sorted(runs)])
    if len(found) != 1:
        where = ", ".join(sorted(plane.name for plane in profile.planes)) or "nothing"
        raise ProfileError(f"{program} ran on {len(found)} TPU cores of the profile, which has {where}")
    return found[0]
