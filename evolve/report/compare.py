"""Two campaigns side by side on one page: curves, winners by shape, verdicts, credit, and their differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.evolve.errors import UserError
from tilewright.evolve.report.charts import Axis, comparison_svg, switched_charts
from tilewright.evolve.report.credit import by_proposer, credit_table
from tilewright.evolve.report.data import CampaignData
from tilewright.evolve.report.lineage import change_markup
from tilewright.evolve.report.page import clean, note, render_page, section, tag, write_atomically
from tilewright.evolve.report.tables import fact_list, flatten, head_row, table, text_row
from tilewright.evolve.report.text import duration_text, gain_text, number_text, rate_text, time_text
from tilewright.fitness.evaluation import Evaluation
from tilewright.seeds.operator import Scope


@dataclass(frozen=True)
class ComparedCampaigns:
    """``this`` is the campaign that the comparison is about, ``other`` its rival."""

    this: CampaignData
    other: CampaignData

    @property
    def names(self) -> tuple[str, str]:
        """Ids; a prime marks the rival of a campaign with the same id."""
        this, other = (str(data.facts.get("id", "campaign")) for data in self.both)
        return this, other if other != this else f"{other}′"

    @property
    def both(self) -> tuple[CampaignData, CampaignData]:
        return self.this, self.other

    @property
    def same_suite(self) -> bool:
        return self.this.facts.get("suite") == self.other.facts.get("suite")


def pair_of(this: CampaignData, other: CampaignData) -> ComparedCampaigns:
    """Raises UserError for campaigns whose figures do not compare."""
    for key, name in (("operator", "operator"), ("target", "target"), ("target_kind", "kind of figures")):
        if this.facts.get(key) != other.facts.get(key):
            raise UserError(
                f"--against: {other.facts.get('id')} has {name} {other.facts.get(key)} and {this.facts.get('id')} has "
                f"{this.facts.get(key)}; only campaigns of one operator and one target compare."
            )
    return ComparedCampaigns(this, other)


def write_comparison(pair: ComparedCampaigns, path: Path) -> Path:
    """Write the page to ``path`` and return ``path``. Raises OSError."""
    return write_atomically(path, render_comparison(pair))


def render_comparison(pair: ComparedCampaigns) -> str:
    """The page as text; it needs no other file and no network."""
    this, other = pair.names
    sections = [
        _header(pair),
        section("Convergence", _convergence(pair)),
        section("Winner against winner", _winners(pair)),
        section("Verdicts", _verdicts(pair)),
        section("Credit of proposers", _credit(pair)),
        section("Differences of the winners", _differences(pair)),
        section("Differences of the campaigns", _settings(pair)),
    ]
    body = tag("main", "".join(sections))
    title = f"{this} against {other} · tilewright"
    return render_page(title, body, script="report.js", styles=("picture.css", "report.css"))


def _header(pair: ComparedCampaigns) -> str:
    this, other = pair.names
    facts = pair.this.facts
    rows = {"operator": facts.get("operator", "?"), "target": f"{pair.this.target_text} ({pair.this.kind})"}
    for name, data in zip(pair.names, pair.both, strict=True):
        state = f"{data.short_state}, {len(data.points)} evaluations in {duration_text(data.elapsed)}"
        rows[name] = f"{state}, suite {data.facts.get('suite')}"
    heading = tag("p", "tilewright campaigns", class_="quiet over") + tag(
        "h1", clean(f"{this} against {other}")
    )
    return tag("header", heading + fact_list(rows))


def _convergence(pair: ComparedCampaigns) -> str:
    if not pair.same_suite:
        return note("The campaigns rank by different suites, so that their fitness has no common axis.")
    if not all(data.passed() for data in pair.both):
        return note("In one of the campaigns no candidate has passed every gate yet.")
    pictures = {axis: comparison_svg(pair.both, pair.names, axis) for axis in Axis}
    caption = (
        "A line is the best rate so far of one campaign, a dot a candidate, a dashed line a seed or baseline."
    )
    return switched_charts(pictures) + note(caption)


def _winners(pair: ComparedCampaigns) -> str:
    """Times of both winners on every shape both were timed on."""
    this, other = pair.names
    parts = []
    for scope in (Scope.FINAL, Scope.SUITE):
        mine, theirs = (_winner(data, scope) for data in pair.both)
        if mine is None or theirs is None:
            continue
        before = {w.workload: w.seconds for w in theirs.workloads}
        body = []
        for w in mine.workloads:
            if (seconds := before.get(w.workload)) is not None:
                times = (time_text(w.seconds), time_text(seconds))
                body.append(text_row(w.workload, *times, gain_text(seconds / w.seconds)))
        if len(body) > 1 and pair.same_suite and mine.fitness and theirs.fitness:
            rates = (rate_text(mine.fitness, mine.unit), rate_text(theirs.fitness, theirs.unit))
            gain = gain_text(mine.fitness / theirs.fitness)
            body.append(text_row("geometric mean", *rates, gain, class_="winner"))
        if body:
            head = head_row(f"{scope.value} workload", clean(this), clean(other), f"speed of {clean(this)}")
            parts.append(table(f"Winners on {pair.this.target_text}, {pair.this.kind}", head, body))
    return "".join(parts) or note("No shape was timed in both campaigns.")


def _winner(data: CampaignData, scope: Scope) -> Evaluation | None:
    return next((row.evaluation for row in data.ranking(scope) if row.role == "winner"), None)


def _verdicts(pair: ComparedCampaigns) -> str:
    counts = [Counter(p.evaluation.verdict.value for p in data.points) for data in pair.both]
    body = [
        text_row(v, *(str(count[v]) for count in counts)) for v in dict.fromkeys([*counts[0], *counts[1]])
    ]
    return table("Evaluations by verdict", head_row("verdict", *map(clean, pair.names)), body) if body else ""


def _credit(pair: ComparedCampaigns) -> str:
    return "".join(
        tag("h3", clean(name)) + credit_table(data, rows, "proposer")
        for name, data in zip(pair.names, pair.both, strict=True)
        if (rows := by_proposer(data))
    )


def _differences(pair: ComparedCampaigns) -> str:
    mine, theirs = (data.winner for data in pair.both)
    if mine is None or theirs is None:
        return ""
    if mine.genome.id == theirs.genome.id:
        return note(f"Both campaigns ended with genome {mine.genome.id}.")
    this, other = pair.names
    change = change_markup(theirs.genome, mine.genome, f"from the winner of {other} to the winner of {this}")
    return tag("details", tag("summary", "Parameters and source") + change)


def _settings(pair: ComparedCampaigns) -> str:
    """Keys of configuration and toolchain in which the campaigns differ."""
    columns = [{**flatten(data.config), **flatten(data.toolchain, "toolchain.")} for data in pair.both]
    values = {
        key: [_setting(column, key) for column in columns] for key in sorted({*columns[0], *columns[1]})
    }
    body = [
        text_row(key, *pair_of_values)
        for key, pair_of_values in values.items()
        if len(set(pair_of_values)) > 1
    ]
    if not body:
        return note("Configuration and toolchain are the same.")
    return table("Configuration and toolchain", head_row("key", *map(clean, pair.names)), body)


def _setting(column: Mapping[str, object], key: str) -> str:
    return number_text(column[key]) if key in column else "–"
