"""The program of a template process: import once, then fork one child per order.

Started by ``workers.child.launch.Template`` as ``python -I template_main.py ROOT CHANNEL_FD MODULE...``. An order
comes with the child's four streams and is answered with the process id of its warden; ``reap`` waits for that and is
answered with how it ended. The template itself never runs a job.
"""

import gc
import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

RESULT = 3
"""Where a forked child finds its result pipe."""

_COLLECTIONS = (20_000, 20, 100)
"""Of children that live for seconds and make mostly what stays: as often as usual would be a tenth of their time."""


def main(arguments: list[str]) -> None:
    sys.path.insert(0, arguments[0])
    from tilewright.workers.child.descendants import adopt_orphans, sweep

    adopt_orphans()  # it outlives the thread that started it, and sees the process's end in its channel
    for name in ("tilewright.workers.child.child_main", "tilewright.workers.child.frames", *arguments[2:]):
        module = importlib.import_module(name)
        if hasattr(module, "prepare"):
            module.prepare()
    gc.collect()
    gc.freeze()  # collections in the children leave the shared pages alone
    gc.set_threshold(*_COLLECTIONS)
    serve(Path(arguments[0]), socket.socket(fileno=int(arguments[1])))
    sweep()


def serve(root: Path, channel: socket.socket) -> None:
    """Until the channel closes: start children, and reap those that have ended."""
    while True:
        message, streams, _, _ = socket.recv_fds(channel, 1 << 20, 4)
        if not message:
            return
        order = json.loads(message)
        if "reap" in order:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])}
        else:
            template, pid = os.getpid(), os.fork()
            if pid == 0:
                channel.close()
                become(root, template, order, streams)
            for stream in streams:
                os.close(stream)
            answer = {"pid": pid}
        channel.sendall(json.dumps(answer).encode())


def become(root: Path, template: int, order: dict[str, Any], streams: list[int]) -> None:
    """Turn this fork into the child program; does not return."""
    code = 1
    try:
        os.setsid()
        for target, stream in enumerate(_above(streams)):
            os.dup2(stream, target)
        os.closerange(RESULT + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        from tilewright.workers.child import child_main

        code = child_main.main([str(root), str(template), str(RESULT), json.dumps(order["config"])])
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
