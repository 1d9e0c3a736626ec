"""Children forked from a template, a process that has its libraries loaded: they start in milliseconds, not seconds."""

import json
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.workers.child.launch import PROGRAMS, ROOT, Process, Streams, cpu_seconds


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
        """Have a template process, if there is none, without waiting for its imports. Raises OSError."""
        with self._turn:
            self._warmed()

    def _warmed(self) -> socket.socket:
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
        """CPU time of the process and its children; of the latest one, where it had to be made again."""
        return cpu_seconds(self._pid) if self._channel is not None else 0.0

    def start(
        self, config: Mapping[str, object], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """Raises OSError."""
        order = {"folder": str(folder), "environment": dict(environment), "config": dict(config)}
        passed = (streams.stdin, streams.stdout, streams.stderr, streams.result)
        with self._turn:
            channel = self._warmed()
            pid = self._asked(channel, order, passed)["pid"]
        return Process(pid, lambda: self._reaped(channel, pid))

    def _reaped(self, channel: socket.socket, pid: int) -> int:
        with self._turn:
            return int(self._asked(channel, {"reap": pid})["code"])

    def _asked(
        self, channel: socket.socket, order: Mapping[str, object], passed: Sequence[int] = ()
    ) -> dict[str, Any]:
        """One order and its answer. Raises TemplateLost."""
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
