"""The lineage page: every candidate of a campaign as one interactive picture, in one file that opens offline.

Across: the order of proposals. Up: fitness; what failed lies in a band below. The page draws on a canvas, so that
10 000 candidates stay responsive; what a candidate changed and measured is shown when it is chosen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.evolve.record.history import Candidate
from tilewright.evolve.report.change import source_diff
from tilewright.evolve.report.data import CampaignData
from tilewright.evolve.report.page import clean, render_page, tag, write_atomically

PAGE = "lineage.html"

DIFF_CHARACTERS = 6_000
"""Of one source diff; the candidate's MLflow run has all of it."""

DIFFS_CHARACTERS = 12_000_000
"""Of all source diffs in one page, earliest candidates first; later candidates name the run that has the diff."""

CUT = "\n... cut here; the candidate's MLflow run has the complete diff"
LEFT_OUT = "This page would be too large with this diff; the candidate's MLflow run has it."


def write_lineage(data: CampaignData, path: Path) -> Path:
    """Write the page to ``path`` and return ``path``. Raises OSError."""
    return write_atomically(path, render_lineage(data))


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
