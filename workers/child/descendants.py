"""Processes that a child starts: found wherever they went, and ended with it.

A process group does not hold what calls ``setsid``, and what is orphaned belongs to nobody. So whoever starts children
is a *subreaper* (prctl(2)): orphans below it become its own, and its descendants are all there is to end. A child of a
session has a *warden* for that: a process of trusted code between the two, which the child can neither signal nor see.
"""

import contextlib
import ctypes
import os
import signal
import time

PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG = 36, 1
SWEEP_SECONDS = 4.0
_PAUSE_SECONDS = 0.002


def descendants(pid: int) -> list[int]:
    """Every process below ``pid``, parents before their children; those that ended meanwhile are missing."""
    found, left = [], [pid]
    while left:
        folder = f"/proc/{left.pop()}/task"
        with contextlib.suppress(OSError):
            for thread in os.listdir(folder):
                with contextlib.suppress(OSError), open(f"{folder}/{thread}/children", "rb", buffering=0) as file:
                    below = [int(n) for n in file.read().split()]
                    found += below
                    left += below
    return found


def adopt_orphans(parent: int | None = None) -> None:
    """Make this process a subreaper. Asked to end (SIGTERM), it ends all below it first.

    The same when the thread of ``parent`` ends that started it.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def leave(number: int, frame: object) -> None:
        sweep()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    if parent is None:
        return
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def sweep(seconds: float = SWEEP_SECONDS) -> bool:
    """Kill and reap all below this process, again until nothing is left; False if something still was in the end.

    That nothing is left is told by ``waitpid`` alone: orphans become this process's children, and the lists in /proc
    may leave out one whose brother ends meanwhile.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not reap_ended():
            return True
        time.sleep(_PAUSE_SECONDS)
    return False


def reap_ended() -> bool:
    """Reap the children that have ended; whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def become_wardens_child(parent: int) -> int:
    """Fork: the caller goes on in the new process, whose parent, the warden, waits for it and ends what it leaves.

    ``parent`` is the process that started this one; the warden ends, and all below it, when that dies or asks. Returns
    the warden's id. The warden exits as the child does.
    """
    # Before there is a child: what it starts at once must already have the warden to fall to.
    adopt_orphans(parent)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return os.getppid()
    _watch(pid)
    raise AssertionError("a warden does not return")


def _watch(pid: int) -> None:
    """Does not return."""
    code = 1
    try:
        empty = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(empty, stream)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # a pipe that the warden holds would never close
        status = _reap(pid)
        sweep()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        code = os.waitstatus_to_exitcode(status)
    finally:
        os._exit(code)


def _reap(pid: int) -> int:
    """Wait for one child, and for orphans that end before it: its status."""
    while True:
        found, status = os.waitpid(-1, 0)
        if found == pid:
            return status
