"""The report: one self-contained HTML file that opens offline, in MLflow's preview and on a phone."""

from __future__ import annotations

import base64
import hashlib
import time
from importlib import resources
from pathlib import Path

import yaml

from evolve.evaluator import Scope
from evolve.history import Candidate
from evolve.journal import Journal
from evolve.report import tables
from evolve.report.charts import Axis, convergence_svg
from evolve.report.data import CampaignData, load
from evolve.report.diffs import parameter_changes, source_diff
from evolve.report.graph import PAGE, write_lineage
from evolve.report.lineage import drawn_ancestors, gain_over_parents, lineage_svg
from evolve.report.svg import clean, tag
from evolve.report.timeline import read_timeline, timeline_svg
from evolve.report.units import duration_text, gain_text, percent_text, rate_text, time_text
from evolve.report.whole import write_whole
from fitness.evaluation import Verdict

DIFF_LINES = 600
"""Longer diffs are cut in the page; the candidate's MLflow run has them whole."""


def write_report(journal: Journal, path: Path) -> Path:
    """Write the report of a campaign, running or ended, to ``path``, its lineage page beside it; return ``path``.

    A file appears whole or not at all. Raises OSError when one cannot be written.
    """
    data = load(journal)
    write_lineage(data, path.with_name(f"{path.stem}-{PAGE}"))
    return write_whole(path, render(data))


def render(data: CampaignData) -> str:
    """The page as text. Nothing in it asks the network for anything, and its policy forbids it."""
    script = _resource("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [
        _header(data),
        _section("Convergence", _convergence(data)),
        _section("Figures", _figures(data)),
        _section("What became of the candidates", tables.verdicts_section(data) if data.points else ""),
        _section("Lineage of the winner", _lineage(data)),
        _section("Where the time goes", _timelines(data) + tables.diagnosis_section(data)),
        _section("The winner", _winner(data)),
        _section("How it was run", _provenance(data)),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{clean(data.facts.get('id', 'campaign'))} · tilewright</title>"
        f"<style>{_resource('picture.css')}{_resource('report.css')}</style>"
    )
    body = tag("main", "".join(sections)) + f"<script>{script}</script>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _header(data: CampaignData) -> str:
    facts = data.facts
    started = next((e.at for e in data.events if e.kind == "started"), None)
    state = f"{data.state} ({data.reason})" if data.reason else data.state
    rows = {
        "operator": facts.get("operator", "?"),
        "target": f"{data.target} ({data.kind})",
        "suite": facts.get("suite", "?"),
        "state": state.replace("_", " "),
        "evaluations": f"{len(data.points)} in {duration_text(data.elapsed)}",
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
            _card(time_text(figures.seconds), f"winner at {figures.workload}, {data.target}, {data.kind}"),
            _card(percent_text(figures.roofline_fraction), f"of the roofline, {rate_text(figures.tflops)}"),
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


def _convergence(data: CampaignData) -> str:
    if not data.points:
        return tag("p", "Nothing has been evaluated yet.")
    buttons = "".join(
        tag(
            "button", f"by {axis.value}", type="button", data_show=axis.value, aria_pressed=str(not n).lower()
        )
        for n, axis in enumerate(Axis)
    )
    charts = "".join(
        tag("div", convergence_svg(data, axis), class_="scroll chart", data_axis=axis.value) for axis in Axis
    )
    note = (
        "Grey dots are candidates that passed every gate, the line is the best so far, "
        "ticks below are candidates that failed; hover a step for its mutation."
    )
    return tag("div", buttons, class_="switch") + charts + tag("p", note, class_="quiet small")


def _figures(data: CampaignData) -> str:
    final, suite = tables.figures_section(data, Scope.FINAL), tables.figures_section(data, Scope.SUITE)
    parts = []
    if final:
        parts += [tag("h3", "Final check"), final]
    if suite:
        parts += [tag("h3", f"Suite {clean(data.facts.get('suite'))}, which decided fitness"), suite]
    if parts:
        note = (
            f"Times are {data.kind} for one call on {data.target}. A floor is the least time the named "
            "unit needs for this operator, whatever the schedule."
        )
        parts.append(tag("p", clean(note), class_="quiet small"))
    return "".join(parts)


def _lineage(data: CampaignData) -> str:
    if data.winner is None:
        return ""
    legend = "".join(
        tag("span", tag("i", " ", class_=kind) + kind)
        for kind in ("seed", "parameter", "rewrite", "crossover", "llm")
    )
    steps = "".join(_step(data, c) for c in drawn_ancestors(data, data.winner))
    toggle = tag("button", "open all steps", type="button", id="open-all")
    picture = tag("div", lineage_svg(data, data.winner), class_="scroll chart")
    return tag("p", legend, class_="legend small") + picture + tag("div", toggle, class_="switch") + steps


def _step(data: CampaignData, candidate: Candidate) -> str:
    evaluation = data.evaluations.get(candidate.genome.id)
    gain = gain_over_parents(data, candidate)
    figure = rate_text(evaluation.fitness) if evaluation and evaluation.fitness else ""
    change = "" if gain is None else tag("b", clean(gain_text(gain)), class_=_direction(gain))
    line = (
        tag("span", f"#{candidate.index}", class_="quiet")
        + f" {clean(candidate.mutation.detail)} "
        + tag("span", f"{clean(figure)} {change}", class_="right")
    )
    facts = (
        f"{candidate.mutation.kind.value} by {candidate.mutation.proposer}, generation {candidate.generation}, "
        f"island {candidate.island}, genome {candidate.genome.id}"
    )
    parts = [tag("summary", line), tag("p", clean(facts), class_="quiet small")]
    known = [data.candidates[p] for p in candidate.parents if p in data.candidates]
    parts += [_changes(parent, candidate) for parent in known]
    if not known:
        parts.append(_code(candidate.genome.source))
    return tag("details", "".join(parts), class_="step")


def _direction(gain: float) -> str | None:
    if abs(gain - 1) < 5e-4:
        return "quiet"
    return "up" if gain > 1 else "down"


def _changes(parent: Candidate, child: Candidate) -> str:
    """Parameter changes as a table, the source diff coloured below."""
    parts = [tag("h4", f"from #{parent.index}")]
    changes = parameter_changes(parent.genome, child.genome)
    if changes:
        rows = "".join(
            tag(
                "tr",
                tag("th", clean(n), scope="row")
                + tag("td", tag("del", clean(a)) + " → " + tag("ins", clean(b))),
            )
            for n, a, b in changes
        )
        parts.append(tag("div", tag("table", rows, class_="changes"), class_="scroll"))
    diff = source_diff(parent.genome, child.genome).splitlines()
    if diff:
        shown = "".join(_diff_line(line) for line in diff[:DIFF_LINES])
        cut = f"\n… {len(diff) - DIFF_LINES} more lines" if len(diff) > DIFF_LINES else ""
        parts.append(tag("pre", shown + cut, class_="diff"))
    if not changes and not diff:
        parts.append(tag("p", "same parameters and source", class_="quiet small"))
    return "".join(parts)


def _diff_line(line: str) -> str:
    kind = {"+": "add", "-": "cut", "@": "hunk"}.get(line[:1])
    return tag("span", clean(line) + "\n", class_=kind)


def _timelines(data: CampaignData) -> str:
    pair = tables.seed_and_winner(data, needs="timeline")
    if pair is None:
        return ""
    workload, (name, seed), winner = pair
    read = (read_timeline(f"seed {name}", seed.diagnosis), read_timeline("winner", winner.diagnosis))
    timelines = [t for t in read if t is not None]
    if not timelines:
        return ""
    caption = f"Busy share of each unit over the run of {workload}, {data.target}, {data.kind}; one time axis for both."
    return tag("div", timeline_svg(timelines, caption), class_="scroll chart") + tag(
        "p", clean(caption), class_="quiet small"
    )


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
    source = tag("details", tag("summary", "Source") + _code(genome.source))
    return facts + table + source


def _provenance(data: CampaignData) -> str:
    rows = "".join(
        tag("tr", tag("th", clean(k), scope="row") + tag("td", clean(v), class_="n"))
        for k, v in data.toolchain.items()
    )
    parts = []
    if rows:
        parts.append(
            tag("div", tag("table", tag("caption", "Toolchain") + rows, class_="narrow"), class_="scroll")
        )
    if data.config:
        text = yaml.safe_dump(dict(data.config), sort_keys=False, allow_unicode=True)
        parts.append(tag("details", tag("summary", "Configuration") + _code(text)))
    return "".join(parts)


def _section(name: str, content: str) -> str:
    return tag("section", tag("h2", clean(name)) + content) if content else ""


def _code(text: str) -> str:
    return tag("pre", tag("code", clean(text)))


def _resource(name: str) -> str:
    return resources.files("evolve.report").joinpath(name).read_text(encoding="utf-8")
