"""How a child ended, and what is known about it."""

from dataclasses import dataclass, field
from enum import StrEnum
from signal import Signals

from tilewright.workers.child.frames import Frame


class Ending(StrEnum):
    """How a child ended."""

    DONE = "done"
    STOPPED = "stopped"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    FLOOD = "flood"
    MEMORY = "memory"
    GARBAGE = "garbage"


@dataclass
class ChildOutcome:
    """The outcome of a finished child. ``detail`` is one line for any ending but ``done``.

    ``signal``: what killed it, if a signal did.
    """

    ending: Ending
    frames: list[Frame] = field(default_factory=list)
    detail: str = ""
    signal: Signals | None = None
    log: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the child and what it started; of a child that serves many jobs, for this one."""

    def first(self, kind: str) -> Frame | None:
        """The first frame of that kind, if there is one."""
        return next((frame for frame in self.frames if frame.kind == kind), None)


@dataclass(frozen=True)
class Death:
    """The end of a process that had not answered: one line, and the signal that killed it, if one did.

    ``failed``: it did not leave with exit code 0.
    """

    detail: str
    signal: Signals | None = None
    failed: bool = True


def death(code: int | None) -> Death:
    """What an exit code, or minus a signal's number, says."""
    if code is None or code >= 0:
        return Death(f"exit code {code} before it had answered", failed=bool(code))
    try:
        killed = Signals(-code)
    except ValueError:
        return Death(f"killed by signal {-code}")
    return Death(f"killed by {killed.name}", killed)
