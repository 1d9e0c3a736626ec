"""Ways to start a child process: spawned afresh, or forked from a template that has its libraries loaded.

Both give the child its own session, environment, working directory and four streams; ``end`` leaves nothing of
its process group alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
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
    left, pages = [pid], 0
    while left:
        folder = Path("/proc", str(left.pop()))
        try:
            pages += int((folder / "statm").read_text(encoding="ascii").split()[1])
            for thread in (folder / "task").iterdir():
                left += [int(child) for child in (thread / "children").read_text(encoding="ascii").split()]
        except (OSError, IndexError):
            continue  # ended meanwhile
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of those it started and of what they reaped, up to now."""
    left, ticks = [pid], 0
    while left:
        folder = Path("/proc", str(left.pop()))
        try:
            fields = (
                (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            )
            ticks += sum(int(field) for field in fields[11:15])
            for thread in (folder / "task").iterdir():
                left += [int(child) for child in (thread / "children").read_text(encoding="ascii").split()]
        except (OSError, IndexError):
            continue  # ended meanwhile
    return ticks / os.sysconf("SC_CLK_TCK")


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
        self, limits: Mapping[str, int], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """Raises OSError when no process can be started."""
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
    """Starts ``program`` with the arguments of ``workers/child/once_main.py``, by default that."""

    program: Sequence[str] = ()

    def start(
        self, limits: Mapping[str, int], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """Raises OSError."""
        program = self.program or (sys.executable, "-I", str(PROGRAMS / "once_main.py"))
        arguments = [str(ROOT), str(os.getpid()), str(streams.result), json.dumps(dict(limits))]
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


class TemplateLost(OSError):
    """The template process is gone; the next start makes another."""


class _Forked:
    """A child of the template, seen through the template's channel."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template = template
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after at most so long."""
        return bool(select.select([self._handle], [], [], seconds)[0])

    def end(self) -> int:
        """Have the template kill its group and reap it. Raises TemplateLost."""
        os.close(self._handle)
        return self._template.ask({"end": True})["code"]


class Template:
    """Forks children from one process that has imported ``modules``: they start in milliseconds, not seconds.

    The template runs none but trusted code and holds no secret: its environment is as scrubbed as a child's. One
    child at a time; not safe for several threads. It dies with this process.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._modules = tuple(modules)
        self._environment = dict(environment)
        self._channel: socket.socket | None = None
        self._pid = 0
        self._finalizer: weakref.finalize[..., Template] | None = None

    def start(
        self, limits: Mapping[str, int], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """Raises OSError."""
        self.warm()
        order = {"folder": str(folder), "environment": dict(environment), "limits": dict(limits)}
        passed = (streams.stdin, streams.stdout, streams.stderr, streams.result)
        return _Forked(self, self.ask(order, passed)["pid"])

    def warm(self) -> None:
        """Start the template process, if there is none, without waiting for its imports."""
        if self._channel is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = [sys.executable, "-I", str(PROGRAMS / "template_main.py"), str(ROOT), str(os.getpid())]
        with theirs:
            process = subprocess.Popen(
                [*program, str(theirs.fileno()), *self._modules],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._channel, self._pid = ours, process.pid
        self._finalizer = weakref.finalize(self, _stop, ours, process)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process and its children; of the latest one, where it had to be made again."""
        return cpu_seconds(self._pid) if self._channel is not None else 0.0

    def ask(self, order: Mapping[str, object], passed: Sequence[int] = ()) -> dict[str, int]:
        """One order and its answer. Raises TemplateLost."""
        channel = self._channel
        try:
            if channel is None:
                raise TemplateLost("the template process is gone")
            socket.send_fds(channel, [json.dumps(order).encode()], list(passed))
            answer = channel.recv(1 << 16)
            if not answer:
                raise TemplateLost("the template process ended")
        except OSError as error:
            self.close()
            raise TemplateLost(str(error)) from error
        return dict(json.loads(answer))

    def close(self) -> None:
        """End the template process; a later start makes another."""
        self._channel = None
        if self._finalizer is not None:
            self._finalizer()


def _stop(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    end_group(process)
