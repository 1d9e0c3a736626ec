"""Starting a child process: what every way to do so gives it, and the plain one, spawning it afresh.

A child gets its own session, environment, working directory and four streams; ``end`` leaves nothing of its process
group alive. The other way is ``workers.child.template``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import tilewright

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


def _of_all(pid: int, name: str) -> Iterator[bytes]:
    """What this file of a process's folder says, of it and all below it. One that ends meanwhile may be left out."""
    left = [pid]
    while left:
        folder = f"/proc/{left.pop()}"
        with contextlib.suppress(OSError):
            text = _read(f"{folder}/{name}")
            for thread in os.listdir(f"{folder}/task"):
                left += map(int, _read(f"{folder}/task/{thread}/children").split())
            yield text


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


WARDEN_SECONDS = 5.0
"""How long a warden may take to end what a child started."""


def end_group(process: subprocess.Popen[bytes]) -> int:
    """Ask the warden that ``process`` is to end all below it, then kill its group: its exit code."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(WARDEN_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


class Process(Protocol):
    """A started child."""

    @property
    def pid(self) -> int: ...

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after at most so long."""
        ...

    def end(self) -> int:
        """Kill its process group and reap it: its exit code, or minus the signal that ended it."""
        ...


class Launcher(Protocol):
    """Starts the child program."""

    def start(
        self, config: Mapping[str, object], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """``config``: see ``child_main``. Raises OSError when no process can be started."""
        ...


class Spawned:
    """A child of this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after at most so long."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> int:
        """Have its warden end all below it, kill its process group and reap it."""
        return end_group(self._process)


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
        return Spawned(process)
