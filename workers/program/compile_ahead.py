"""Compiles configurations of Triton kernels in processes of their own, so that later launches find them on disk."""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

MOST_SECONDS = 120.0
"""Most that a batch may take; what is not compiled by then is compiled, or refused, when it is launched."""

_ROW = struct.Struct("<i?d")
"""What a child writes of a job: its number, whether it compiled, its seconds."""

Job = tuple[Any, Any, Any]
"""Source, target and options of a compilation."""


class _Collected(Exception):
    """What a launch would have compiled."""

    def __init__(self, source: Any, target: Any, options: Any) -> None:
        super().__init__()
        self.job = (source, target, options)


def job_of(kernel: Any, launch: Callable[[], object]) -> Job | None:
    """What ``launch`` of a ``JITFunction`` compiles; None where it is compiled already, or cannot be launched."""
    from triton.runtime.driver import driver

    device = driver.active.get_current_device()
    kernel.device_caches[device]  # sets kernel.compile
    before = kernel.compile

    def collect(source: Any, target: Any, options: Any, **_: Any) -> Any:
        raise _Collected(source, target, options)

    kernel.compile = collect
    try:
        launch()
    except _Collected as found:
        return found.job
    except Exception:  # noqa: BLE001 - a configuration that cannot be launched is found out when it is tried
        return None
    finally:
        kernel.compile = before
    return None


def compile_all(jobs: Sequence[Job], seconds: float = MOST_SECONDS) -> dict[int, tuple[bool, float]]:
    """Compile in as many processes as there are cores. By number of the job: whether it compiled, and its seconds; none
    for one that was not reached. A job that fails leaves nothing on disk."""
    count = min(len(jobs), max(1, len(os.sched_getaffinity(0)) - 1))
    children, done = [], bytearray()
    reader, writer = os.pipe()
    for number in range(count):
        child = os.fork()
        if child == 0:
            os.close(reader)
            _compile(jobs, range(number, len(jobs), count), writer)
        children.append(child)
    os.close(writer)
    os.set_blocking(reader, False)
    deadline = time.monotonic() + seconds
    while children and time.monotonic() < deadline:
        children = [c for c in children if os.waitpid(c, os.WNOHANG)[0] == 0]
        done += _read(reader)
        time.sleep(0.02)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    done += _read(reader)
    os.close(reader)
    whole = len(done) - len(done) % _ROW.size
    return {number: (ok, took) for number, ok, took in _ROW.iter_unpack(done[:whole])}


def _read(pipe: int) -> bytes:
    try:
        return os.read(pipe, 1 << 16)
    except BlockingIOError:
        return b""


def _compile(jobs: Sequence[Job], numbers: range, writer: int) -> None:
    """The child: it must not touch the device, whose context is its parent's."""
    from triton.compiler import compile as compile_source

    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
    os.dup2(sys.stderr.fileno(), 2)
    for number in numbers:
        source, target, options = jobs[number]
        begun, ok = time.monotonic(), True
        try:
            compile_source(source, target=target, options=options)
        except BaseException:  # noqa: BLE001 - whatever a compiler raises; the parent meets it again
            ok = False
        os.write(writer, _ROW.pack(number, ok, time.monotonic() - begun))
    os._exit(0)
