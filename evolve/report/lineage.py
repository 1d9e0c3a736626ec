"""The winner's ancestry: a picture with one row a candidate, oldest first, and each candidate's changes and gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.evolve.record.history import Candidate
from tilewright.evolve.report.change import parameter_changes, source_diff
from tilewright.evolve.report.data import CampaignData, ancestry
from tilewright.evolve.report.page import clean, code, drawing, label, tag, title
from tilewright.evolve.report.text import gain_text, rate_text, shorten
from tilewright.evolve.space.genome import Genome

ROW, LANE, LEFT, TOP = 34, 22, 18, 22
WIDTH = 860
MOST_ROWS = 150
"""A lineage of more ancestors is drawn without side branches."""
MOST_LANES = 8
DIFF_LINES = 600
"""The page cuts longer diffs; the candidate's MLflow run has all lines."""


def main_line(data: CampaignData, winner: Candidate) -> list[Candidate]:
    """From a seed to the winner along first parents."""
    line, seen = [winner], {winner.genome.id}
    while line[-1].parents:
        parent = data.candidates.get(line[-1].parents[0])
        if parent is None or parent.genome.id in seen:
            break
        seen.add(parent.genome.id)
        line.append(parent)
    return line[::-1]


def drawn_ancestors(data: CampaignData, winner: Candidate) -> list[Candidate]:
    """All ancestors, or the main line of a lineage that is too long to read."""
    every = ancestry(data, winner)
    return every if len(every) <= MOST_ROWS else main_line(data, winner)


def gain_over_parents(data: CampaignData, candidate: Candidate) -> float | None:
    """Fitness over the fittest parent's; None for seeds and where a figure is missing."""
    evaluation = data.evaluations.get(candidate.genome.id)
    parents = [data.evaluations.get(p) for p in candidate.parents]
    known = [e.fitness for e in parents if e is not None and e.fitness]
    if evaluation is None or not evaluation.fitness or not known:
        return None
    return evaluation.fitness / max(known)


def lineage_svg(data: CampaignData, winner: Candidate, *, standalone: bool = False) -> str:
    """Nodes are coloured by mutation; solid edges come from first parents, dashed ones from the others."""
    rows = drawn_ancestors(data, winner)
    lanes = _lanes(rows, main_line(data, winner))
    at = {
        c.genome.id: (float(LEFT + lanes[c.genome.id] * LANE), TOP + row * ROW + ROW / 2)
        for row, c in enumerate(rows)
    }
    text_x = LEFT + (max(lanes.values()) + 1) * LANE + 4
    edges = [_edges(c, at) for c in rows]
    nodes = [_node(data, c, at[c.genome.id], text_x, c.genome.id == winner.genome.id) for c in rows]
    height = TOP + len(rows) * ROW + 12
    heading = f"right: {data.unit} and gain over the fittest parent ({data.target_text}, {data.kind})"
    parts = [label(0, 16, heading, class_="quiet"), *edges, *nodes]
    return drawing(WIDTH, height, "Lineage of the winner", *parts, standalone=standalone)


def candidate_details(data: CampaignData, candidate: Candidate) -> str:
    """A candidate as a part of a page that opens: one line, and inside it the diff against each parent."""
    mutation, evaluation = candidate.mutation, data.evaluations.get(candidate.genome.id)
    gain = gain_over_parents(data, candidate)
    rate = rate_text(evaluation.fitness, data.unit) if evaluation and evaluation.fitness else ""
    direction = None if gain is None else "quiet" if abs(gain - 1) < 5e-4 else "up" if gain > 1 else "down"
    change = "" if gain is None else tag("b", clean(gain_text(gain)), class_=direction)
    line = (
        tag("span", f"#{candidate.index}", class_="quiet")
        + f" {clean(mutation.detail)} "
        + tag("span", f"{clean(rate)} {change}", class_="right")
    )
    facts = (
        f"{mutation.kind.value} by {mutation.proposer}, generation {candidate.generation}, "
        f"island {candidate.island}"
    )
    parts = [tag("summary", line), tag("p", clean(facts), class_="quiet small")]
    parents = [data.candidates[p] for p in candidate.parents if p in data.candidates]
    parts += [change_markup(parent.genome, candidate.genome, f"from #{parent.index}") for parent in parents]
    if not parents:
        parts.append(code(candidate.genome.source))
    return tag("details", "".join(parts), class_="step")


def change_markup(before: Genome, after: Genome, heading: str) -> str:
    """Parameter changes as a table, the source diff coloured below."""
    parts = [tag("h4", clean(heading))]
    parameters = parameter_changes(before, after)
    if parameters:
        rows = "".join(
            tag(
                "tr",
                tag("th", clean(name), scope="row")
                + tag("td", f"{tag('del', clean(old))} → {tag('ins', clean(new))}"),
            )
            for name, old, new in parameters
        )
        parts.append(tag("div", tag("table", rows, class_="changes"), class_="scroll"))
    diff = source_diff(before, after)
    if diff:
        kinds = {"+": "add", "-": "cut", "@": "hunk"}
        shown = "".join(
            tag("span", clean(line) + "\n", class_=kinds.get(line[:1])) for line in diff[:DIFF_LINES]
        )
        cut = f"\n… {len(diff) - DIFF_LINES} more lines" if len(diff) > DIFF_LINES else ""
        parts.append(tag("pre", shown + cut, class_="diff"))
    if not parameters and not diff:
        parts.append(tag("p", "same parameters and source", class_="quiet small"))
    return "".join(parts)


def _lanes(rows: Sequence[Candidate], main: Sequence[Candidate]) -> dict[str, int]:
    """Lane 0 for the main line; side branches take the first lane that is free until they join."""
    on_main = {c.genome.id for c in main}
    last_use = {c.genome.id: row for row, c in enumerate(rows)}
    for row, candidate in enumerate(rows):
        last_use |= {parent: max(last_use[parent], row) for parent in candidate.parents if parent in last_use}
    lanes: dict[str, int] = {}
    busy_until: list[int] = []
    for row, candidate in enumerate(rows):
        key = candidate.genome.id
        if key in on_main:
            lanes[key] = 0
            continue
        free = next((n for n, until in enumerate(busy_until) if until <= row), None)
        if free is None and len(busy_until) < MOST_LANES:
            busy_until.append(0)
            free = len(busy_until) - 1
        lane = free if free is not None else MOST_LANES - 1
        busy_until[lane] = last_use[key]
        lanes[key] = lane + 1
    return lanes


def _edges(candidate: Candidate, at: Mapping[str, tuple[float, float]]) -> str:
    x, y = at[candidate.genome.id]
    paths = []
    for order, parent in enumerate(candidate.parents):
        if parent not in at:
            continue
        px, py = at[parent]
        bend = f"C{px:g} {y - ROW / 2:g} {x:g} {y - ROW / 2:g} {x:g} {y:g}" if px != x else f"V{y:g}"
        straight = f"V{y - ROW:g}" if px != x and y - ROW > py else ""
        side = " side" if order else ""
        paths.append(tag("path", d=f"M{px:g} {py:g}{straight}{bend}", class_=f"edge{side}"))
    return "".join(paths)


def _node(
    data: CampaignData, candidate: Candidate, at: tuple[float, float], text_x: float, is_winner: bool
) -> str:
    (x, y), mutation = at, candidate.mutation
    evaluation = data.evaluations.get(candidate.genome.id)
    rate = rate_text(evaluation.fitness, data.unit) if evaluation and evaluation.fitness else "no rate"
    gain = gain_over_parents(data, candidate)
    shown = f"{rate}   {gain_text(gain)}" if gain is not None else rate
    detail = shorten(f"#{candidate.index}  {mutation.detail}", int((WIDTH - text_x - 190) / 6.7))
    tip = title(
        f"candidate {candidate.index}, {mutation.kind.value} by {mutation.proposer}, "
        f"generation {candidate.generation}, island {candidate.island}: {mutation.detail}; {rate}"
    )
    radius = 8.0 if is_winner else 6.0
    circle = tag("circle", tip, cx=x, cy=y, r=radius, class_=f"node {mutation.kind.value}")
    value = label(WIDTH - 8, y + 4, shown, class_="end strong" if is_winner else "end")
    return circle + label(text_x, y + 4, detail, class_="strong" if is_winner else None) + value
