"""``tilewright watch``: shows a campaign of another process; it only reads the journal."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.mlflow_mirror.process import read_progress
from tilewright.evolve.record.history import Candidate
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Event, Journal, is_running
from tilewright.evolve.report.data import CampaignClock
from tilewright.evolve.report.text import duration_text
from tilewright.evolve.show.display import Display, Snapshot
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.seeds.operator import Scope

POLL_SECONDS = 1.0
QUIET_SECONDS = 60.0
"""After so long without a new row the display shows a note."""
ENDS = ("finished", "interrupted")


class JournalView:
    """A growing journal as snapshots for a display; it reads every row once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.facts: Mapping[str, Any] = {}
        self._arrival = 0
        self._pending: dict[int, Candidate] = {}
        self._next = 0
        self._verdicts: Counter[str] = Counter()
        self._best: Evaluation | None = None
        self._seeds: dict[int, Evaluation] = {}
        self._marks: list[float] = []
        self._events: tuple[Event, ...] = ()

    def refresh(self) -> None:
        """Read new rows. Raises sqlite3.OperationalError while the file cannot be read."""
        self.facts = self.facts or self._journal.meta("campaign", {})
        self._events = tuple(event for event in self._journal.events() if event.kind != "promoted")
        for candidate in self._journal.candidates(self._next):
            self._pending[candidate.index] = candidate
            self._next = candidate.index + 1
        for arrival, index, evaluation, at in self._journal.evaluations(self._arrival):
            self._arrival = arrival
            self._marks.append(at)
            self._pending.pop(index, None)
            self._count(index, evaluation)

    @property
    def ended(self) -> str | None:
        """``finished`` or ``interrupted`` after such an event, None while the campaign runs."""
        kinds = [e.kind for e in self._events if e.kind in ("started", "resumed", *ENDS)]
        return kinds[-1] if kinds and kinds[-1] in ENDS else None

    @property
    def last_news(self) -> float:
        """Unix seconds of the newest row; 0 without one."""
        return max([event.at for event in self._events] + self._marks[-1:], default=0.0)

    def snapshot(self) -> Snapshot:
        """The campaign's progress at the newest row; ``activity`` are its pending candidates."""
        budget = self.facts.get("budget") or {}
        progress = read_progress(self._journal.path)
        evaluations = sum(self._verdicts.values())
        return Snapshot(
            # the budget does not count duplicates
            evaluations=evaluations - self._verdicts[Verdict.DUPLICATE.value],
            evaluations_budget=budget.get("evaluations"),
            elapsed_seconds=CampaignClock(self._events, self._marks)(self.last_news),
            wall_budget_seconds=budget.get("wall_seconds"),
            verdicts=dict(self._verdicts),
            best=self._best,
            seed=max(self._seeds.values(), key=lambda e: e.fitness or 0.0, default=None),
            references=self._journal.references(Scope.SUITE.value),
            activity=[f"candidate {c.index}: {c.mutation.detail}" for c in self._pending.values()],
            mirror_lag=max(0, evaluations - progress.mirrored) if progress.uri else None,
        )

    def _count(self, index: int, evaluation: Evaluation) -> None:
        self._verdicts[evaluation.verdict.value] += 1
        if evaluation.fitness is None:
            return
        if self._best is None or evaluation.fitness > (self._best.fitness or 0.0):
            self._best = evaluation
        if index < len(self.facts.get("seeds") or ()):
            self._seeds[index] = evaluation


def watch(folder: Path, display: Display, sleep: Callable[[float], None] = time.sleep) -> str | None:
    """Show a campaign until it ends; ``finished``, ``interrupted`` or ``killed``, None after Ctrl-C.

    Raises UserError when its folder disappears, JournalError for a journal that cannot be read.
    """
    with Journal(folder / JOURNAL) as journal:
        view = JournalView(journal)
        display.start(journal.meta("campaign", {"id": folder.name}))
        try:
            return _follow(view, folder, display, sleep)
        except KeyboardInterrupt:
            return None
        finally:
            display.stop()


def _follow(view: JournalView, folder: Path, display: Display, sleep: Callable[[float], None]) -> str:
    shown = ""
    while True:
        try:
            running = is_running(folder / JOURNAL)  # before the rows: its last ones come before it lets go
            view.refresh()
            snapshot, ended = view.snapshot(), view.ended or (None if running else "killed")
            problem = _silence(view)
            display.update(replace(snapshot, activity=[]) if ended else snapshot)
            if ended:
                return ended
        except sqlite3.OperationalError as error:
            problem = f"cannot read the journal at the moment: {error}"
        if problem != shown:
            display.note(problem)
            shown = problem
        if not (folder / JOURNAL).is_file():
            raise UserError(f"campaign {folder.name} was removed while tilewright watched it.")
        sleep(POLL_SECONDS)


def _silence(view: JournalView) -> str:
    """How long the journal has had no new row, in minutes; empty during the first one."""
    quiet = time.time() - view.last_news
    if quiet < QUIET_SECONDS:
        return ""
    minutes = duration_text(quiet // QUIET_SECONDS * QUIET_SECONDS)
    return f"no new row for {minutes}: the campaign is in a long step"
