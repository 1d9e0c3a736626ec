"""The display of ``tilewright run``: a live panel on a terminal, one line an event elsewhere."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tilewright.evolve.report.bill import count_text, counted, timed
from tilewright.evolve.report.text import duration_text, gain_text, printable, rate_text, speed_text, time_text
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.targets import target_text

PLAIN_SECONDS = 30.0
"""Without a terminal: seconds between lines while nothing improves."""
WORKER_LINES = 8
LASTING = ("warning: ", "workers: ", "starts from: ")
"""Beginnings of notes that stay on the screen."""


@dataclass(frozen=True)
class Snapshot:
    """A campaign's progress at one moment. A budget of None is no limit.

    ``best`` is the best evaluation so far, ``seed`` the first seed's, ``references`` the baselines' on the
    suite by name; ``mirror_lag`` is in evaluations, None without MLflow.
    """

    evaluations: int
    evaluations_budget: int | None
    elapsed_seconds: float
    wall_budget_seconds: float | None
    verdicts: Mapping[str, int] = field(default_factory=dict)
    best: Evaluation | None = None
    seed: Evaluation | None = None
    references: Mapping[str, Evaluation] = field(default_factory=dict)
    activity: list[str] = field(default_factory=list)
    mirror_lag: int | None = None


class Display(Protocol):
    """Shows the progress of a campaign."""

    def start(self, facts: Mapping[str, Any]) -> None:
        """Begin; ``facts`` is the journal's ``campaign`` entry."""
        ...

    def update(self, snapshot: Snapshot) -> None: ...

    def note(self, text: str) -> None:
        """Show one line about the current step; an empty text removes it, one that begins as in ``LASTING`` stays."""
        ...

    def stop(self) -> None:
        """End the display and restore the terminal."""
        ...


def make_display(stream: TextIO | None = None) -> Display:
    """A live panel if ``stream`` (default: standard output) is a terminal, else plain lines."""
    stream = stream or sys.stdout
    console = Console(file=stream)
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveDisplay(console) if live else PlainDisplay(stream)


class PlainDisplay:
    """One line when the campaign starts, improves or notes a step, and every half minute."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._best = 0.0
        self._line_at = float("-inf")
        self._line: str | None = None
        self._snapshot: Snapshot | None = None
        self._told: Mapping[str, int] | None = None

    def start(self, facts: Mapping[str, Any]) -> None:
        self._write(campaign_text(facts))

    def update(self, snapshot: Snapshot) -> None:
        best = snapshot.best if snapshot.best and snapshot.best.workloads else None
        fitness = (best.fitness or 0.0) if best and timed(best.target) else 0.0
        if fitness > self._best:
            self._best = fitness
            new = "new " * (self._snapshot is not None)  # a resumed campaign has one already
            self._write(f"{progress_text(snapshot)}: {new}best {best_text(snapshot)}")
        elif time.monotonic() - self._line_at >= PLAIN_SECONDS:
            self._write_progress(snapshot)
        self._snapshot = snapshot

    def note(self, text: str) -> None:
        if text:
            self._write(text)

    def stop(self) -> None:
        if self._snapshot is not None:
            self._write_progress(replace(self._snapshot, activity=[]))
            self._snapshot = None

    def _write_progress(self, snapshot: Snapshot) -> None:
        lag = f", MLflow {snapshot.mirror_lag} behind" if snapshot.mirror_lag else ""
        # where nothing has ended since the last such line, what the campaign waits for
        waits = f"; {snapshot.activity[0]}" if snapshot.activity and snapshot.verdicts == self._told else ""
        self._told = snapshot.verdicts
        counts = sorted(snapshot.verdicts.items(), key=lambda count: -count[1])
        verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts) or "no verdicts yet"
        self._write(f"{progress_text(snapshot)}: {verdicts}{lag}{waits}")

    def _write(self, line: str) -> None:
        if line != self._line:
            self._stream.write(f"{printable(line)}\n")
            self._stream.flush()
        self._line, self._line_at = line, time.monotonic()


class LiveDisplay:
    """A panel that redraws itself in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._facts: Mapping[str, Any] = {}
        self._note = ""
        self._snapshot: Snapshot | None = None

    def start(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._live = Live(self._panel(), console=self._console, refresh_per_second=4, transient=False)
        self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._redraw()

    def note(self, text: str) -> None:
        if text.startswith(LASTING) and self._live is not None:  # stays above the panel
            self._live.console.print(Text(printable(text)))
            return
        self._note = printable(text)
        self._redraw()

    def stop(self) -> None:
        if self._live is not None:
            self._note = ""
            self._live.update(self._panel(ended=True))
            self._live.stop()
            self._live = None

    def _redraw(self) -> None:
        if self._live is not None:
            self._live.update(self._panel())

    def _panel(self, ended: bool = False) -> Panel:
        parts: list[RenderableType] = []
        snapshot = self._snapshot
        if snapshot is not None:
            parts += [_bars(snapshot), Text(), _figures(snapshot), Text(), _verdicts(snapshot)]
            if not ended:
                parts.append(_workers(snapshot))
        if self._note:
            parts.append(Text(printable(self._note), style="italic"))
        heading = Text(printable(campaign_text(self._facts)), style="bold")
        return Panel(Group(*parts), title=heading, title_align="left", border_style="blue", padding=(1, 2))


def campaign_text(facts: Mapping[str, Any]) -> str:
    """``quickstart-001: gemm_fp8_fused/g512 on tpu7x (modelled), suite quickstart, seed 0``."""
    return (
        f"{facts.get('id', 'campaign')}: {facts.get('operator')} on {target_text(facts.get('target'))} "
        f"({facts.get('target_kind')}), suite {facts.get('suite')}, seed {facts.get('seed')}"
    )


def progress_text(snapshot: Snapshot) -> str:
    """``12/60 evaluations, 1 free duplicate, 31.0 s of 5 min 0 s``."""
    count = str(snapshot.evaluations)
    if snapshot.evaluations_budget is not None:
        count += f"/{snapshot.evaluations_budget}"
    free = max(0, sum(snapshot.verdicts.values()) - snapshot.evaluations)
    wall = duration_text(snapshot.elapsed_seconds)
    if snapshot.wall_budget_seconds is not None:
        wall += f" of {duration_text(snapshot.wall_budget_seconds)}"
    return f"{count_text(count, free)}, {wall}"


def best_text(snapshot: Snapshot) -> str:
    """The best rate so far with unit, target and kind, and the speed against the seed and the baselines."""
    best = snapshot.best
    if best is None or best.fitness is None:
        return "none yet"
    if not timed(best.target):
        return "none: times of an interpreter mean nothing"
    rivals = [(name, e) for name, e in _rivals(snapshot) if e.fitness and e.genome != best.genome]
    speeds = [speed_text(best.fitness / (e.fitness or 0.0), name) for name, e in rivals]
    return ", ".join([f"{rate_text(best.fitness, best.unit)} ({_target_and_kind(best)})", *speeds])


def _target_and_kind(evaluation: Evaluation) -> str:
    kind = evaluation.workloads[0].kind.value if evaluation.workloads else "no figures"
    return f"{target_text(evaluation.target)}, {kind}"


def _rivals(snapshot: Snapshot) -> list[tuple[str, Evaluation]]:
    seed = [("seed", snapshot.seed)] if snapshot.seed is not None else []
    return [*seed, *snapshot.references.items()]


def _bars(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 2))
    count, budget = snapshot.evaluations, snapshot.evaluations_budget
    table.add_row("evaluations", _bar(count, budget), str(count) if budget is None else f"{count} of {budget}")
    seconds, limit = snapshot.elapsed_seconds, snapshot.wall_budget_seconds
    text = duration_text(seconds) + ("" if limit is None else f" of {duration_text(limit)}")
    table.add_row("wall time", _bar(seconds, limit), text)
    if snapshot.mirror_lag is not None:
        lag = f"{counted(snapshot.mirror_lag, 'evaluation')} behind" if snapshot.mirror_lag else "up to date"
        table.add_row("MLflow", Text(lag, style="dim"))
    return table


def _bar(done: float, total: float | None) -> RenderableType:
    return "" if total is None else ProgressBar(total=total, completed=min(done, total), width=36)


def _figures(snapshot: Snapshot) -> RenderableType:
    """Best, seed and baselines on the suite: rate and the time of each of the first workloads."""
    named: list[tuple[str, Evaluation | None]] = [("best so far", snapshot.best), *_rivals(snapshot)]
    rows = [(name, e) for name, e in named if e is not None]
    if not rows:
        return Text("No candidate has passed every gate yet.", style="dim")
    first = rows[0][1]
    if not timed(first.target):
        return Text("Times of an interpreter mean nothing: candidates are right or wrong.", style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(f"on {_target_and_kind(first)}")
    for column in (f"{first.unit} (geometric mean)", *(w.workload for w in first.workloads[:3]), "gain of the best"):
        table.add_column(column, justify="right")
    best = snapshot.best.fitness if snapshot.best else None
    for name, evaluation in rows:
        if evaluation.fitness is None:
            reason = printable(f"{evaluation.verdict.value}: {evaluation.reason[:60]}")
            table.add_row(Text(name), Text(reason), style="dim")
            continue
        times = [time_text(figures.seconds) for figures in evaluation.workloads[:3]]
        ratio = "" if evaluation is snapshot.best or not best else gain_text(best / evaluation.fitness)
        style = "bold cyan" if evaluation is snapshot.best else ""
        table.add_row(Text(name), f"{evaluation.fitness:.1f}", *times, ratio, style=style)
    return table


def _verdicts(snapshot: Snapshot) -> Text:
    text = Text()
    for verdict, count in sorted(snapshot.verdicts.items(), key=lambda vn: -vn[1]):
        style = "green" if verdict == Verdict.OK.value else "red"
        text.append(f"{count} ", style=f"bold {style}").append(f"{verdict}   ")
    return text


def _workers(snapshot: Snapshot) -> RenderableType:
    lines = [printable(line) for line in snapshot.activity[:WORKER_LINES]]
    if len(snapshot.activity) > WORKER_LINES:
        lines.append(f"and {len(snapshot.activity) - WORKER_LINES} more workers")
    return Group(*(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines))
