"""Compiles configurations of Triton kernels in processes of their own, so that later launches find them on disk."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

MOST_SECONDS = 120.0
"""Most that a batch may take; what is not compiled by then is compiled, or refused, when it is launched."""

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
    forks = multiprocessing.get_context("fork")
    reader, writer = forks.Pipe(duplex=False)
    children = [
        forks.Process(target=_compile, args=(jobs, n, count, writer), daemon=True) for n in range(count)
    ]
    for child in children:
        child.start()
    done: dict[int, tuple[bool, float]] = {}
    deadline = time.monotonic() + seconds
    try:
        while reader.poll(0.02) or (any(c.is_alive() for c in children) and time.monotonic() < deadline):
            while reader.poll():
                number, *outcome = reader.recv()
                done[number] = (outcome[0], outcome[1])
    finally:
        for child in children:
            child.kill()
            child.join()
    return done


def _compile(jobs: Sequence[Job], first: int, step: int, writer: Any) -> None:
    """The child: it must not touch the device, whose context is its parent's."""
    from triton.compiler import compile as compile_source

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for number in range(first, len(jobs), step):
        source, target, options = jobs[number]
        begun, ok = time.monotonic(), True
        try:
            compile_source(source, target=target, options=options)
        except BaseException:  # noqa: BLE001 - whatever a compiler raises; the parent meets it again
            ok = False
        writer.send((number, ok, time.monotonic() - begun))  # so short that it is written whole
    os._exit(0)
