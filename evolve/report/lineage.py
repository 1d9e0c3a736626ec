"""The winner's ancestry: a picture with one row a candidate, oldest first, and each candidate's changes and gain.

The lineage page shows every candidate of a campaign in one file that opens offline. Across: the order of proposals. Up:
fitness; what failed lies in a band below. The page draws on a canvas, so that 10 000 candidates stay responsive; what a
candidate changed and measured is shown when it is chosen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.evolve.record.history import Candidate
from tilewright.evolve.report.change import parameter_changes, source_diff
from tilewright.evolve.report.data import CampaignData, ancestry
from tilewright.evolve.report.page import clean, code, drawing, label, render_page, tag, title, write_page
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
        c.genome.id: (float(LEFT + lanes[c.genome.id] * LANE), TOP + row * ROW + ROW / 2) for row, c in enumerate(rows)
    }
    text_x = LEFT + (max(lanes.values()) + 1) * LANE + 4
    edges = [_edges(c, at) for c in rows]
    nodes = [_node(data, c, at[c.genome.id], text_x, c.genome.id == winner.genome.id) for c in rows]
    height = TOP + len(rows) * ROW + 12
    figures = f"{data.unit} and gain over the fittest parent" if data.timed else "verdict"
    heading = f"right: {figures} ({data.target_text}, {data.kind})"
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
        f"{mutation.kind.value} by {mutation.proposer}, generation {candidate.generation}, island {candidate.island}"
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
                tag("th", clean(name), scope="row") + tag("td", f"{tag('del', clean(old))} → {tag('ins', clean(new))}"),
            )
            for name, old, new in parameters
        )
        parts.append(tag("div", tag("table", rows, class_="changes"), class_="scroll"))
    diff = source_diff(before, after)
    if diff:
        kinds = {"+": "add", "-": "cut", "@": "hunk"}
        shown = "".join(tag("span", clean(line) + "\n", class_=kinds.get(line[:1])) for line in diff[:DIFF_LINES])
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


def _node(data: CampaignData, candidate: Candidate, at: tuple[float, float], text_x: float, is_winner: bool) -> str:
    (x, y), mutation = at, candidate.mutation
    evaluation = data.evaluations.get(candidate.genome.id)
    verdict = evaluation.verdict.value if evaluation else "not evaluated"
    rate = rate_text(evaluation.fitness, data.unit) if evaluation and evaluation.fitness else verdict
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


PAGE = "lineage.html"

DIFF_CHARACTERS = 6_000
"""Of one source diff; the candidate's MLflow run has all of it."""

DIFFS_CHARACTERS = 12_000_000
"""Of all source diffs in one page, earliest candidates first; later candidates name the run that has the diff."""

CUT = "\n... cut here; the candidate's MLflow run has the complete diff"
LEFT_OUT = "This page would be too large with this diff; the candidate's MLflow run has it."


def write_lineage(data: CampaignData, path: Path) -> Path:
    """Write the page to ``path`` and return ``path``. Raises OSError."""
    return write_page(path, render_lineage(data))


def render_lineage(data: CampaignData) -> str:
    """The page as text."""
    name = str(data.facts.get("id", "campaign"))
    facts = f"{data.facts.get('operator', '?')} on {data.target_text} ({data.kind}), {len(data.points)} evaluations"
    chooser = "".join(
        tag("button", clean(label), type="button", data_colour=key, aria_pressed=str(not number).lower())
        for number, (key, label) in enumerate(COLOURS.items())
    )
    reset = tag("button", "show all", type="button", id="reset")
    winner = tag("button", "winner's ancestors", type="button", id="winner")
    bar = tag(
        "header",
        tag("h1", clean(name))
        + tag("p", clean(facts), class_="quiet")
        + tag("p", "colour by " + chooser + winner + reset, class_="switch")
        + tag("p", "", id="legend"),
    )
    canvas = tag("canvas", "", id="graph", tabindex="0", aria_label="Candidates by proposal and fitness")
    panel = tag("aside", tag("p", "Click a candidate to see its changes and figures."), id="panel")
    return render_page(
        f"{name} lineage",
        bar + tag("main", canvas + panel),
        script="lineage.js",
        styles=("picture.css", "lineage.css"),
        data=_payload(data),
    )


COLOURS = {"mutation": "mutation", "verdict": "verdict", "gain": "gain over parent", "island": "island"}


def _payload(data: CampaignData) -> dict[str, object]:
    """One row a candidate in proposal order; texts and parameter values are places in lists of them."""
    candidates = sorted(data.candidates.values(), key=lambda c: c.index)
    places = {c.genome.id: n for n, c in enumerate(candidates)}
    texts, names, values = _Places(), _Places(), _Places()
    rows = []
    workloads = _Places()
    for candidate in candidates:
        evaluation = data.evaluations.get(candidate.genome.id)
        parents = [places[p] for p in candidate.parents if p in places]
        figures = [[workloads.of(f.workload), f.seconds] for f in evaluation.workloads] if evaluation else []
        rows.append(
            [
                candidate.index,
                parents,
                texts.of(candidate.mutation.kind.value),
                texts.of(candidate.mutation.proposer),
                candidate.mutation.detail[:400],
                candidate.generation,
                candidate.island,
                texts.of(evaluation.verdict.value if evaluation else "pending"),
                evaluation.fitness if evaluation else None,
                texts.of(evaluation.reason[:400]) if evaluation and evaluation.reason else -1,
                figures,
                [[names.of(k), values.of(v)] for k, v in candidate.genome.params.items()],
            ]
        )
    return {
        "rows": rows,
        "texts": texts.known(),
        "names": names.known(),
        "values": values.known(),
        "workloads": workloads.known(),
        "diffs": _diffs(candidates, data.candidates),
        "winner": places.get(data.winner.genome.id, -1) if data.winner else -1,
        "target": f"{data.target_text}, {data.kind}",
        "unit": data.unit,
    }


class _Places:
    """Numbers distinct values in the order of their first use."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def of(self, value: object) -> int:
        return self._places.setdefault(str(value), len(self._places))

    def known(self) -> list[str]:
        return list(self._places)


def _diffs(candidates: Sequence[Candidate], by_genome: Mapping[str, Candidate]) -> dict[str, str]:
    """Source diff against the first parent by place of the candidate, where the source changed."""
    found: dict[str, str] = {}
    size = 0
    for place, candidate in enumerate(candidates):
        parent = by_genome.get(candidate.parents[0]) if candidate.parents else None
        if parent is None or parent.genome.source == candidate.genome.source:
            continue
        diff = LEFT_OUT
        if size <= DIFFS_CHARACTERS:
            diff = "\n".join(source_diff(parent.genome, candidate.genome))
            diff = diff if len(diff) <= DIFF_CHARACTERS else diff[:DIFF_CHARACTERS] + CUT
            size += len(diff)
        found[str(place)] = diff
    return found
