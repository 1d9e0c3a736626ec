"""Remarks of proposers on a campaign, in a file beside its journal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOGBOOK = "campaign.log"


@contextmanager
def logbook(folder: Path) -> Iterator[None]:
    """Append what the search logs, from INFO up, to ``campaign.log`` in ``folder``; the terminal is the display's."""
    handler = logging.FileHandler(folder / LOGBOOK, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    search = logging.getLogger("tilewright.evolve")
    level, handler.level = search.level, logging.INFO
    search.addHandler(handler)
    search.setLevel(logging.INFO)
    try:
        yield
    finally:
        search.removeHandler(handler)
        search.setLevel(level)
        handler.close()
