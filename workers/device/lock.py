"""One measurement at a time on a device, across every campaign and cluster of a machine.

Ray keeps the jobs of one cluster apart; two campaigns that start clusters of their own would time each other's work.
"""

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path


def lock_path(device: str) -> Path:
    """The lock file of the device with this identity, in the machine's temporary folder."""
    return Path(tempfile.gettempdir()) / f"tilewright-device-{re.sub(r'[^A-Za-z0-9]+', '-', device)}.lock"


@contextlib.contextmanager
def exclusive(device: str | None) -> Iterator[None]:
    """Wait for the device, and hold it. Nothing to hold where it has no identity (an interpreter).

    The kernel lets go when a holder dies. The file stays: deleting it would let two holders lock two files of one
    name. Raises OSError when it can be neither made nor opened.
    """
    if device is None:
        yield
        return
    descriptor = _open(lock_path(device))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """Another user's file is opened to read, which is enough for a lock; a link is never followed."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
