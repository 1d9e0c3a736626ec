"""The report: one self-contained HTML file that opens offline, in MLflow's preview and on a phone."""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report import tables
from tilewright.evolve.report.archive_map import archive_map, archive_svg
from tilewright.evolve.report.charts import Axis, axis_buttons, convergence_svg
from tilewright.evolve.report.credit import by_proposer, by_rule, credit_svg
from tilewright.evolve.report.data import CampaignData, judged, load
from tilewright.evolve.report.graph import PAGE, write_lineage
from tilewright.evolve.report.heat import heat_svg, ratios
from tilewright.evolve.report.lineage import drawn_ancestors, lineage_svg
from tilewright.evolve.report.page import chart, note, render_page, section
from tilewright.evolve.report.roofline import roofline, roofline_svg
from tilewright.evolve.report.steps import code, step
from tilewright.evolve.report.svg import clean, tag
from tilewright.evolve.report.timeline import seed_and_winner_timelines, timeline_svg
from tilewright.evolve.report.units import duration_text, percent_text, rate_text, time_text
from tilewright.evolve.report.whole import write_whole
from tilewright.fitness.evaluation import Verdict
from tilewright.seeds.operator import Scope


def write_report(journal: Journal, path: Path) -> Path:
    """Write the report of a campaign, running or ended, to ``path``, its lineage page beside it; return ``path``.

    A file appears whole or not at all. Raises OSError when one cannot be written.
    """
    data = load(journal)
    write_lineage(data, path.with_name(f"{path.stem}-{PAGE}"))
    return write_whole(path, render(data))


def render(data: CampaignData) -> str:
    """The page as text. Nothing in it asks the network for anything, and its policy forbids it."""
    sections = [
        _header(data),
        section("Convergence", _convergence(data)),
        section("Figures", _figures(data)),
        section("Winner against each kernel", _heat(data)),
        section("Headroom", tables.headroom_section(data)),
        section("Roofline", _roofline(data)),
        section("What became of the candidates", tables.verdicts_section(data) if data.points else ""),
        section("Which mutations earned it", _credit(data)),
        section("Archive", _archive(data)),
        section("Lineage of the winner", _lineage(data)),
        section("Where the time goes", _timelines(data) + tables.diagnosis_section(data)),
        section("The winner", _winner(data)),
        section("The bill", tables.bill_section(data) if data.points else ""),
        section("How it was run", _provenance(data)),
    ]
    title = f"{data.facts.get('id', 'campaign')} · tilewright"
    body = tag("main", "".join(sections))
    return render_page(title, body, script="report.js", styles=("picture.css", "report.css"))


def _header(data: CampaignData) -> str:
    facts = data.facts
    started = next((e.at for e in data.events if e.kind == "started"), None)
    state = f"{data.state} ({data.reason})" if data.reason else data.state
    rows = {
        "operator": facts.get("operator", "?"),
        "target": f"{data.target_text} ({data.kind})",
        "suite": facts.get("suite", "?"),
        "state": state.replace("_", " "),
        "evaluations": f"{len(data.points)} in {duration_text(data.elapsed)}",
        "answers": "; ".join(judged(p.evaluation for p in data.points)) or "?",
        "seed": facts.get("seed", "?"),
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started)) if started else "?",
    }
    items = "".join(tag("div", tag("dt", clean(k)) + tag("dd", clean(v))) for k, v in rows.items())
    heading = tag("p", "tilewright campaign", class_="quiet over") + tag(
        "h1", clean(facts.get("id", "campaign"))
    )
    return tag("header", heading + _headline(data) + tag("dl", items, class_="facts"))


def _headline(data: CampaignData) -> str:
    """The result in one line of large figures: the winner's time, and its speed against the others."""
    for scope in (Scope.FINAL, Scope.SUITE):
        rows = [row for row in data.ranking(scope) if row.evaluation.verdict is Verdict.OK]
        winner = next((row for row in rows if row.role == "winner"), None)
        if winner is None:
            continue
        figures = winner.evaluation.workloads[0]
        cards = [
            _card(
                time_text(figures.seconds), f"winner at {figures.workload}, {data.target_text}, {data.kind}"
            ),
            _card(
                percent_text(figures.roofline_fraction),
                f"of the roofline, {rate_text(figures.rate, figures.unit)}",
            ),
        ]
        for row in rows:
            other = next((w for w in row.evaluation.workloads if w.workload == figures.workload), None)
            if row is winner or other is None or len(cards) == 5:
                continue
            ratio = f"×{other.seconds / figures.seconds:.2f}"
            cards.append(_card(ratio, f"against {row.role} {row.name}, {time_text(other.seconds)}"))
        return tag("div", "".join(cards), class_="cards")
    return ""


def _card(figure: str, meaning: str) -> str:
    return tag("div", tag("b", clean(figure)) + tag("span", clean(meaning)), class_="card")


_BANDS = {
    "modelled": "bands, and bars at the right for seeds and baselines, are where a real TPU's figures would lie, "
    "90 % (the time model's error)"
}


def _convergence(data: CampaignData) -> str:
    if not data.points:
        return tag("p", "Nothing has been evaluated yet.")
    charts = "".join(
        chart(convergence_svg(data, axis), f"Convergence by {axis.value}", data_axis=axis.value)
        for axis in Axis
    )
    certainty = (
        _BANDS.get(data.kind, "bands, and bars at the right for seeds and baselines, are 95 % intervals")
        if any(p.evaluation.interval and len(set(p.evaluation.interval)) > 1 for p in data.points)
        else "figures repeat exactly, so that there is no interval to draw"
    )
    told = (
        "Grey dots are candidates that passed every gate, the line is the best so far, "
        f"ticks below are candidates that failed; {certainty}. Hover a step for its mutation."
    )
    return axis_buttons() + charts + note(told)


def _heat(data: CampaignData) -> str:
    found = ratios(data)
    return chart(heat_svg(data, found), "Winner against each kernel by shape") if found else ""


def _roofline(data: CampaignData) -> str:
    found = roofline(data)
    if found is None:
        return ""
    left = " A kernel that moves more than it must lies further left." if found.moved else ""
    roofs = "the public peaks" if found.slanted else "the public bandwidth and the copy"
    told = f"Rates are {data.kind}, roofs {roofs} of one {data.target_text} device.{left}"
    return chart(roofline_svg(data, found), "Roofline") + note(told + " Hover a mark for its shape.")


def _credit(data: CampaignData) -> str:
    pictures = [
        (what, rows) for what, rows in (("proposer", by_proposer(data)), ("rule", by_rule(data))) if rows
    ]
    if not pictures:
        return ""
    told = (
        "A record is a candidate fitter than all before it; its share of the gain is that of logarithms, so that "
        "shares add up to the whole step from the best seed to the best candidate."
    )
    drawn = [chart(credit_svg(data, rows, what), f"Credit by {what}") for what, rows in pictures]
    return "".join(drawn) + note(told)


def _archive(data: CampaignData) -> str:
    """The map, and below it every candidate on it that the winner's lineage does not show."""
    found = archive_map(data)
    if not found.cells:
        return ""
    ancestors = drawn_ancestors(data, data.winner) if data.winner else []
    told = {candidate.index for candidate in ancestors}
    others = [step(data, e.candidate) for e in found.elites if e.candidate.index not in told]
    hidden = f" {found.hidden} more cells are not drawn." if found.hidden else ""
    text = f"The fittest candidate of each cell on each island; a square opens its candidate.{hidden}"
    folded = tag("summary", f"{len(others)} beside the winner's lineage") + "".join(others)
    rest = tag("details", folded) if others else ""
    return chart(archive_svg(data, found), "Archive: islands and cells") + note(text) + rest


def _figures(data: CampaignData) -> str:
    final, suite = tables.figures_section(data, Scope.FINAL), tables.figures_section(data, Scope.SUITE)
    parts = []
    if final:
        parts += [tag("h3", "Final check"), final]
    if suite:
        parts += [tag("h3", f"Suite {clean(data.facts.get('suite'))}, which decided fitness"), suite]
    if parts:
        told = (
            f"Times are {data.kind} for one call on {data.target_text}. A floor is the least time the named "
            "unit needs for this operator, whatever the schedule."
        )
        parts.append(note(told))
    return "".join(parts)


def _lineage(data: CampaignData) -> str:
    if data.winner is None:
        return ""
    legend = "".join(
        tag("span", tag("i", " ", class_=kind) + kind)
        for kind in ("seed", "parameter", "rewrite", "crossover", "llm")
    )
    steps = "".join(step(data, c) for c in drawn_ancestors(data, data.winner))
    toggle = tag("button", "open all steps", type="button", id="open-all")
    picture = chart(lineage_svg(data, data.winner), "Lineage of the winner")
    return tag("p", legend, class_="legend small") + picture + tag("div", toggle, class_="switch") + steps


def _timelines(data: CampaignData) -> str:
    found = seed_and_winner_timelines(data)
    if found is None:
        return ""
    timelines, caption = found
    return chart(timeline_svg(timelines, caption), caption) + note(caption)


def _winner(data: CampaignData) -> str:
    if data.winner is None:
        return ""
    genome = data.winner.genome
    rows = "".join(
        tag("tr", tag("th", clean(k), scope="row") + tag("td", clean(v), class_="n"))
        for k, v in genome.params.items()
    )
    facts = tag("p", f"candidate {data.winner.index}, genome {clean(genome.id)}", class_="quiet small")
    table = tag("div", tag("table", tag("caption", "Parameters") + rows, class_="narrow"), class_="scroll")
    source = tag("details", tag("summary", "Source") + code(genome.source))
    return facts + table + source


def _provenance(data: CampaignData) -> str:
    parts = []
    for name, values in (("Toolchain", data.toolchain), ("System", data.system)):
        rows = "".join(
            tag("tr", tag("th", clean(k), scope="row") + tag("td", clean(v), class_="n"))
            for k, v in values.items()
        )
        if rows:
            table = tag("table", tag("caption", name) + rows, class_="narrow")
            parts.append(tag("div", table, class_="scroll"))
    if data.config:
        text = yaml.safe_dump(dict(data.config), sort_keys=False, allow_unicode=True)
        parts.append(tag("details", tag("summary", "Configuration") + code(text)))
    return "".join(parts)
