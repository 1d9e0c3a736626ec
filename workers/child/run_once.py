"""Runs one child process and returns its answers: data, never a verdict.

The child gets its own session, temporary folder, scrubbed environment, limits (see ``workers.child.confine``) and
a wall clock; whatever happens, its whole process group is dead and its folder gone when the run is over.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tilewright.workers.child.drain import ByteLimits, Drain, Stop
from tilewright.workers.child.ending import ChildOutcome, Death, Ending, death
from tilewright.workers.child.frames import Frame, FrameReader, encode
from tilewright.workers.child.launch import Deadline, Launcher, Process, Spawn, Streams, cpu_seconds, resident_bytes

_FATAL = re.compile(rb"^F\d{4} .*?\] (.*)$", re.MULTILINE)
_LOOK_SECONDS = 0.25

ADDRESS_FACTOR = 3
"""Address space a child may map, as a multiple of the memory it may hold: libtpu maps far more than it touches."""


PIPE_BYTES = 1 << 20
"""Of a pipe: each time one is full or empty its end here waits for its turn among threads that judge."""


@dataclass(frozen=True)
class ChildLimits:
    """Limits of one child. ``cpu_seconds`` 0 means four times the wall clock; of that, waiting for a processor does not
    count up to ``WAITING_FACTOR``.

    ``memory_bytes`` bounds the resident memory, which the parent looks at four times a second; the address space, which
    the kernel bounds at once, is ``ADDRESS_FACTOR`` times as much.
    """

    wall_seconds: float
    memory_bytes: int = 8 << 30
    cpu_seconds: int = 0
    file_bytes: int = 2 << 30
    result_bytes: int = 512 << 20
    log_bytes: int = 16 << 20


@contextlib.contextmanager
def temporary_folder(base: Path | None = None) -> Iterator[Path]:
    """A fresh folder that is gone afterwards, whatever a child left in it."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The child's whole environment: nothing of the parent's but its PATH reaches it."""
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **extra,
    }


def run_child(
    job: Frame,
    limits: ChildLimits,
    folder: Path,
    *,
    extra_environment: Mapping[str, str] | None = None,
    on_frame: Callable[[Frame], bool] | None = None,
    launcher: Launcher | None = None,
) -> ChildOutcome:
    """Run one job to its end. ``on_frame`` sees each frame as it arrives; False stops the child.

    ``folder`` becomes the child's working directory and the only place it can write.
    ``launcher`` starts the process; by default the child program is spawned.
    Raises OSError when no process can be started.
    """
    began = time.monotonic()
    resources = {
        "memory_bytes": ADDRESS_FACTOR * limits.memory_bytes,
        "cpu_seconds": limits.cpu_seconds or int(4 * limits.wall_seconds) + 1,
        "file_bytes": limits.file_bytes,
    }
    with Pipes() as pipes:
        process = (launcher or Spawn()).start(
            {"limits": resources}, folder, environment(folder, extra_environment or {}), pipes.theirs
        )
        pipes.close_theirs()
        reader = FrameReader(limits.result_bytes)
        sizes = ByteLimits(limits.result_bytes, limits.log_bytes)
        with Drain(
            pipes.stdin,
            (pipes.stdout, pipes.stderr),
            pipes.result,
            encode(job),
            reader,
            sizes,
            on_frame,
            on_sent=lambda: pipes.close(pipes.stdin),
        ) as drain:
            try:
                ending, detail = _listen(drain, process, limits)
            finally:
                spent = cpu_seconds(process.pid)
                code = process.end()
    killed_by = None
    complete = any(frame.kind == "done" for frame in drain.frames) and not reader.pending
    if ending is Ending.DONE and not complete:
        ended = death(code)
        ending, detail, killed_by = Ending.CRASHED, _last_line(ended, drain.log), ended.signal
    log = drain.log.decode(errors="replace")
    return ChildOutcome(ending, drain.frames, detail, killed_by, log, time.monotonic() - began, spent)


class Pipes:
    """The four pipes between this process and a child."""

    def __init__(self) -> None:
        self.stdin, stdin = reversed(os.pipe())
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.result, result = os.pipe()
        for end in (self.stdin, self.result):
            with contextlib.suppress(OSError):  # more than a user may have
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.theirs = Streams(stdin, stdout, stderr, result)
        self._open = [self.stdin, self.stdout, self.stderr, self.result]
        self._theirs_open = [stdin, stdout, stderr, result]

    def close_theirs(self) -> None:
        """Close the child's ends here, once it has them."""
        while self._theirs_open:
            os.close(self._theirs_open.pop())

    def close(self, end: int) -> None:
        """Close one of our ends."""
        if end in self._open:
            self._open.remove(end)
            os.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_all()

    def close_all(self) -> None:
        """Close what is still open. A session may be closed by another thread than the one that uses it."""
        self.close_theirs()
        ends, self._open = self._open, []
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def _listen(drain: Drain, process: Process, limits: ChildLimits) -> Stop:
    """Until the result pipe closes, the clock runs out or a limit is passed."""
    look, deadline = 0.0, Deadline(process.pid, limits.wall_seconds)
    while drain.open:
        now = time.monotonic()
        if (left := deadline.seconds_left()) <= 0:
            waited = deadline.waited
            besides = f", {waited:.0f} s of waiting for a processor apart" if waited >= 1 else ""
            return Stop(Ending.TIMEOUT, f"still running after {limits.wall_seconds:g} s{besides}")
        if now >= look:
            look = now + _LOOK_SECONDS
            if resident_bytes(process.pid) > limits.memory_bytes:
                held = f"held more than {limits.memory_bytes / 2**30:g} GiB of memory"
                return Stop(Ending.MEMORY, held)
        found = drain.step(min(left, _LOOK_SECONDS))
        if isinstance(found, Stop):
            return found
        if not found and process.wait(0):
            # it may have answered between the last look and its end; what it left behind may hold its pipes open
            while drain.open and (found := drain.step(0.0)):
                if isinstance(found, Stop):
                    return found
            break
    if not process.wait(max(0.1, min(5.0, deadline.seconds_left()))):
        return Stop(Ending.TIMEOUT, "closed its result pipe and stayed")
    drain.rest_of_log()
    return Stop(Ending.DONE, "")


def _last_line(ended: Death, log: bytes) -> str:
    """Why a child died: with the runtime's last fatal line, or the last that it printed before it left by itself."""
    if ended.signal is not None:
        fatal = _FATAL.search(log)
        line = fatal[1].decode(errors="replace")[:300] if fatal else ""
    else:
        line = (log.decode(errors="replace").strip().splitlines() or [""])[-1][:200] if ended.failed else ""
    return ended.detail + (f": {line}" if line else "")
