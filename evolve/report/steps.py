"""A candidate as a part of a page that opens: what it changed against its parents, and what that gained."""

from __future__ import annotations

from tilewright.evolve.record.history import Candidate
from tilewright.evolve.report.data import CampaignData
from tilewright.evolve.report.diffs import parameter_changes, source_diff
from tilewright.evolve.report.lineage import gain_over_parents
from tilewright.evolve.report.svg import clean, tag
from tilewright.evolve.report.units import gain_text, rate_text
from tilewright.evolve.space.genome import Genome

DIFF_LINES = 600
"""Longer diffs are cut in the page; the candidate's MLflow run has them whole."""


def anchor(candidate: Candidate) -> str:
    """The id of a candidate's part in a page, for links to it."""
    return f"candidate-{candidate.index}"


def step(data: CampaignData, candidate: Candidate) -> str:
    """A candidate, folded: one line, and inside it the diff against each parent."""
    evaluation = data.evaluations.get(candidate.genome.id)
    gain = gain_over_parents(data, candidate)
    figure = rate_text(evaluation.fitness, data.unit) if evaluation and evaluation.fitness else ""
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
    parts += [changes(parent.genome, candidate.genome, f"from #{parent.index}") for parent in known]
    if not known:
        parts.append(code(candidate.genome.source))
    return tag("details", "".join(parts), class_="step", id=anchor(candidate))


def _direction(gain: float) -> str | None:
    if abs(gain - 1) < 5e-4:
        return "quiet"
    return "up" if gain > 1 else "down"


def changes(before: Genome, after: Genome, heading: str) -> str:
    """Parameter changes as a table, the source diff coloured below."""
    parts = [tag("h4", clean(heading))]
    parameters = parameter_changes(before, after)
    if parameters:
        rows = "".join(
            tag(
                "tr",
                tag("th", clean(n), scope="row")
                + tag("td", tag("del", clean(a)) + " → " + tag("ins", clean(b))),
            )
            for n, a, b in parameters
        )
        parts.append(tag("div", tag("table", rows, class_="changes"), class_="scroll"))
    diff = source_diff(before, after).splitlines()
    if diff:
        shown = "".join(_diff_line(line) for line in diff[:DIFF_LINES])
        cut = f"\n… {len(diff) - DIFF_LINES} more lines" if len(diff) > DIFF_LINES else ""
        parts.append(tag("pre", shown + cut, class_="diff"))
    if not parameters and not diff:
        parts.append(tag("p", "same parameters and source", class_="quiet small"))
    return "".join(parts)


def _diff_line(line: str) -> str:
    kind = {"+": "add", "-": "cut", "@": "hunk"}.get(line[:1])
    return tag("span", clean(line) + "\n", class_=kind)


def code(text: str) -> str:
    """Source text as it is."""
    return tag("pre", tag("code", clean(text)))
