"""Children that serve many jobs, because starting one costs seconds; replaced at the first sign of trouble.

A session's child is confined like that of ``workers.child.run_once``. It is killed when a job exceeds its wall clock,
when no frame arrives for ``stall_seconds``, when an answer is malformed, and when an ``error`` frame says ``spoiled``
(the device's state may be damaged). A spare child that has already imported its libraries then takes its place.
"""

import contextlib
import dataclasses
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.workers.child.drain import ByteLimits, Drain, Stop
from tilewright.workers.child.ending import ChildOutcome, Ending, death
from tilewright.workers.child.frames import Frame, FrameReader, encode
from tilewright.workers.child.launch import Spawn, cpu_seconds
from tilewright.workers.child.run_once import Pipes, environment

START_SECONDS = 90.0
"""How long a child may take to import its libraries and open its device."""

PING_SECONDS = 20.0
"""How long an idle child may take to answer that it lives."""

ADDRESS_BYTES = 1 << 46
"""Address space: a GPU's driver reserves terabytes of it."""

LAUNCHER = Spawn()

_FRAME_LIMIT = 1 << 30
_BYTES = ByteLimits(result=8 << 30, log=256 << 20)
_LOOK_SECONDS = 0.2
_LEAVE_SECONDS = 5.0


@dataclass(frozen=True)
class SessionConfig:
    """How to start a child: its runner with the runner's configuration, its environment, and the paths it may touch."""

    runner: str
    runner_config: Mapping[str, Any]
    environment: Mapping[str, str]
    shared: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    spare: bool = False
    scratch: Path | None = None
    """Parent of the child's own folder; None: the system's folder for temporary files."""


@dataclass(frozen=True)
class JobLimits:
    """Wall clock of one job, and the longest silence within it, in seconds."""

    wall_seconds: float
    stall_seconds: float


class SessionDied(RuntimeError):
    """A child that could not start. The message is one line."""


class Session:
    """One child process. ``run`` may be called again as long as it returned the ending ``done``."""

    def __init__(self, config: SessionConfig) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tilewright-", dir=config.scratch))
        self._pipes = Pipes()
        try:
            self._process = LAUNCHER.start(
                _config(config), self._folder, environment(self._folder, config.environment), self._pipes.theirs
            )
        except OSError:
            self._pipes.close_all()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._pipes.close_theirs()
        self._reader = FrameReader(_FRAME_LIMIT)
        os.set_blocking(self._pipes.result, False)
        self.hello: Mapping[str, Any] | None = None
        self.jobs = 0
        """Served so far."""

    def wait_ready(self) -> Mapping[str, Any]:
        """Wait for the child's ``ready`` frame; its data (device, versions). Raises SessionDied."""
        if self.hello is None:
            found = self._converse(b"", "ready", JobLimits(START_SECONDS, START_SECONDS))
            if found.ending is not Ending.DONE:
                last = (found.log.strip().splitlines() or [""])[-1][:200]
                raise SessionDied(f"{found.detail}{': ' + last if last else ''}")
            self.hello = found.frames[-1].data
        return self.hello

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        """Run one job up to its ``done`` frame, which is left out of the outcome's frames. Raises SessionDied."""
        self.wait_ready()
        self.jobs += 1
        # an earlier candidate may have written answers ahead, and cannot know this
        token = secrets.token_hex(8)
        named = Frame(job.kind, {**job.data, "job": token}, job.arrays, job.blobs)
        found = self._converse(encode(named), "done", limits)
        if found.ending is Ending.DONE and found.frames.pop().data.get("job") != token:
            found.ending, found.detail = Ending.GARBAGE, "an answer to another job"
        return found

    def is_alive(self) -> bool:
        """Whether it has sent nothing since its last job and answers a ping within ``PING_SECONDS``."""
        if self._process.wait(0) or self._reader.pending:
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipes.result, 1)  # bytes nobody asked for, or the end of the pipe
            return False
        limits = JobLimits(PING_SECONDS, PING_SECONDS)
        return self.run(Frame("ping"), limits).ending is Ending.DONE

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the child and what it started."""
        return cpu_seconds(self._process.pid)

    def close(self) -> None:
        """Kill the child with all it started, and remove its folder."""
        self._process.end()
        self._pipes.close_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _converse(self, message: bytes, last: str, limits: JobLimits) -> ChildOutcome:
        began = time.monotonic()
        outcome = ChildOutcome(Ending.DONE)
        pipes = self._pipes
        logs = (pipes.stdout, pipes.stderr)
        with Drain(pipes.stdin, logs, pipes.result, message, self._reader, _BYTES) as drain:
            while not (drain.frames and drain.frames[-1].kind == last):
                if not drain.open:
                    self._record_death(outcome)
                    break
                found = _passed_limit(limits, began, drain.heard) or drain.step(_LOOK_SECONDS)
                if isinstance(found, Stop):
                    outcome.ending, outcome.detail = found
                    break
            drain.rest_of_log()
        outcome.frames = drain.frames
        outcome.seconds = time.monotonic() - began
        outcome.log = drain.log.decode(errors="replace")
        return outcome

    def _record_death(self, outcome: ChildOutcome) -> None:
        """The result pipe has closed: wait up to ``_LEAVE_SECONDS`` for the child to exit, and note how it ended."""
        if not self._process.wait(_LEAVE_SECONDS):
            outcome.ending, outcome.detail = Ending.TIMEOUT, "closed its result pipe and stayed"
            return
        ended = death(self._process.end())
        outcome.ending, outcome.detail, outcome.signal = Ending.CRASHED, ended.detail, ended.signal


def _passed_limit(limits: JobLimits, began: float, heard: float) -> Stop | None:
    now = time.monotonic()
    if now - began > limits.wall_seconds:
        return Stop(Ending.TIMEOUT, f"still running after {limits.wall_seconds:g} s")
    if now - heard > limits.stall_seconds:
        return Stop(Ending.TIMEOUT, f"no sign of life for {limits.stall_seconds:g} s")
    return None


@dataclass
class SessionPool:
    """Keeps one session ready, and with ``config.spare`` another behind it. Not safe for several threads."""

    config: SessionConfig
    replaced: int = 0
    _current: Session | None = None
    _spare: Session | None = None
    _last_hello: Mapping[str, Any] = field(default_factory=dict)
    _closed: bool = False

    def hello(self) -> Mapping[str, Any]:
        """The data of the runner's ``ready`` frame: device and versions. Raises SessionDied, OSError."""
        try:
            self._last_hello = self._session().wait_ready()
        except SessionDied:
            self.replace()
            raise
        return self._last_hello

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        """Run one job. A child that ended badly, or answered ``spoiled``, is replaced before this returns.

        A child that has run earlier jobs is pinged first, and a job during which it crashes is run once more in a fresh
        child: the cause may be what an earlier candidate left behind.

        Raises SessionDied when a fresh child cannot start, OSError when no process can be made.
        """
        self.hello()
        if self._session().jobs and not self._session().is_alive():
            self.replace()
            self.hello()
        used = self._session().jobs > 0
        outcome = self._session().run(job, limits)
        if used and outcome.ending in (Ending.CRASHED, Ending.GARBAGE):
            self.replace()
            self.hello()
            outcome = self._session().run(job, limits)
        spoiled = any(frame.data.get("spoiled") for frame in outcome.frames if frame.kind == "error")
        if outcome.ending is not Ending.DONE or spoiled:
            self.replace()
            with contextlib.suppress(OSError):  # the next job will say why
                self.warm()
        return outcome

    def warm(self) -> None:
        """Start a child if there is none, without waiting for its imports. Raises OSError."""
        if self._current is None and not self._closed:
            self._current = Session(self.config)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the current child."""
        return self._current.cpu_seconds if self._current is not None else 0.0

    def replace(self) -> None:
        """Kill the current child; the spare takes its place. From then on a spare is always kept ready."""
        if self._current is not None:
            self._current.close()
            self.replaced += 1
            self.config = dataclasses.replace(self.config, spare=True)
        self._current, self._spare = self._spare, None

    def close(self) -> None:
        """Kill the children and start no more; a job under way in another thread raises SessionDied."""
        self._closed = True
        for session in (self._current, self._spare):
            if session is not None:
                session.close()
        self._current = self._spare = None

    def _session(self) -> Session:
        if self._closed:
            raise SessionDied("its children have been ended")
        if self._current is None:
            self._current = Session(self.config)
        if self.config.spare and self._spare is None and self._current.hello is not None:
            self._spare = Session(self.config)  # once the first one waits for nothing any more
        return self._current


def _config(config: SessionConfig) -> dict[str, object]:
    limits = {"memory_bytes": ADDRESS_BYTES, "cpu_seconds": 1 << 20, "file_bytes": 2 << 30, "open_files": 4096}
    return {
        "runner": config.runner,
        "runner_config": dict(config.runner_config),
        "shared": [str(path) for path in config.shared],
        "readable": [str(path) for path in config.readable],
        "devices": [str(path) for path in config.devices],
        "limits": limits,
    }
