"""The winner's ancestry as a picture: one row a candidate, oldest first, the main line on the left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.evolve.record.history import Candidate
from tilewright.evolve.report import svg
from tilewright.evolve.report.data import CampaignData, ancestry
from tilewright.evolve.report.units import gain_text, rate_text

ROW, LANE, LEFT, TOP = 34, 22, 18, 22
WIDTH = 860
MOST_ROWS = 150
"""Beyond this many ancestors only the main line is drawn."""
MOST_LANES = 8


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
    """All ancestors while they are few enough to read, else the main line."""
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
    heading = svg.text(
        0,
        16,
        f"{data.unit} and gain over parent, at the right ({data.target_text}, {data.kind})",
        class_="quiet",
    )
    return svg.drawing(WIDTH, height, "Lineage of the winner", heading, *edges, *nodes, standalone=standalone)


def _lanes(rows: Sequence[Candidate], main: Sequence[Candidate]) -> dict[str, int]:
    """Lane 0 for the main line; side branches take the first lane that is free until they join."""
    on_main = {c.genome.id for c in main}
    row_of = {c.genome.id: row for row, c in enumerate(rows)}
    last_use = dict(row_of)
    for row, candidate in enumerate(rows):
        for parent in candidate.parents:
            if parent in last_use:
                last_use[parent] = max(last_use[parent], row)
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
        paths.append(svg.tag("path", d=f"M{px:g} {py:g}{straight}{bend}", class_=f"edge{side}"))
    return "".join(paths)


def _node(
    data: CampaignData, candidate: Candidate, at: tuple[float, float], text_x: float, is_winner: bool
) -> str:
    x, y = at
    evaluation = data.evaluations.get(candidate.genome.id)
    fitness = rate_text(evaluation.fitness, data.unit) if evaluation and evaluation.fitness else "no figure"
    gain = gain_over_parents(data, candidate)
    shown = f"{fitness}   {gain_text(gain)}" if gain is not None else fitness
    detail = _shorten(f"#{candidate.index}  {candidate.mutation.detail}", int((WIDTH - text_x - 190) / 6.7))
    tip = svg.title(
        f"candidate {candidate.index}, {candidate.mutation.kind.value} by {candidate.mutation.proposer}, "
        f"generation {candidate.generation}, island {candidate.island}: {candidate.mutation.detail}; {fitness}"
    )
    strong = "strong" if is_winner else None
    circle = svg.tag(
        "circle", tip, cx=x, cy=y, r=8.0 if is_winner else 6.0, class_=f"node {candidate.mutation.kind.value}"
    )
    value = svg.text(WIDTH - 8, y + 4, shown, class_="end strong" if is_winner else "end")
    return circle + svg.text(text_x, y + 4, detail, class_=strong) + value


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
