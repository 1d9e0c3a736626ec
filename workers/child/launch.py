"""Starting a child process: what every way to do so gives it, and the plain one, spawning it afresh.

A child gets its own session, environment, working directory and four streams. Above it is its warden
(``workers.child.descendants``); ``end`` leaves nothing alive that it started. The other way is
``workers.child.template``.
"""

import contextlib
import glob
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import tilewright
from tilewright.workers.child.descendants import descendants

PACKAGE = Path(tilewright.__file__).parent
PROGRAMS = PACKAGE / "workers" / "child"
ROOT = PACKAGE.parent
"""Where a child finds ``tilewright``."""


@dataclass(frozen=True)
class Streams:
    """The child's ends of its pipes, as file descriptors of this process."""

    stdin: int
    stdout: int
    stderr: int
    result: int


def resident_bytes(pid: int) -> int:
    """Memory that a process and those it started hold now, what they share counted for each; 0 once all have ended."""
    pages = sum(int(text.split()[1]) for text in _of_all(pid, "statm"))
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of those it started and of what they reaped, up to now."""
    found = (text.rpartition(b")")[2].split() for text in _of_all(pid, "stat"))
    ticks = sum(sum(map(int, fields[11:15])) for fields in found)
    return ticks / os.sysconf("SC_CLK_TCK")


def waiting_seconds(pid: int, elapsed: float) -> float:
    """How much of its ``elapsed`` seconds a tree of processes has waited for a processor; 0 where that is not counted.
    All of its threads are asked (``/proc/PID/task/TID/schedstat``: nanoseconds on a processor and waiting for one), and
    those that wait while others run do not count."""
    waited = 0
    for each in (pid, *descendants(pid)):
        for path in glob.iglob(f"/proc/{each}/task/*/schedstat"):
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
                waited += int(file.read().split()[1])
    return max(0.0, min(waited / 1e9, elapsed - cpu_seconds(pid)))


WAITING_FACTOR = 3
"""Seconds that a child waits for a processor of a busy machine do not count, up to so many times its wall clock."""


class Deadline:
    """A limit of ``seconds`` from now. Those that a tree of processes waits for a processor, ``waited``, move it."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._began = time.monotonic()
        self._before = waiting_seconds(pid, math.inf), cpu_seconds(pid)
        self.waited = 0.0

    def left(self) -> float:
        """Seconds that are left; none, or less than none, once it has passed."""
        elapsed = time.monotonic() - self._began
        if elapsed >= self._seconds + self.waited:
            waited = waiting_seconds(self._pid, elapsed + sum(self._before)) - self._before[0]
            self.waited = max(self.waited, min(waited, WAITING_FACTOR * self._seconds))
        return self._seconds + self.waited - elapsed


def _of_all(pid: int, name: str) -> Iterator[bytes]:
    """What this file of a process's folder says, of it and all below it. One that ends meanwhile may be left out."""
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError), open(f"/proc/{each}/{name}", "rb", buffering=0) as file:
            yield file.read()


WARDEN_SECONDS = 5.0
"""How long a warden may take to end what a child started."""


class Process:
    """A started child, by its warden, which leads a session of its own. Another thread may end it meanwhile."""

    def __init__(self, pid: int, reap: Callable[[], int]) -> None:
        """``reap`` waits for it: its exit code, or minus the signal that ended it."""
        self.pid, self._reap = pid, reap
        self._handle = os.pidfd_open(pid)
        self._code: int | None = None
        self._turn = threading.Lock()
        weakref.finalize(self, os.close, self._handle)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after at most so long."""
        return self._code is not None or bool(select.select([self._handle], [], [], seconds)[0])

    def end(self) -> int:
        """Ask it to end all below it, then kill its group, and reap it: its exit code, or minus the signal."""
        with self._turn:
            if self._code is None:
                self._signal(signal.SIGTERM)
                self.wait(WARDEN_SECONDS)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._signal(signal.SIGKILL)  # it may not have its own group yet
                self._code = self._reap()
            return self._code

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)


class Launcher(Protocol):
    """Starts the child program."""

    def start(
        self, config: Mapping[str, object], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """``config``: see ``child_main``. Raises OSError when no process can be started."""
        ...


@dataclass(frozen=True)
class Spawn:
    """Starts ``program`` with the arguments of ``child_main.py``, by default that."""

    program: Sequence[str] = ()

    def start(
        self, config: Mapping[str, object], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """Raises OSError."""
        program = self.program or (sys.executable, "-I", str(PROGRAMS / "child_main.py"))
        arguments = [str(ROOT), str(os.getpid()), str(streams.result), json.dumps(dict(config))]
        process = subprocess.Popen(
            [*program, *arguments],
            cwd=folder,
            env=dict(environment),
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            pass_fds=(streams.result,),
            start_new_session=True,
        )
        return Process(process.pid, process.wait)
