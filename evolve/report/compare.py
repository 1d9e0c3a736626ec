"""Two campaigns side by side on one page: curves, winners by shape, verdicts, credit, and what they differ in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.report import svg
from tilewright.evolve.report.charts import (
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    Curve,
    axes,
    axis_buttons,
    best_path,
    edge_labels,
    frame_of,
    records,
    references,
    span,
)
from tilewright.evolve.report.credit import by_proposer, credit_svg
from tilewright.evolve.report.data import CampaignData, Point
from tilewright.evolve.report.grid import LETTER, shorten
from tilewright.evolve.report.page import chart, note, render_page, section
from tilewright.evolve.report.steps import changes
from tilewright.evolve.report.svg import clean, tag
from tilewright.evolve.report.tables import flatten, head_row, number_cells, table
from tilewright.evolve.report.units import duration_text, gain_text, number_text, rate_text, time_text
from tilewright.evolve.report.whole import write_whole
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.seeds.operator import Scope

MOST_LETTERS = 20
"""Of a campaign's name beside its line."""


@dataclass(frozen=True)
class ComparedCampaigns:
    """``this`` is what the comparison is about, ``other`` what it is held against."""

    this: CampaignData
    other: CampaignData

    @property
    def names(self) -> tuple[str, str]:
        """Ids; a name both have is told apart by a prime."""
        this, other = (str(data.facts.get("id", "campaign")) for data in self.both)
        return this, other if other != this else f"{other}′"

    @property
    def both(self) -> tuple[CampaignData, CampaignData]:
        return self.this, self.other

    @property
    def same_suite(self) -> bool:
        return self.this.facts.get("suite") == self.other.facts.get("suite")


def pair_of(this: CampaignData, other: CampaignData) -> ComparedCampaigns:
    """Raises UserError for campaigns whose figures say nothing about each other."""
    for key, label in (("operator", "operator"), ("target", "target"), ("target_kind", "kind of figures")):
        if this.facts.get(key) != other.facts.get(key):
            raise UserError(
                f"--against: {other.facts.get('id')} has {label} {other.facts.get(key)} and {this.facts.get('id')} has "
                f"{this.facts.get(key)}; only campaigns of one operator and one target are compared."
            )
    return ComparedCampaigns(this, other)


def write_comparison(pair: ComparedCampaigns, path: Path) -> Path:
    """Write the page to ``path``, whole or not at all, and return it. Raises OSError."""
    return write_whole(path, render_comparison(pair))


def render_comparison(pair: ComparedCampaigns) -> str:
    """The page as text; it needs no other file and no network."""
    this, other = pair.names
    sections = [
        _header(pair),
        section("Convergence", _convergence(pair)),
        section("Winner against winner", _winners(pair)),
        section("What became of the candidates", _verdicts(pair)),
        section("Which mutations earned it", _credit(pair)),
        section("What the winners differ in", _differences(pair)),
        section("What the campaigns differ in", _settings(pair)),
    ]
    body = tag("main", "".join(sections))
    title = f"{this} against {other} · tilewright"
    return render_page(title, body, script="report.js", styles=("picture.css", "report.css"))


def _header(pair: ComparedCampaigns) -> str:
    this, other = pair.names
    facts = pair.this.facts
    rows = {"operator": facts.get("operator", "?"), "target": f"{pair.this.target_text} ({pair.this.kind})"}
    for name, data in zip(pair.names, pair.both, strict=True):
        state = f"{data.state}, {len(data.points)} evaluations in {duration_text(data.elapsed)}"
        rows[name] = f"{state}, suite {data.facts.get('suite')}"
    items = "".join(tag("div", tag("dt", clean(k)) + tag("dd", clean(v))) for k, v in rows.items())
    heading = tag("p", "tilewright campaigns", class_="quiet over") + tag(
        "h1", clean(f"{this} against {other}")
    )
    return tag("header", heading + tag("dl", items, class_="facts"))


def _convergence(pair: ComparedCampaigns) -> str:
    if not pair.same_suite:
        return note("The suites differ, and with them what fitness means: there is no common axis.")
    if not all(_passed(data) for data in pair.both):
        return note("One of the campaigns has no candidate that passed yet.")
    charts = "".join(
        chart(overlay_svg(pair, axis), f"Convergence by {axis.value}", data_axis=axis.value) for axis in Axis
    )
    told = (
        "Lines are the best so far of each campaign, dots their candidates; dashes are seeds and baselines."
    )
    return axis_buttons() + charts + note(told)


def overlay_svg(pair: ComparedCampaigns, axis: Axis = Axis.EVALUATIONS, *, standalone: bool = False) -> str:
    """Both curves on one pair of axes; both campaigns have a candidate that passed."""
    passed = [_passed(data) for data in pair.both]
    lines = _lines(pair)
    fitnesses = [p.evaluation.fitness or 0.0 for points in passed for p in points]
    frame = frame_of(fitnesses, lines, max(span(data, axis) for data in pair.both))
    label = f"{pair.names[0]} against {pair.names[1]}: fitness against {axis.value}"
    parts, labels = [axes(pair.this, frame, axis)], []
    for line in lines:
        y = frame.y(line.fitness)
        parts.append(svg.tag("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_=f"reference {line.role}"))
        labels.append((y, f"{line.name} {line.fitness:.4g}", line.role))
    for which, points, data in zip(("first", "second"), passed, pair.both, strict=True):
        steps, end = records(points), frame.x(max(axis.of(p) for p in data.points))
        best = steps[-1].evaluation.fitness or 0.0
        path = "".join(
            f"M{frame.x(axis.of(p)):.1f} {frame.y(p.evaluation.fitness or 0):.1f}h0" for p in points
        )
        parts.append(svg.tag("path", d=path, class_=f"dots {which}"))
        parts.append(svg.tag("path", d=best_path(steps, frame, axis, round(end, 1)), class_=f"best {which}"))
        labels.append((frame.y(best), f"best {best:.4g}", f"strong {which}"))
    parts.append(_key(pair))
    return svg.drawing(WIDTH, HEIGHT, label, *parts, edge_labels(labels), standalone=standalone)


def _key(pair: ComparedCampaigns) -> str:
    """Which line is whose, at the upper right."""
    names = [shorten(name, MOST_LETTERS) for name in pair.names]
    other = WIDTH - len(names[1]) * LETTER
    this = other - 42 - len(names[0]) * LETTER
    return "".join(
        svg.tag("path", d=f"M{x - 26:.1f} 12h20", class_=f"best {which}")
        + svg.text(x, 16, name, class_=f"strong {which}")
        for which, x, name in zip(("first", "second"), (this, other), names, strict=True)
    )


def _lines(pair: ComparedCampaigns) -> list[Curve]:
    """Seeds and baselines of both; one that both have with the same figure is drawn once."""
    found: dict[tuple[str, float], Curve] = {}
    for line in (*references(pair.this), *references(pair.other)):
        found.setdefault((line.name, line.fitness), line)
    return list(found.values())


def _passed(data: CampaignData) -> list[Point]:
    return [p for p in data.points if p.evaluation.verdict is Verdict.OK]


def _winners(pair: ComparedCampaigns) -> str:
    """Times of both winners on every shape both were timed on."""
    this, other = pair.names
    parts = []
    for scope in (Scope.FINAL, Scope.SUITE):
        mine, theirs = (_winner(data, scope) for data in pair.both)
        if mine is None or theirs is None:
            continue
        before = {w.workload: w.seconds for w in theirs.workloads}
        body = [
            tag(
                "tr",
                tag("th", clean(w.workload), scope="row")
                + number_cells(
                    time_text(w.seconds),
                    time_text(before[w.workload]),
                    gain_text(before[w.workload] / w.seconds),
                ),
            )
            for w in mine.workloads
            if w.workload in before
        ]
        if not body:
            continue
        if len(body) > 1 and pair.same_suite and mine.fitness and theirs.fitness:
            cells = (
                rate_text(mine.fitness, mine.unit),
                rate_text(theirs.fitness, theirs.unit),
                gain_text(mine.fitness / theirs.fitness),
            )
            body.append(
                tag("tr", tag("th", "geometric mean", scope="row") + number_cells(*cells), class_="winner")
            )
        head = head_row(f"{scope.value} workload", clean(this), clean(other), f"speed of {clean(this)}")
        parts.append(table(f"Winners on {pair.this.target_text}, {pair.this.kind}", head, body))
    return "".join(parts) or note("There is no shape that both winners were timed on.")


def _winner(data: CampaignData, scope: Scope) -> Evaluation | None:
    return next((row.evaluation for row in data.ranking(scope) if row.role == "winner"), None)


def _verdicts(pair: ComparedCampaigns) -> str:
    counts = [Counter(p.evaluation.verdict.value for p in data.points) for data in pair.both]
    body = [
        tag("tr", tag("th", clean(verdict), scope="row") + number_cells(*(str(c[verdict]) for c in counts)))
        for verdict in dict.fromkeys([*counts[0], *counts[1]])
    ]
    return table("Evaluations by verdict", head_row("verdict", *map(clean, pair.names)), body) if body else ""


def _credit(pair: ComparedCampaigns) -> str:
    parts = []
    for name, data in zip(pair.names, pair.both, strict=True):
        rows = by_proposer(data)
        if rows:
            parts.append(
                tag("h3", clean(name)) + chart(credit_svg(data, rows, "proposer"), f"Credit in {name}")
            )
    return "".join(parts)


def _differences(pair: ComparedCampaigns) -> str:
    mine, theirs = (data.winner for data in pair.both)
    if mine is None or theirs is None:
        return ""
    if mine.genome.id == theirs.genome.id:
        return note(f"Both campaigns ended with genome {mine.genome.id}.")
    this, other = pair.names
    told = changes(theirs.genome, mine.genome, f"from the winner of {other} to that of {this}")
    return tag("details", tag("summary", "Parameters and source") + told)


def _settings(pair: ComparedCampaigns) -> str:
    """Keys of configuration and toolchain in which the campaigns differ."""
    columns = [{**flatten(data.config), **flatten(data.toolchain, "toolchain.")} for data in pair.both]
    body = []
    for key in sorted({*columns[0], *columns[1]}):
        values = [_text(column, key) for column in columns]
        if values[0] != values[1]:
            body.append(tag("tr", tag("th", clean(key), scope="row") + number_cells(*values)))
    if not body:
        return note("Nothing: configuration and toolchain are the same.")
    return table("Configuration and toolchain", head_row("key", *map(clean, pair.names)), body)


def _text(column: Mapping[str, Any], key: str) -> str:
    return number_text(column[key]) if key in column else "–"
