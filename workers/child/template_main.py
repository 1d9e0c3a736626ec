"""The program of a template process: import once, then fork one child per order.

Started by ``workers.child.template`` as ``python -I template_main.py ROOT PARENT_PID CHANNEL_FD LISTENER_FD
MODULE...``. An order comes with the child's four streams and is answered with its process id; ``end`` kills the
child's group and is answered with how it ended. The template itself never runs a job.

With a listener (LISTENER_FD is not -1) several processes share the imports: each connection gets a template of its own,
forked from this one, which first says its process id and then serves orders as above.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

RESULT = 3
"""Where a forked child finds its result pipe."""

NO_LISTENER = "-1"
_LOOK_SECONDS = 1.0
_COLLECTIONS = (20_000, 20, 100)
"""Of children that live for seconds and make mostly what stays: as often as usual would be a tenth of their time."""


def main(arguments: list[str]) -> None:
    sys.path.insert(0, arguments[0])
    from tilewright.workers.child.descendants import adopt_orphans

    adopt_orphans(int(arguments[1]))
    for name in ("tilewright.workers.child.child_main", "tilewright.workers.child.frames", *arguments[4:]):
        module = importlib.import_module(name)
        if hasattr(module, "prepare"):
            module.prepare()
    gc.collect()
    gc.freeze()  # collections in the children leave the shared pages alone
    gc.set_threshold(*_COLLECTIONS)
    root, channel = Path(arguments[0]), socket.socket(fileno=int(arguments[2]))
    if arguments[3] == NO_LISTENER:
        serve(root, channel)
    else:
        share(root, channel, socket.socket(fileno=int(arguments[3])))


def share(root: Path, channel: socket.socket, listener: socket.socket) -> None:
    """Until the channel closes: fork a template for every process that connects."""
    from tilewright.workers.child.descendants import adopt_orphans, reap_ended, sweep

    shared = os.getpid()
    while channel not in select.select([channel, listener], [], [], _LOOK_SECONDS)[0]:
        reap_ended()
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            if is_trusted(connection) and os.fork() == 0:
                channel.close()
                listener.close()
                try:
                    adopt_orphans(shared)
                    connection.sendall(json.dumps({"pid": os.getpid()}).encode())
                    serve(root, connection)
                finally:
                    sweep()
                    os._exit(0)
            connection.close()
    sweep()


def is_trusted(connection: socket.socket) -> bool:
    """Whether who connected is no confined process: candidates must not ask for processes.

    The kernel says who connected, whether it gave up privileges for good, and its network namespace.
    """
    pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    try:
        status = Path("/proc", str(pid), "status").read_text(encoding="utf-8", errors="replace")
        here, there = (os.readlink(f"/proc/{who}/ns/net") for who in ("self", pid))
    except OSError:
        return False
    return "NoNewPrivs:\t1" not in status and here == there


def serve(root: Path, channel: socket.socket) -> None:
    """Until the channel closes: start a child, then end it."""
    while True:
        message, streams, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        if not message:
            return
        template, pid = os.getpid(), os.fork()
        if pid == 0:
            channel.close()
            become(root, template, json.loads(message), streams)
        for stream in streams:
            os.close(stream)
        channel.sendall(json.dumps({"pid": pid}).encode())
        if not channel.recv(1 << 10):
            return
        channel.sendall(json.dumps({"code": end(pid)}).encode())


def end(pid: int) -> int:
    """Kill the child and all it started; its exit code, or minus the signal that ended it."""
    from tilewright.workers.child.descendants import sweep

    for kill in (os.killpg, os.kill):  # it may not have its own group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sweep()
    return code


def become(root: Path, template: int, order: dict[str, Any], streams: list[int]) -> None:
    """Turn this fork into the child program; does not return."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        for target, stream in enumerate(_above(streams)):
            os.dup2(stream, target)
        os.closerange(RESULT + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        from tilewright.workers.child import child_main

        code = child_main.main(
            [str(root), str(template), str(RESULT), json.dumps(order["config"])], forked=True
        )
        sys.stdout.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        raise
    finally:
        os._exit(code)


def _above(streams: list[int]) -> list[int]:
    """The same streams under numbers that stdin, stdout, stderr and RESULT do not take."""
    moved = [os.dup(stream) for stream in streams]
    while min(moved) <= RESULT:
        moved = [os.dup(stream) for stream in moved]
    return moved


if __name__ == "__main__":
    main(sys.argv[1:])
