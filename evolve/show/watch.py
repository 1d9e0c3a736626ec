"""``tilewright watch``: shows a campaign of another process; it only reads the journal."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tilewright.evolve.errors import UserError
from tilewright.evolve.mlflow_mirror.process import read_progress
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal, is_running
from tilewright.evolve.report.data import CampaignData, load
from tilewright.evolve.report.text import duration_text
from tilewright.evolve.show.display import Display, Snapshot
from tilewright.seeds.operator import Scope

POLL_SECONDS, POLL_SHARE = 1.0, 5.0
"""Between two readings: a second, or so many times what a reading takes."""

RESUME_SECONDS = 30.0
"""How long a stopped campaign is looked at: whoever resumes it needs so long to take it up."""

QUIET_SECONDS = 60.0
"""After so long without a new row the display shows a note."""


def snapshot(data: CampaignData, journal: Path) -> Snapshot:
    """The campaign's progress at the newest row; ``activity`` are its pending candidates."""
    budget, progress = data.facts.get("budget") or {}, read_progress(journal)
    rated = [point.evaluation for point in data.points if point.evaluation.fitness is not None]
    pending = [c for c in data.candidates.values() if c.genome.id not in data.evaluations]
    return Snapshot(
        evaluations=data.bill.evaluations,
        evaluations_budget=budget.get("evaluations"),
        elapsed_seconds=data.elapsed,
        wall_budget_seconds=budget.get("wall_seconds"),
        verdicts=Counter(point.evaluation.verdict.value for point in data.points),
        best=max(rated, key=lambda e: e.fitness or 0.0, default=None),
        seed=data.best_seed,
        references=data.references[Scope.SUITE.value],
        activity=[f"candidate {c.index}: {c.mutation.detail}" for c in pending],
        mirror_lag=max(0, len(data.points) - progress.mirrored) if progress.uri else None,
    )


def watch(folder: Path, display: Display, sleep: Callable[[float], None] = time.sleep) -> str | None:
    """Show a campaign until it ends; ``finished``, ``interrupted`` or ``killed``, None after Ctrl-C.

    Raises UserError when its folder disappears, JournalError for a journal that cannot be read.
    """
    with Journal(folder / JOURNAL) as journal:
        display.start(journal.meta("campaign", {"id": folder.name}))
        try:
            return _follow(journal, folder, display, sleep)
        except KeyboardInterrupt:
            return None
        finally:
            display.stop()


def _follow(journal: Journal, folder: Path, display: Display, sleep: Callable[[float], None]) -> str:
    shown, rows, news, idle = "", 0, time.monotonic(), 0.0
    while True:
        began = time.monotonic()
        try:
            running = is_running(folder / JOURNAL)  # before the rows: its last ones come before it lets go
            data = load(journal)
            ended = None if running and data.state != "finished" else data.short_state
            ended = None if ended == "running" else ended
            idle = idle + POLL_SECONDS if ended and ended != "finished" else 0.0
            if (count := len(data.points) + len(data.events)) != rows:
                rows, news = count, began
            waits = f"{ended}; watching for 'tilewright resume {folder.name}' to take it up"
            problem = waits if idle else _silence(began - news)
            now = snapshot(data, journal.path)
            display.update(replace(now, activity=[]) if ended else now)
            if ended and (ended == "finished" or idle > RESUME_SECONDS):
                return ended
        except sqlite3.OperationalError as error:
            problem = f"cannot read the journal at the moment: {error}"
        if problem != shown:
            display.note(problem)
            shown = problem
        if not (folder / JOURNAL).is_file():
            raise UserError(f"campaign {folder.name} was removed while tilewright watched it.")
        sleep(max(POLL_SECONDS, POLL_SHARE * (time.monotonic() - began)))


def _silence(quiet: float) -> str:
    """How long the journal has had no new row, in minutes; empty during the first one."""
    if quiet < QUIET_SECONDS:
        return ""
    minutes = duration_text(quiet // QUIET_SECONDS * QUIET_SECONDS)
    return f"no new row for {minutes}: the campaign is in a long step"
