"""Where campaigns live on disk: ``HOME/campaigns/<id>/journal.sqlite`` and what is written beside it."""

import errno
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.evolve.errors import UserError

ENVIRONMENT = "TILEWRIGHT_HOME"
JOURNAL = "journal.sqlite"
REPORT = "report.html"
LOGBOOK = "campaign.log"


def home_folder(option: str | None) -> Path:
    """``--home``, else ``$TILEWRIGHT_HOME``, else ``./.tilewright``."""
    return Path(option or os.environ.get(ENVIRONMENT) or ".tilewright")


def campaigns(home: Path) -> list[Path]:
    """Campaign folders, the one last written to last. Raises UserError for a home that cannot be read."""
    for folder in (*home.parents, home, home / "campaigns"):
        wanted = os.X_OK if folder in home.parents else os.R_OK | os.X_OK
        if folder.exists() and not (folder.is_dir() and os.access(folder, wanted)):
            raise UserError(f"home: {folder} is not a readable folder.")
    folders = [path.parent for path in (home / "campaigns").glob(f"*/{JOURNAL}") if path.is_file()]
    return sorted(folders, key=lambda folder: (folder / JOURNAL).stat().st_ctime)


def find_campaign(home: Path, name: str | None) -> Path:
    """The folder of a campaign by id or path; the newest when ``name`` is None. Raises UserError."""
    known = campaigns(home)
    if name is None:
        if not known:
            raise UserError(f"no campaign in {home}; start one with 'tilewright run quickstart'.")
        return known[-1]
    for folder in (home / "campaigns" / name, Path(name)):
        if (folder / JOURNAL).is_file():
            return folder
    ids = ", ".join(folder.name for folder in known) or "none yet"
    raise UserError(f"campaign {name!r} is unknown in {home}; there are: {ids}.")


def new_campaign(home: Path, name: str) -> Path:
    """Create ``<name>-001`` or the next free number. Raises UserError when the folder cannot be written."""
    root = home / "campaigns"
    try:
        root.mkdir(parents=True, exist_ok=True)
        pattern = re.compile(re.escape(name) + r"-(\d+)$")
        numbers = [int(m[1]) for path in root.iterdir() if (m := pattern.match(path.name))]
        folder = root / f"{name}-{max(numbers, default=0) + 1:03d}"
        folder.mkdir()
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"home: cannot write to {root}: {error.strerror}; choose a writable folder with --home or ${ENVIRONMENT}."
        ) from error
    return folder


def require_writable(folder: Path, key: str) -> None:
    """Raises UserError, which names ``key``, when nothing can be written into a folder or the folder cannot be created.

    The check creates and changes nothing.
    """
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise UserError(f"{key}: cannot write to {folder}: {error.strerror}; choose a writable folder.") from error


def bytes_of(folder: Path) -> int:
    """Bytes of the files of a campaign."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def discard(folder: Path) -> None:
    """Remove the folder of a campaign that failed before its first result."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def logbook(folder: Path) -> Iterator[None]:
    """Append what search and workers log to ``campaign.log`` in ``folder``; the terminal is the display's."""
    handler = logging.FileHandler(folder / LOGBOOK, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    search = logging.getLogger("tilewright")
    level, handler.level = search.level, logging.INFO
    search.addHandler(handler)
    search.setLevel(logging.INFO)
    try:
        yield
    finally:
        search.removeHandler(handler)
        search.setLevel(level)
        handler.close()
