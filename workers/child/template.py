"""Children forked from a template, a process that has its libraries loaded: they start in milliseconds, not seconds.

A template is one process's own (``Template``), or several share one (``SharedTemplate``), which forks a template for
each of them (``Branch``): the libraries are imported once on a machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.workers.child.launch import PROGRAMS, ROOT, Process, Streams, cpu_seconds, end_group

_NO_LISTENER = -1
_MOST_WAITING = 256
"""Processes that may have asked for a template of their own while the shared one still imports."""


class TemplateLost(OSError):
    """The template process is gone; the next start makes another."""


class _Forked:
    """A child of the template, seen through the template's channel."""

    def __init__(self, template: _Orders, pid: int) -> None:
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


class _Orders:
    """Has a template process fork children. One child at a time; not safe for several threads."""

    _channel: socket.socket | None = None

    def warm(self) -> None:
        """Have a template process, if there is none, without waiting for its imports. Raises OSError."""
        raise NotImplementedError

    def close(self) -> None:
        """End the template process; a later start makes another."""
        raise NotImplementedError

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process and its children; of the latest one, where it had to be made again."""
        raise NotImplementedError

    def start(
        self, config: Mapping[str, object], folder: Path, environment: Mapping[str, str], streams: Streams
    ) -> Process:
        """Raises OSError."""
        self.warm()
        order = {"folder": str(folder), "environment": dict(environment), "config": dict(config)}
        passed = (streams.stdin, streams.stdout, streams.stderr, streams.result)
        return _Forked(self, self.ask(order, passed)["pid"])

    def ask(self, order: Mapping[str, object], passed: Sequence[int] = ()) -> dict[str, int]:
        """One order and its answer. Raises TemplateLost."""
        channel = self._channel
        try:
            if channel is None:
                raise TemplateLost("the template process is gone")
            socket.send_fds(channel, [json.dumps(order).encode()], list(passed))
            return _answer(channel)
        except OSError as error:
            self.close()
            raise TemplateLost(str(error)) from error


class Template(_Orders):
    """Forks children from one process that has imported ``modules``.

    The template runs none but trusted code and holds no secret: its environment is as scrubbed as a child's. It dies
    with this process.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._modules = tuple(modules)
        self._environment = dict(environment)
        self._pid = 0
        self._finalizer: weakref.finalize[..., Template] | None = None

    def warm(self) -> None:
        if self._channel is not None:
            return
        self._channel, process = _spawn(self._modules, self._environment, None)
        self._pid = process.pid
        self._finalizer = weakref.finalize(self, _stop, self._channel, process)

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self._pid) if self._channel is not None else 0.0

    def close(self) -> None:
        self._channel = None
        if self._finalizer is not None:
            self._finalizer()


class SharedTemplate:
    """A template process that forks templates for others of this machine: see ``Branch``. It dies with this process.

    It begins to import at once, and nobody waits for that. Raises OSError.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        # an abstract name: no file is left behind, and none is reached from another network namespace
        self.address = f"tilewright-{os.getpid()}-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.setblocking(False)
            listener.bind(f"\0{self.address}")
            listener.listen(_MOST_WAITING)
            channel, process = _spawn(modules, environment, listener)
        self._finalizer = weakref.finalize(self, _stop, channel, process)

    def close(self) -> None:
        """End it, and all that was forked of it."""
        self._finalizer()


class Branch(_Orders):
    """Forks children from a template that the shared one at ``address`` forks for this process alone."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._pid = 0

    def warm(self) -> None:
        """Ask for it. Raises OSError where nobody listens, as on another machine."""
        if self._channel is not None:
            return
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            channel.connect(f"\0{self._address}")
        except OSError:
            channel.close()
            raise
        self._channel, self._pid = channel, 0

    def ask(self, order: Mapping[str, object], passed: Sequence[int] = ()) -> dict[str, int]:
        if self._channel is not None and not self._pid:
            try:
                self._pid = _answer(self._channel)["pid"]
            except OSError as error:
                self.close()
                raise TemplateLost(str(error)) from error
        return super().ask(order, passed)

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self._pid) if self._channel is not None and self._pid else 0.0

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with contextlib.suppress(OSError):  # wakes a thread that waits for an answer
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()


def _answer(channel: socket.socket) -> dict[str, Any]:
    answer = channel.recv(1 << 16)
    if not answer:
        raise TemplateLost("the template process ended")
    return dict(json.loads(answer))


def _spawn(
    modules: Sequence[str], environment: Mapping[str, str], listener: socket.socket | None
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = [sys.executable, "-I", str(PROGRAMS / "template_main.py"), str(ROOT), str(os.getpid())]
    passed = [theirs.fileno(), listener.fileno() if listener else _NO_LISTENER]
    with theirs:
        process = subprocess.Popen(
            [*program, *map(str, passed), *modules],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[number for number in passed if number != _NO_LISTENER],
            start_new_session=True,
        )
    return ours, process


def _stop(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    end_group(process)
