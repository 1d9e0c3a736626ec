"""The system a campaign or a promotion was made with, for the record: this machine, the version and the commit."""

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

COMMIT_VARIABLE = "TILEWRIGHT_COMMIT"
"""Names the commit on machines that have the files and not the checkout."""


def system() -> dict[str, str]:
    """Operating system, architecture, cores this process may use, memory in GiB, commit; no name of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{memory / 2**30:.0f}",
        "commit": commit(),
    }


@cache
def commit() -> str:
    """The checkout's commit, with ``+changes`` when it is not clean; outside one, what $TILEWRIGHT_COMMIT says.

    Asked once a process.
    """
    head = _git("rev-parse", "HEAD")
    if not head:
        return os.environ.get(COMMIT_VARIABLE, "unknown")
    return f"{head}+changes" if _git("status", "--porcelain", "--untracked-files=no") else head


def version() -> str:
    """This tilewright's; ``unknown`` where it is not installed."""
    try:
        return metadata.version("tilewright")
    except metadata.PackageNotFoundError:
        return "unknown"


def _git(*arguments: str) -> str | None:
    """What git says about the checkout this file lies in; None outside one, or without git."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
