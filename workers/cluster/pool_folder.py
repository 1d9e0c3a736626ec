"""The folder of a pool on this machine: files of its children and of its own Ray, all removed however it ends.

Ray writes some forty files a session (logs, sockets, ports) and leaves them, whether it ran or failed to start; a start
that fails leaves its processes, too, until the driver ends. ``PoolFolder.close`` removes both. The folder of a driver
that was killed is removed by the next one that starts.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from tilewright.workers.child.descendants import descendants

PREFIX = "tw-pool-"
_OWNER = "owner"
_SOCKET_PATH_BYTES = 107
_SOCKET = "/session_2026-11-21_18-25-38_253822_4194304/sockets/plasma_store"
_ROOM = _SOCKET_PATH_BYTES - len(_SOCKET) - len(f"/{PREFIX}12345678")
"""Bytes that the path of the folder for temporary files may have: Ray's sockets live below it."""

_YOUNG_SECONDS = 60.0
"""A folder this young may not be locked by its owner yet."""

_PATIENCE_SECONDS = 5.0
"""For processes that were told to end, which may still be writing."""


class PoolFolder:
    """A folder of its own for one pool, and within it ``scratch`` for the files of its workers.

    Workers are killed in the middle of an evaluation, and could not clean up. ``close`` may be called at any time,
    and again. Raises OSError where no folder can be made.
    """

    def __init__(self) -> None:
        usual = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        base = Path(usual if len(os.fsencode(usual)) <= _ROOM else "/tmp")
        base.mkdir(parents=True, exist_ok=True)
        sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self.scratch = self.path / "scratch"
        self.scratch.mkdir()
        # held until this process ends, however it ends: what tells a living owner from a dead one
        self._lock = _lock_file(self.path / _OWNER, create=True)

    def close(self) -> None:
        """End processes that still know of the folder, and remove it."""
        if self._lock is None:
            return
        end_processes(str(self.path))
        _remove(self.path)
        os.close(self._lock)
        self._lock = None


def sweep(base: Path) -> None:
    """Remove the folders whose owners are gone."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:
                continue
            lock = _lock_file(folder / _OWNER, create=False)
            if lock is not None:
                _remove(folder)
                os.close(lock)


def _lock_file(path: Path, *, create: bool) -> int | None:
    """A descriptor that holds the file's lock, or None where another process does. Raises OSError."""
    opened = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    return opened


def _remove(folder: Path) -> None:
    """Remove a folder that a process may still be writing to."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            return
        if folder.exists():
            time.sleep(0.1)


def end_processes(mark: str) -> None:
    """Kill this process's descendants whose command line names ``mark``, and those that are about to name it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while found := {
        pid: line
        for pid in descendants(os.getpid())
        if (line := _command_line(pid)) is not None and (not line or mark.encode() in line)
    }:
        for pid, line in found.items():
            if line:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _command_line(pid: int) -> bytes | None:
    """Of a process; None where it has ended.

    It is empty while the process is between two programs: whoever started it goes on before the kernel has laid out
    the new one's arguments (seen in 95 of 100 starts on a loaded machine).
    """
    try:
        line = Path("/proc", str(pid), "cmdline").read_bytes()
        if line:
            return line
        state = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0]
        return None if state in b"ZX" else b""
    except OSError:
        return None
