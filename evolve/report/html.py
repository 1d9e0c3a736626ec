"""The report: one self-contained HTML file that opens offline, in MLflow's preview and on a phone."""

import json
import time
from pathlib import Path

import yaml

from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report import tables
from tilewright.evolve.report.change import winner_change
from tilewright.evolve.report.charts import convergence_svg
from tilewright.evolve.report.data import SEED_PREFIX, CampaignData, judge_lines, kernel_text, load
from tilewright.evolve.report.lineage import (
    PAGE,
    candidate_details,
    change_markup,
    drawn_ancestors,
    lineage_svg,
    render_lineage,
    write_lineage,
)
from tilewright.evolve.report.page import (
    chart,
    clean,
    code,
    note,
    render_page,
    require_replaceable,
    section,
    tag,
    write_page,
)
from tilewright.evolve.report.roofline import roofline, roofline_svg
from tilewright.evolve.report.text import duration_text, percent_text, rate_text, speed_text, time_text
from tilewright.fitness.evaluation import Verdict
from tilewright.seeds.operator import Scope

CARDS = 5
"""Figures at the head of the page: the winner's time, its share of the roofline, and its speed against the others."""


def write_report(journal: Journal, path: Path) -> Path:
    """Write the report of a campaign, running or ended, to ``path``, its lineage page beside it; return ``path``.

    Raises OSError when a file cannot be written.
    """
    require_replaceable(path)
    data = load(journal)
    write_lineage(data, path.with_name(f"{path.stem}-{PAGE}"))
    return write_page(path, render(data))


def campaign_files(data: CampaignData) -> dict[str, str]:
    """What MLflow keeps of a campaign, text by file name: both pages, two pictures, the winner's kernel."""
    files = {"report.html": render(data), PAGE: render_lineage(data)}
    if data.points and data.timed:
        files["convergence.svg"] = convergence_svg(data, standalone=True)
    if data.winner is not None:
        files["lineage.svg"] = lineage_svg(data, data.winner, standalone=True)
        files["winner.py"] = data.winner.genome.source
        files["winner.params.json"] = json.dumps(dict(data.winner.genome.params), indent=2) + "\n"
    return files


def render(data: CampaignData) -> str:
    """The page as text. It loads nothing from the network, and its policy forbids it."""
    caption = "Seconds by the clocks of the campaign and its workers"
    bill = tables.fact_table(caption, data.bill.rows(), numbers=False) if data.points else ""
    sections = [
        _header(data),
        section("Winner against seed", _change(data)),
        section("Convergence", _convergence(data)),
        section("Figures", tables.figures_section(data)),
        section("Speed-up by shape", tables.speedup_section(data)),
        section("Headroom", tables.headroom_section(data)),
        section("Bill", bill),
        section("Roofline", _roofline(data)),
        section("Verdicts", tables.verdicts_section(data) if data.points else ""),
        section("Proposers and rules", tables.outcomes_section(data)),
        section("Lineage of the winner", _lineage(data)),
        section("Where the kernel's time goes", tables.diagnosis_section(data)),
        section("Winner", _winner(data)),
        section("Setup", _setup(data)),
    ]
    title = f"{data.facts.get('id', 'campaign')} · tilewright"
    body = tag("main", "".join(sections))
    return render_page(title, body, script="report.js", styles=("picture.css", "report.css"))


def _header(data: CampaignData) -> str:
    facts = data.facts
    started = next((e.at for e in data.events if e.kind == "started"), None)
    rows = {
        "operator": facts.get("operator", "?"),
        "target": f"{data.target_text} ({data.kind})",
        "suite": facts.get("suite", "?"),
        "state": data.state_text,
        "evaluations": f"{data.bill.count}, {duration_text(data.elapsed)}",
        "seed": facts.get("seed", "?"),
        "started": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started)) if started else "?",
    }
    lines = [*data.origins(), *judge_lines(p.evaluation for p in data.points)]
    judges = "".join(note(f"{line}.") for line in lines)
    heading = tag("p", "tilewright campaign", class_="quiet over") + tag("h1", clean(facts.get("id", "campaign")))
    return tag("header", heading + _cards(data) + tables.fact_list(rows) + judges)


def _cards(data: CampaignData) -> str:
    """The result in large figures: the winner's time, and its speed against the others."""
    for scope in (Scope.FINAL, Scope.SUITE):
        rows = [row for row in data.ranking(scope) if row.evaluation.verdict is Verdict.OK]
        winner = next((row for row in rows if row.role == "winner"), None)
        if winner is None or not winner.evaluation.workloads:
            continue
        mine = winner.evaluation.workloads[0]
        cards = [
            (time_text(mine.seconds), f"the winner's time at {mine.workload} ({data.target_text}, {data.kind})"),
            (percent_text(mine.roofline_fraction), f"of the roofline, {rate_text(mine.rate, mine.unit)}"),
        ]
        if data.bill.gain is not None and all(row.role != "seed" for row in rows):
            speed = speed_text(data.bill.gain, "the best seed").partition(" × ")
            cards.append((f"{speed[0]} ×", speed[2]))
        for row in rows:
            other = next((w for w in row.evaluation.workloads if w.workload == mine.workload), None)
            if row is not winner and other is not None:
                name = kernel_text(f"{row.role}:{row.name}")
                tie = ", a tie" if winner.evaluation.even_with(row.evaluation) else ""
                speed = speed_text(other.seconds / mine.seconds, name).partition(" × ")
                cards.append((f"{speed[0]} ×", f"{speed[2]}, {time_text(other.seconds)}{tie}"))
        shown = [tag("div", tag("b", clean(b)) + tag("span", clean(s)), class_="card") for b, s in cards[:CARDS]]
        return tag("div", "".join(shown), class_="cards")
    return ""


def _change(data: CampaignData) -> str:
    """What turned the seed into the winner: its rewrites by rule, its parameters, and the diff of both sources."""
    found = winner_change(data)
    if found is None:
        return ""
    steps = tag("p", "rewrites: " + " → ".join(tag("b", clean(s)) for s in found.steps)) if found.steps else ""
    seed = kernel_text(f"{SEED_PREFIX}{found.seed_name}")
    whose = f"from {seed} to candidate {found.winner.index}"
    if found.unchanged:
        return tag("p", clean(f"{found.heading}."))
    return tag("p", clean(f"{found.heading}.")) + steps + change_markup(found.seed.genome, found.winner.genome, whose)


def _convergence(data: CampaignData) -> str:
    if not data.points:
        return tag("p", "No evaluation has finished yet.")
    if not data.timed:
        return ""
    certainty = "Figures of this target repeat exactly and have no interval"
    if any(p.evaluation.interval and len(set(p.evaluation.interval)) > 1 for p in data.points):
        level = (
            "90 % intervals, in which the time model expects a real TPU's figures"
            if data.kind == "modelled"
            else "95 % intervals"
        )
        certainty = f"Bands, and bars at the right edge for seeds and baselines, are {level}"
    caption = (
        "A grey dot is a candidate that passed every gate, the line is the best rate so far, a tick below the axis is "
        f"a candidate that failed. {certainty}. Point at a step to see its mutation."
    )
    return chart(convergence_svg(data), "Convergence") + note(caption)


def _roofline(data: CampaignData) -> str:
    found = roofline(data)
    if found is None:
        return ""
    caption = f"Rates are {data.kind}; roofs are the public peaks of one {data.target_text} device."
    if found.moved:
        caption += " A kernel that moves more bytes than it must lies further left."
    return chart(roofline_svg(data, found), "Roofline") + note(f"{caption} Point at a mark to see its shape.")


def _lineage(data: CampaignData) -> str:
    if data.winner is None:
        return ""
    kinds = ("seed", "parameter", "rewrite", "crossover", "llm")
    legend = "".join(tag("span", tag("i", " ", class_=kind) + kind) for kind in kinds)
    details = "".join(candidate_details(data, c) for c in drawn_ancestors(data, data.winner))
    toggle = tag("button", "open all steps", type="button", id="open-all")
    picture = chart(lineage_svg(data, data.winner), "Lineage of the winner")
    return tag("p", legend, class_="legend small") + picture + tag("div", toggle, class_="switch") + details


def _winner(data: CampaignData) -> str:
    if data.winner is None:
        return ""
    genome = data.winner.genome
    source = tag("details", tag("summary", "Source") + code(genome.source))
    facts = note(f"candidate {data.winner.index}, genome {genome.id}")
    return facts + tables.fact_table("Parameters", genome.params) + source


def _setup(data: CampaignData) -> str:
    facts = (("Toolchain", data.toolchain), ("System", data.system))
    parts = [tables.fact_table(name, values) for name, values in facts if values]
    if data.config:
        text = yaml.safe_dump(dict(data.config), sort_keys=False, allow_unicode=True)
        parts.append(tag("details", tag("summary", "Configuration") + code(text)))
    return "".join(parts)
