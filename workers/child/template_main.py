"""The program of a template process: import once, then fork one child per order.

Started by ``workers.child.launch.Template`` as ``python -I template_main.py ROOT PARENT_PID CHANNEL_FD
MODULE...``. An order
comes with the child's four streams and is answered with its process id; ``end`` kills the child's group and is
answered with how it ended. The template itself never runs a job.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

RESULT = 3
"""Where a forked child finds its result pipe."""


def main(arguments: list[str]) -> None:
    sys.path.insert(0, arguments[0])
    from tilewright.workers.child.descendants import adopt_orphans

    adopt_orphans(int(arguments[1]))
    for name in ("tilewright.workers.child.once_main", "tilewright.workers.child.frames", *arguments[3:]):
        module = importlib.import_module(name)
        if hasattr(module, "prepare"):
            module.prepare()
    gc.collect()
    gc.freeze()  # collections in the children leave the shared pages alone
    serve(Path(arguments[0]), socket.socket(fileno=int(arguments[2])))


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
        from tilewright.workers.child import once_main

        code = once_main.main(
            [str(root), str(template), str(RESULT), json.dumps(order["limits"])], forked=True
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
