"""Starting a child process: spawned afresh, or forked from a template that has its libraries loaded, in milliseconds.

A child gets its own session, environment, working directory and four streams. Above it is its warden
(``workers.child.descendants``); ``end`` leaves nothing alive that it started.
"""

import contextlib
import glob
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tilewright
from tilewright.workers.child.descendants import descendants

PACKAGE = Path(tilewright.__file__).parent
PROGRAMS = PACKAGE / "workers" / "child"
ROOT = PACKAGE.parent
"""Where a child finds ``tilewright``."""


def own_environment(**more: str) -> dict[str, str]:
    """This process's environment and ``more``, for a program of ours, which finds ``tilewright`` where we do, and no
    file of the working folder in place of a library's."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **more, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def interpreter_environment(interpreted: bool = True) -> dict[str, str]:
    """The same for one that runs kernels without a device: JAX's, and Triton's if ``interpreted``."""
    triton = {"TRITON_INTERPRET": "1"} if interpreted else {}
    return own_environment(**triton, OMP_NUM_THREADS="1", JAX_PLATFORMS="cpu")


@dataclass(frozen=True)
class Streams:
    """The child's ends of its pipes, as file descriptors of this process."""

    stdin: int
    stdout: int
    stderr: int
    result: int


def resident_bytes(pid: int) -> int:
    """Resident bytes of a process and all its descendants (shared pages count once for each); 0 once all have ended."""
    pages = sum(int(text.split()[1]) for text in _proc_files(pid, "statm"))
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """CPU seconds used so far by a process, its descendants, and the children that they have reaped."""
    found = (text.rpartition(b")")[2].split() for text in _proc_files(pid, "stat"))
    ticks = sum(sum(map(int, fields[11:15])) for fields in found)
    return ticks / os.sysconf("SC_CLK_TCK")


def waiting_seconds(pid: int, elapsed: float) -> float:
    """Seconds, of ``elapsed``, in which a process and its descendants were ready to run and no processor was free.

    Read from each thread's ``/proc/PID/task/TID/schedstat`` (nanoseconds running, and waiting to run); seconds in which
    another thread of the tree was running do not count. 0 where the kernel keeps no such count."""
    waited = 0
    for each in (pid, *descendants(pid)):
        for path in glob.iglob(f"/proc/{each}/task/*/schedstat"):
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
                waited += int(file.read().split()[1])
    return max(0.0, min(waited / 1e9, elapsed - cpu_seconds(pid)))


WAITING_FACTOR = 3
"""Seconds of waiting for a processor extend a child's deadline, by at most this many times its limit."""


class Deadline:
    """``seconds`` from now, plus those (``waited``) in which process ``pid`` and its descendants, or the thread that
    asks and may feed them, wait for a processor."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._began = time.monotonic()
        self._before = waiting_seconds(pid, math.inf), cpu_seconds(pid)
        self._own_before = _own_waiting()
        self.waited = 0.0

    def seconds_left(self) -> float:
        """Seconds until the deadline; zero or negative once it has passed."""
        elapsed = time.monotonic() - self._began
        if elapsed >= self._seconds + self.waited:
            waited = waiting_seconds(self._pid, elapsed + sum(self._before)) - self._before[0]
            waited += _own_waiting() - self._own_before
            self.waited = max(self.waited, min(waited, WAITING_FACTOR * self._seconds))
        return self._seconds + self.waited - elapsed


def _own_waiting() -> float:
    """Seconds in which this thread was ready to run and no processor was free; 0 where the kernel does not count."""
    with contextlib.suppress(OSError), open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


def _proc_files(pid: int, name: str) -> Iterator[bytes]:
    """Content of ``/proc/PID/name`` for a process and each descendant; those that end meanwhile are left out."""
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(OSError), open(f"/proc/{each}/{name}", "rb", buffering=0) as file:
            yield file.read()


WARDEN_SECONDS = 5.0
"""How long a child's warden may take to kill the child's descendants."""


class Process:
    """A running child: ``pid`` is its warden, the leader of its own session. Any thread may call ``end``."""

    def __init__(self, pid: int, reap: Callable[[], int]) -> None:
        """``reap`` waits for the process and returns its exit code, or minus the number of the signal that killed
        it."""
        self.pid, self._reap = pid, reap
        self._handle = os.pidfd_open(pid)
        self._code: int | None = None
        self._turn = threading.Lock()
        weakref.finalize(self, os.close, self._handle)

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; whether the process has ended."""
        return self._code is not None or bool(select.select([self._handle], [], [], seconds)[0])

    def end(self) -> int:
        """SIGTERM (the warden kills all descendants), then SIGKILL to the group. Returns what ``reap`` does."""
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


class TemplateLost(OSError):
    """The template process is gone; the next start makes another."""


class Template:
    """Forks children from one process that has imported ``modules``.

    Several threads may use it, each for its own child. The template runs only trusted code and holds no secret: its
    environment is as scrubbed as a child's. It dies with this process.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._modules = tuple(modules)
        self._environment = dict(environment)
        self._turn = threading.Lock()
        self._channel: socket.socket | None = None
        self._pid = 0
        self._finalizer: weakref.finalize[..., Template] | None = None

    def warm(self) -> None:
        """Start the template process if none runs, without waiting for its imports. Raises OSError."""
        with self._turn:
            self._ensure_started()

    def _ensure_started(self) -> socket.socket:
        if self._channel is not None:
            return self._channel
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = [sys.executable, "-I", str(PROGRAMS / "template_main.py"), str(ROOT)]
        with theirs:
            process = subprocess.Popen(
                [*program, str(theirs.fileno()), *self._modules],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._channel, self._pid = ours, process.pid
        self._finalizer = weakref.finalize(self, _stop, ours, Process(process.pid, process.wait))
        return ours

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the template process and its children; after a restart, of the new process only."""
        return cpu_seconds(self._pid) if self._channel is not None else 0.0

    def start(
        self, config: Mapping[str, object], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """Raises OSError."""
        order = {"folder": str(folder), "environment": dict(environment), "config": dict(config)}
        passed = (streams.stdin, streams.stdout, streams.stderr, streams.result)
        with self._turn:
            channel = self._ensure_started()
            pid = self._send_order(channel, order, passed)["pid"]
        return Process(pid, lambda: self._reap_child(channel, pid))

    def _reap_child(self, channel: socket.socket, pid: int) -> int:
        with self._turn:
            return int(self._send_order(channel, {"reap": pid})["code"])

    def _send_order(
        self, channel: socket.socket, order: Mapping[str, object], passed: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Send an order, with the child's file descriptors, and return the template's answer. Raises TemplateLost."""
        try:
            socket.send_fds(channel, [json.dumps(order).encode()], list(passed))
            if answer := channel.recv(1 << 16):
                return dict(json.loads(answer))
            raise TemplateLost("the template process ended")
        except OSError as error:
            if channel is self._channel:
                self.close()
            raise TemplateLost(str(error)) from error

    def close(self) -> None:
        """End the template process and its children, for every thread; a later start makes another."""
        self._channel = None
        if self._finalizer is not None:
            self._finalizer()


def _stop(channel: socket.socket, process: Process) -> None:
    channel.close()
    process.end()
