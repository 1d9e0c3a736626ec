"""A look ahead: the program runs once in a process of its own, in which a launch only says what it would compile.

All of that, with every configuration of the packages' tuners, then compiles at once, and the program finds it on disk.
Kernels that do not run leave wrong values behind: nothing but that process's list is used.
"""

import contextlib
import functools
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tilewright.library.launch_replacement import innermost, signature
from tilewright.workers.program.launches import patched
from tilewright.workers.program.step import Program

MOST_SECONDS = 120.0
"""Most that a batch may take; what is not compiled by then is compiled, or refused, when it is launched."""

Job = tuple[Any, Any, Any]
"""Source, target and options of a compilation."""


class _Collected(Exception):
    """What a launch would have compiled, its one argument."""


def job_of(kernel: Any, launch: Callable[[], object]) -> Job | None:
    """What ``launch`` of a ``JITFunction`` compiles; None where it is compiled already, or cannot be launched."""
    from triton.runtime.driver import driver

    device = driver.active.get_current_device()
    kernel.device_caches[device]  # sets kernel.compile
    before = kernel.compile

    def collect(source: Any, target: Any, options: Any, **_: Any) -> Any:
        raise _Collected((source, target, options))

    kernel.compile = collect
    try:
        launch()
    except _Collected as found:
        job: Job = found.args[0]
        return job
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
    if seconds <= 0:
        return {}
    children = [forks.Process(target=_compile, args=(jobs, n, count, writer), daemon=True) for n in range(count)]
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


LOOK_SECONDS = 400.0
"""Most that it may take: a program that waits for a value which no kernel writes does not end."""

BENCH_WARMUP_MS, BENCH_MS = 5, 25
"""Of a trial of a package's own tuner while it is recorded: a fifth of Triton's default, for a few hundred trials."""


def scouted(load: Callable[[], Program]) -> dict[str, Any]:
    """What the look ahead found; empty where there is no device. Call it before this process uses the device.

    ``kernels``, ``compiling``: how many compiled, in how many seconds. ``tuners``, ``configurations``: launches with a
    tuner, and what these choose among. ``failed``: which did not,
    ``late``: how many of these for want of time. ``compile_seconds``: of one compilation after the other. ``linears``:
    rows, output and input features of bf16 layers, and whether they are trained. ``why``: what failed.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return {}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tilewright-scout-") as folder:
        found = Path(folder) / "found.json"
        child = os.fork()
        if child == 0:
            _look(load, found)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            return {"why": f"ended by signal {os.WTERMSIG(status)}", "seconds": time.monotonic() - begun}
        if not found.is_file():
            return {}
        return {**json.loads(found.read_text(encoding="utf-8")), "seconds": time.monotonic() - begun}


def _look(load: Callable[[], Program], found: Path) -> None:
    """The child, which never returns."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS)  # ends it
    try:
        with open(os.devnull, "r+") as nowhere:
            for stream in (0, 1, 2):
                os.dup2(nowhere.fileno(), stream)
        if torch.cuda.is_available():
            look = _Look()
            look.run(load)
            found.write_text(json.dumps(look.said()), encoding="utf-8")
    except Exception as error:  # noqa: BLE001 - the program goes on without what was to be found
        found.write_text(json.dumps({"why": repr(error)}), encoding="utf-8")
    finally:
        os._exit(0)


class _Look:
    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.tuned: dict[str, dict[str, int | None]] = {}
        """By tuner and key: each configuration's job; None for one that cannot be launched."""
        self.linears: list[list[Any]] = []
        self._seen: set[Any] = set()

    def run(self, load: Callable[[], Program]) -> None:
        """Set up and one step, as far as they come with what the launches leave."""
        from torch.profiler import ProfilerActivity, profile
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        with (
            patched(JITFunction, "run", self._launch),
            patched(Autotuner, "run", self._tune),
            profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace,
            contextlib.suppress(Exception),
        ):
            load().started()()
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None or not dynamo.counters["frames"]:  # compiled code has no layer to replace
            self.linears = _linears(trace.profiler.kineto_results.events())

    def said(self) -> dict[str, Any]:
        """Compile, and say what came of it (``scouted``)."""
        begun = time.monotonic()
        done = compile_all(self.jobs)
        rows = [(key, config, job) for key, of in self.tuned.items() for config, job in of.items()]
        failed = [[key, config] for key, config, job in rows if job is None or not done.get(job, (False,))[0]]
        late = sum(job is not None and job not in done for *_, job in rows)
        return {
            "compiling": time.monotonic() - begun,
            "kernels": len(done),
            "tuners": len(self.tuned),
            "configurations": len(rows),
            "late": late,
            "compiled": len(rows) - len(failed),
            "failed": failed,
            "compile_seconds": sum(took for _, took in done.values()),
            "linears": self.linears,
        }

    def _launch(self, before: Any, kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("warmup", False):
            return before(kernel, *args, warmup=True, **kwargs)
        seen = (id(kernel), signature(args, {k: v for k, v in kwargs.items() if k != "grid"}))
        if seen not in self._seen:
            self._seen.add(seen)
            self._note(kernel, lambda: before(kernel, *args, warmup=True, **kwargs))
        return None

    def _tune(self, before: Any, tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        given = {k: v for k, v in kwargs.items() if k != "warmup"}
        rows = self.tuned.setdefault(_key(tuner, {**tuner.nargs, **given}), {})
        if not rows:
            for config in tuner.prune_configs(dict(given)) if len(tuner.configs) > 1 else tuner.configs:
                run = functools.partial(tuner.fn.run, *args, **given, **config.all_kwargs(), warmup=True)
                rows[str(config)] = self._note(innermost(tuner), run)
        return None

    def _note(self, kernel: Any, launch: Callable[[], object]) -> int | None:
        job = job_of(kernel, launch)
        if job is None:
            return None
        self.jobs.append(job)
        return len(self.jobs) - 1


def _linears(events: Any) -> list[list[Any]]:
    """Rows, output features, input features of each layer in bf16, and whether something was differentiated."""
    trains = any(e.name().startswith("autograd::engine") for e in events)
    found = []
    for event in events:
        if event.name() == "aten::linear" and event.dtypes()[:2] == ["c10::BFloat16"] * 2:
            given, weight = event.shapes()[:2]
            if len(weight) == 2 and weight[1]:
                rows = math.prod(given[:-1])
                found.append((rows, *weight, trains))
    return [list(row) for row in dict.fromkeys(found)]


@contextlib.contextmanager
def limited(failed: list[list[str]], trials: bool = True) -> Iterator[None]:
    """While open, tuners choose among what compiled, in shorter trials; without ``trials`` take what they chose before,
    or their first. Where there is no device, each takes its first."""
    from triton.runtime.autotuner import Autotuner

    left = {tuple(row) for row in failed}
    changed: list[Any] = []

    def prune(before: Any, tuner: Any, kwargs: dict[str, Any]) -> Any:
        configs, key = before(tuner, kwargs), _key(tuner, {**tuner.nargs, **kwargs})
        if not trials or not torch.cuda.is_available():
            return ([c for c in configs if c in tuner.cache.values()] or configs)[:1]
        return [c for c in configs if (key, str(c)) not in left] or configs[:1]

    def bench(before: Any, tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not torch.cuda.is_available():
            return [0.0, 0.0, 0.0]
        if getattr(tuner, "_do_bench", None) is None and "do_bench" not in vars(tuner):
            tuner.do_bench = functools.partial(tuner.do_bench, warmup=BENCH_WARMUP_MS, rep=BENCH_MS)
            changed.append(tuner)
        return before(tuner, *args, **kwargs)

    with patched(Autotuner, "prune_configs", prune), patched(Autotuner, "_bench", bench):
        try:
            yield
        finally:
            for tuner in changed:
                vars(tuner).pop("do_bench", None)


def _key(tuner: Any, named: Mapping[str, Any]) -> str:
    """Kernel, and what its tuner chooses a configuration by: values of the key's arguments, and dtypes."""
    function = innermost(tuner).fn
    values = [named[k] for k in tuner.keys if k in named]
    dtypes = [str(v.dtype) for k, v in named.items() if k in tuner.arg_names and hasattr(v, "dtype")]
    return f"{function.__module__}.{function.__qualname__} {values} {dtypes}"
