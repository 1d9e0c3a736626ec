"""Compiles configurations of Triton kernels in processes of their own, so that later launches find them on disk."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.library.launch_replacement import innermost, signature

MOST_SECONDS = 240.0
"""Most that a batch may take; what is not compiled by then is compiled, or refused, when it is launched."""


class _Collected(Exception):
    """What a launch would have compiled."""

    def __init__(self, source: Any, target: Any, options: Any) -> None:
        super().__init__()
        self.job = (source, target, options)


def job_of(kernel: Any, launch: Callable[[], object]) -> tuple[Any, Any, Any] | None:
    """What ``launch`` of a ``JITFunction`` compiles: source, target, options; None where it is compiled already."""
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


def compile_all(jobs: Sequence[tuple[Any, Any, Any]], seconds: float = MOST_SECONDS) -> None:
    """Compile in as many processes as there are cores. A job that fails leaves nothing on disk."""
    count = min(len(jobs), max(1, len(os.sched_getaffinity(0)) - 1))
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            _compile(jobs[number::count])
        children.append(child)
    deadline = time.monotonic() + seconds
    while children and time.monotonic() < deadline:
        children = [c for c in children if os.waitpid(c, os.WNOHANG)[0] == 0]
        time.sleep(0.02)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _compile(jobs: Sequence[tuple[Any, Any, Any]]) -> None:
    """The child: it must not touch the device, whose context is its parent's."""
    from triton.compiler import compile as compile_source

    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
    os.dup2(sys.stderr.fileno(), 2)
    for source, target, options in jobs:
        try:
            compile_source(source, target=target, options=options)
        except BaseException:  # noqa: BLE001 - whatever a compiler raises; the parent meets it again
            continue
    os._exit(0)


def compile_tuner(tuner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """The configurations that ``triton.autotune`` is about to try on a launch. Seconds instead of minutes."""
    seen = tuner.__dict__.setdefault("_tilewright_seen", set())
    key = str(signature(args, {k: v for k, v in kwargs.items() if k not in ("grid", "warmup")}))
    if len(tuner.configs) < 2 or key in seen:
        return
    seen.add(key)
    jobs = []
    try:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = tuner.prune_configs(dict(kwargs))
    except Exception:  # noqa: BLE001 - the tuner meets it itself
        return
    inner = innermost(tuner)
    plain = {k: v for k, v in kwargs.items() if k != "warmup"}
    for config in configs:
        job = job_of(inner, lambda c=config: tuner.fn.run(*args, **plain, **c.all_kwargs(), warmup=True))  # type: ignore[misc]
        if job is not None:
            jobs.append(job)
    if len(jobs) > 1:
        compile_all(jobs)
