"""Compiles configurations of Triton kernels in processes of their own, so that later launches find them on disk."""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.library.launch_replacement import innermost

MOST_SECONDS = 120.0
"""Most that a batch may take; what is not compiled by then is compiled, or refused, when it is launched."""

BENCH_WARMUP_MS, BENCH_MS = 5, 25
"""Of a trial of a package's own tuner while it is recorded: a fifth of Triton's default, for a few hundred trials."""

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


@dataclass
class Tuners:
    """The kernels under ``triton.autotune`` that a program launches.

    While ``first`` is open, each launches the first of its configurations that runs, and what all of them compile is
    noted: a package with hundreds of configurations takes minutes to reach its first step otherwise. ``compile``
    compiles them at once. While ``limited`` is open, tuners choose among what compiled, in shorter trials.
    """

    jobs: list[Job] = field(default_factory=list)
    tuned: dict[tuple[Any, ...], dict[str, int | None]] = field(default_factory=dict)
    """By tuner and key: each configuration's job, None for one that was compiled before."""
    compiled: dict[int, tuple[bool, float]] = field(default_factory=dict)
    _first: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Tuners, configurations, how many of them compiled, and the seconds that all took one after another."""
        good = sum(ok for ok, _ in self.compiled.values())
        known = sum(job is None for rows in self.tuned.values() for job in rows.values())
        return {
            "tuners": len(self.tuned), "configurations": sum(map(len, self.tuned.values())),
            "compiled": good + known, "compile_seconds": sum(took for _, took in self.compiled.values()),
        }  # fmt: skip

    def compile(self, seconds: float = MOST_SECONDS) -> None:
        """Compile what was noted."""
        self.compiled = compile_all(self.jobs, seconds)

    def first(self) -> Tuners:
        """A context in which tuners launch their first configuration."""
        return self._patched("run", self._run_first)

    def limited(self) -> Tuners:
        """A context in which tuners choose among the configurations that compiled."""
        return self._patched("prune_configs", self._pruned)._patched("_bench", self._bench)

    def __enter__(self) -> Tuners:
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _patched(self, name: str, around: Callable[..., Any]) -> Tuners:
        from triton.runtime.autotuner import Autotuner

        before = getattr(Autotuner, name)
        setattr(Autotuner, name, lambda this, *args, **kwargs: around(before, this, *args, **kwargs))
        self._undo.append(lambda: setattr(Autotuner, name, before))
        return self

    def _run_first(self, before: Any, tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if len(tuner.configs) < 2 or kwargs.get("warmup"):
            return before(tuner, *args, **kwargs)
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        key = _key(tuner, {**tuner.nargs, **kwargs})
        if key in self._first:
            return tuner.fn.run(*args, **kwargs, **self._first[key].all_kwargs())
        configs = tuner.prune_configs(dict(kwargs))
        self._note(tuner, key, configs, args, kwargs)
        why: Exception | None = None
        for config in configs:
            try:
                if config.pre_hook is not None:
                    config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
                found = tuner.fn.run(*args, **kwargs, **config.all_kwargs())
            except Exception as error:  # noqa: BLE001 - too much shared memory, say: the next one is tried
                why = error
                continue
            self._first[key] = config
            return found
        raise why or RuntimeError(f"{tuner.fn} has no configuration")

    def _note(
        self, tuner: Any, key: tuple[Any, ...], configs: Sequence[Any], args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        inner, plain = innermost(tuner), {k: v for k, v in kwargs.items() if k != "warmup"}
        rows = self.tuned.setdefault(key, {})
        for config in configs:
            job = job_of(
                inner,
                lambda c=config: tuner.fn.run(*args, **plain, **c.all_kwargs(), warmup=True),  # type: ignore[misc]
            )
            rows[str(config)] = None if job is None else len(self.jobs)
            if job is not None:
                self.jobs.append(job)

    def _pruned(self, before: Any, tuner: Any, kwargs: dict[str, Any]) -> Any:
        configs = before(tuner, kwargs)
        rows = self.tuned.get(_key(tuner, {**tuner.nargs, **kwargs}))
        if rows is None:
            return configs
        good = [c for c in configs if self._good(rows.get(str(c)))]
        return good or configs[:1]

    def _good(self, job: int | None) -> bool:
        return job is None or self.compiled.get(job, (False, 0.0))[0]

    def _bench(self, before: Any, tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(tuner, "_do_bench", None) is None and "do_bench" not in vars(tuner):
            from functools import partial

            tuner.do_bench = partial(tuner.do_bench, warmup=BENCH_WARMUP_MS, rep=BENCH_MS)
            self._undo.append(lambda: vars(tuner).pop("do_bench", None))
        return before(tuner, *args, **kwargs)


def _key(tuner: Any, named: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a tuner chooses a configuration by, as Triton has it: values of the key's arguments, and dtypes."""
    values = tuple(named[k] for k in tuner.keys if k in named)
    dtypes = tuple(str(v.dtype) for k, v in named.items() if k in tuner.arg_names and hasattr(v, "dtype"))
    return (id(tuner), values, dtypes)
