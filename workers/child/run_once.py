"""Runs one child process and brings back what it said: data, never a verdict.

The child gets its own session, temporary folder, scrubbed environment, limits (see ``workers.child.confine``) and
a wall clock; whatever happens, its whole process group is dead and its folder gone when the run is over.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.workers.child.ending import ChildOutcome, Death, Ending, death
from tilewright.workers.child.frames import Frame, FrameError, FrameReader, encode
from tilewright.workers.child.launch import Launcher, Process, Spawn, Streams, resident_bytes

_FATAL = re.compile(rb"^F\d{4} .*?\] (.*)$", re.MULTILINE)
_CHUNK = 1 << 16
_LOOK_SECONDS = 0.25

ADDRESS_FACTOR = 3
"""Address space a child may map, as a multiple of the memory it may hold: libtpu maps far more than it touches."""


@dataclass(frozen=True)
class ChildLimits:
    """Limits of one child. ``cpu_seconds`` 0 means four times the wall clock.

    ``memory_bytes`` bounds the resident memory, which the parent looks at four times a second; the address space, which
    the kernel bounds at once, is ``ADDRESS_FACTOR`` times as much.
    """

    wall_seconds: float
    memory_bytes: int = 8 << 30
    cpu_seconds: int = 0
    file_bytes: int = 2 << 30
    result_bytes: int = 512 << 20
    log_bytes: int = 16 << 20
    kept_log_bytes: int = 16 << 10


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
    with _Pipes() as pipes:
        process = (launcher or Spawn()).start(
            _confinement(limits), folder, environment(folder, extra_environment or {}), pipes.theirs
        )
        pipes.close_theirs()
        listener = _Listener(process, pipes, encode(job), limits, on_frame)
        try:
            ending, detail = listener.listen(began + limits.wall_seconds)
        finally:
            code = process.end()
            listener.close()
    killed_by = None
    if ending is Ending.DONE and not listener.complete:
        ended = death(code)
        ending, detail, killed_by = Ending.CRASHED, _last_line(ended, listener.log), ended.signal
    log = listener.log.decode(errors="replace")
    return ChildOutcome(ending, listener.frames, detail, killed_by, log, time.monotonic() - began)


def _confinement(limits: ChildLimits) -> dict[str, int]:
    return {
        "memory_bytes": ADDRESS_FACTOR * limits.memory_bytes,
        "cpu_seconds": limits.cpu_seconds or int(4 * limits.wall_seconds) + 1,
        "file_bytes": limits.file_bytes,
    }


class _Pipes:
    """The four pipes between this process and a child."""

    def __enter__(self) -> _Pipes:
        self.stdin, stdin = reversed(os.pipe())
        self.stdout, stdout = os.pipe()
        self.stderr, stderr = os.pipe()
        self.result, result = os.pipe()
        self.theirs = Streams(stdin, stdout, stderr, result)
        self._open = [self.stdin, self.stdout, self.stderr, self.result]
        self._theirs_open = [stdin, stdout, stderr, result]
        return self

    def close_theirs(self) -> None:
        """Close the child's ends here, once it has them."""
        while self._theirs_open:
            os.close(self._theirs_open.pop())

    def close(self, end: int) -> None:
        """Close one of our ends."""
        if end in self._open:
            self._open.remove(end)
            os.close(end)

    def __exit__(self, *_: object) -> None:
        self.close_theirs()
        while self._open:
            os.close(self._open.pop())


class _Listener:
    """Feeds the job to a child and drains its three streams within their limits."""

    def __init__(
        self,
        process: Process,
        pipes: _Pipes,
        job: bytes,
        limits: ChildLimits,
        on_frame: Callable[[Frame], bool] | None,
    ) -> None:
        self.frames: list[Frame] = []
        self.log = b""
        self._process = process
        self._pipes = pipes
        self._limits = limits
        self._on_frame = on_frame
        self._reader = FrameReader(limits.result_bytes)
        self._job = memoryview(job)
        self._received = self._logged = 0
        self._selector = selectors.DefaultSelector()
        for stream in (pipes.stdout, pipes.stderr, pipes.result):
            os.set_blocking(stream, False)
            self._selector.register(stream, selectors.EVENT_READ)
        os.set_blocking(pipes.stdin, False)
        self._selector.register(pipes.stdin, selectors.EVENT_WRITE)

    def listen(self, deadline: float) -> tuple[Ending, str]:
        """Until the result pipe closes, the clock runs out or a limit is passed."""
        look = 0.0
        while self._pipes.result in self._selector.get_map():
            now = time.monotonic()
            left = deadline - now
            if left <= 0:
                return Ending.TIMEOUT, f"still running after {self._limits.wall_seconds:g} s"
            if now >= look:
                look = now + _LOOK_SECONDS
                if resident_bytes(self._process.pid) > self._limits.memory_bytes:
                    return (
                        Ending.MEMORY,
                        f"held more than {self._limits.memory_bytes / 2**30:g} GiB of memory",
                    )
            ready = self._selector.select(min(left, _LOOK_SECONDS))
            if not ready and self._process.wait(0):
                break  # what it left behind may hold its pipes open
            for key, _ in ready:
                try:
                    verdict = self._serve(key.fd)
                except FrameError as error:
                    return Ending.GARBAGE, str(error)
                if verdict is not None:
                    return verdict
        return self._last_words(deadline)

    @property
    def complete(self) -> bool:
        """Whether the child said that it was done, and broke off nothing."""
        return any(frame.kind == "done" for frame in self.frames) and not self._reader.pending

    def close(self) -> None:
        self._selector.close()

    def _serve(self, stream: int) -> tuple[Ending, str] | None:
        if stream == self._pipes.stdin:
            self._send()
            return None
        piece = os.read(stream, _CHUNK if stream != self._pipes.result else 1 << 22)
        if not piece:
            self._selector.unregister(stream)
            return None
        if stream != self._pipes.result:
            return self._write_log(piece)
        self._received += len(piece)
        if self._received > self._limits.result_bytes:
            return Ending.FLOOD, f"more than {self._limits.result_bytes} bytes of results"
        for frame in self._reader.feed(piece):
            self.frames.append(frame)
            if self._on_frame is not None and not self._on_frame(frame):
                return Ending.STOPPED, "stopped by the parent"
        return None

    def _send(self) -> None:
        stdin = self._pipes.stdin
        try:
            sent = os.write(stdin, self._job[: 1 << 20])
        except BlockingIOError:
            return
        except OSError:  # the child closed its input; its ending tells the rest
            sent = len(self._job)
        self._job = self._job[sent:]
        if not self._job:
            self._selector.unregister(stdin)
            self._pipes.close(stdin)

    def _write_log(self, piece: bytes) -> tuple[Ending, str] | None:
        self._logged += len(piece)
        self.log = (self.log + piece)[-self._limits.kept_log_bytes :]
        if self._logged > self._limits.log_bytes:
            return Ending.FLOOD, f"more than {self._limits.log_bytes} bytes of output"
        return None

    def _last_words(self, deadline: float) -> tuple[Ending, str]:
        """After the result pipe closed: the rest of the log, then the end."""
        if not self._process.wait(max(0.1, min(5.0, deadline - time.monotonic()))):
            return Ending.TIMEOUT, "closed its result pipe and stayed"
        for stream in (self._pipes.stdout, self._pipes.stderr):
            with contextlib.suppress(OSError):
                while (piece := os.read(stream, _CHUNK)) and not self._write_log(piece):
                    pass
        return Ending.DONE, ""


def _last_line(ended: Death, log: bytes) -> str:
    """Why a child died: with the runtime's last fatal line, or the last that it printed before it left by itself."""
    if ended.signal is not None:
        fatal = _FATAL.search(log)
        said = fatal[1].decode(errors="replace")[:300] if fatal else ""
    else:
        said = (log.decode(errors="replace").strip().splitlines() or [""])[-1][:200] if ended.failed else ""
    return ended.detail + (f": {said}" if said else "")
