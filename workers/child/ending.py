"""How a child process ended, and what it sent and used until then."""

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
    """What a finished child, or a finished job of a session, left behind."""

    ending: Ending
    frames: list[Frame] = field(default_factory=list)
    detail: str = ""
    """One line on the cause; empty when the ending is ``done``."""
    signal: Signals | None = None
    """The signal that killed it, if one did."""
    log: str = ""
    """What it wrote to stdout and stderr."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the child and its descendants during this job."""

    def first(self, kind: str) -> Frame | None:
        """The first frame of this kind; None if there is none."""
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
    """The death that a return code of ``Process.end`` means: an exit code, or minus a signal's number."""
    if code is None or code >= 0:
        return Death(f"exit code {code} before it had answered", failed=bool(code))
    try:
        killed = Signals(-code)
    except ValueError:
        return Death(f"killed by signal {-code}")
    return Death(f"killed by {killed.name}", killed)
