"""What is exported: the winner's parameters on each shape it was timed on, with its time and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.command import EVENT
from tilewright.evolve.record.history import Candidate
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.record.system import version
from tilewright.evolve.report.data import WINNER, CampaignData, load
from tilewright.evolve.space.genome import source_id
from tilewright.fitness.evaluation import Evaluation, Verdict, WorkloadFigures
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Operator, Scope, Workload


class Disagreement(UserError):
    """The exported-to kernel does not work as the winner does, so that its tiles would mean something else."""


@dataclass(frozen=True)
class Choice:
    """One row to write. ``figures``: the winner's on this shape. ``source``: the text of its kernel."""

    operator: str
    target: str
    workload: Workload
    params: Mapping[str, Any]
    figures: WorkloadFigures
    provenance: Mapping[str, Any]
    source: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Seconds between which a real time lies, of a modelled figure."""
        return self.figures.seconds_interval


def choices(journal: Path) -> list[Choice]:
    """The winner of a campaign on its final shapes, or on those it was searched on. Raises UserError."""
    with Journal(journal) as opened:
        data = load(opened)
        receipts = _receipts(opened)
    if data.winner is None:
        raise UserError(f"{journal.parent.name} has no winner to export; let it find one first.")
    operator, known = _shapes(data)
    evaluation = _evaluation(data)
    return [
        _choice(journal.parent.name, data, operator, known[figures.workload], data.winner, figures, receipts)
        for figures in evaluation.workloads
        if figures.workload in known
    ]


def require_seed(choice: Choice) -> None:
    """Raises Disagreement for a kernel that is none of the operator's seeds: what its tiles mean is not known."""
    seeds = load_operator(choice.operator).kernels.values()
    if choice.source and source_id(choice.source) not in {source_id(seed.source) for seed in seeds}:
        raise Disagreement(
            f"the winner on {choice.workload.id} is a kernel that the search wrote, with a schedule of its own; tiles "
            f"of {choice.operator}'s seeds can be exported."
        )


def agreed(
    journal: Path, write: Callable[[list[Choice]], dict[str, str]]
) -> tuple[dict[str, str], list[str]]:
    """What ``write`` makes of a campaign's winner, else of the fastest candidates that it can write, and remarks.

    A remark says of a shape how far what is written is from a winner that cannot be. Raises Disagreement where nothing
    can be written.
    """
    winners = choices(journal)
    try:
        return write(winners), []
    except Disagreement:
        others = fastest(journal, lambda choice: _written(write, choice))
        if not others:
            raise
    winner = winners[0].provenance["candidate"]
    searched = fastest(journal, lambda choice: choice.provenance["candidate"] == winner)
    best = {choice.workload.id: choice.figures.seconds for choice in searched}
    remarks = [
        f"{choice.workload.id}: the winner is another kernel ({best[choice.workload.id] * 1e6:.1f} us); written is the "
        f"fastest candidate that is theirs ({choice.figures.seconds * 1e6:.1f} us, {choice.provenance['kind']})"
        for choice in others
        if choice.workload.id in best
    ]
    return write(others), remarks


def _written(write: Callable[[list[Choice]], dict[str, str]], choice: Choice) -> bool:
    try:
        return bool(write([choice]))
    except (Disagreement, KeyError):  # another kernel, or another kernel's parameters
        return False


def fastest(journal: Path, fits: Callable[[Choice], bool]) -> list[Choice]:
    """On each shape the fastest candidate of a campaign for which ``fits`` holds; none where no one does.

    Times are those of the search, so that of several equal ones the luckiest is chosen.
    """
    with Journal(journal) as opened:
        data = load(opened)
        receipts = _receipts(opened)
    operator, known = _shapes(data)
    best: dict[str, Choice] = {}
    for name, evaluation in data.evaluations.items():
        candidate = data.candidates.get(name)
        if candidate is None or evaluation.verdict is not Verdict.OK:
            continue
        for figures in evaluation.workloads:
            held = best.get(figures.workload)
            if figures.workload not in known or (held and figures.seconds >= held.figures.seconds):
                continue
            choice = _choice(
                journal.parent.name, data, operator, known[figures.workload], candidate, figures, receipts
            )
            if fits(choice):
                best[figures.workload] = choice
    return [best[workload] for workload in sorted(best)]


def _shapes(data: CampaignData) -> tuple[Operator, dict[str, Workload]]:
    operator = load_operator(str(data.facts["operator"]))
    suite = operator.suites[str(data.facts["suite"])]
    return operator, {workload.id: workload for workload in (*suite.workloads, *suite.final)}


def _choice(
    campaign: str,
    data: CampaignData,
    operator: Operator,
    workload: Workload,
    candidate: Candidate,
    figures: WorkloadFigures,
    receipts: Mapping[int, Mapping[str, str]],
) -> Choice:
    return Choice(
        operator.name,
        data.target,
        workload,
        dict(candidate.genome.params),
        figures,
        {
            **_provenance(campaign, data, operator, candidate, figures),
            **receipts.get(candidate.index, {}),
        },
        candidate.genome.source,
    )


def _receipts(journal: Journal) -> dict[int, dict[str, str]]:
    """By candidate's number: where the receipt of its promotion lies below a library's package."""
    found: dict[int, dict[str, str]] = {}
    for event in journal.events():
        if event.kind == EVENT:
            place = f"kernels/{event.detail['operator']}/versions/{event.detail['version']}/receipt.json"
            found |= {int(index): {"receipt": place} for index in event.detail["candidates"]}
    return found


def _evaluation(data: CampaignData) -> Evaluation:
    final = data.references.get(Scope.FINAL.value, {}).get(WINNER)
    if final is not None and final.verdict is Verdict.OK:
        return final
    assert data.winner is not None
    return data.evaluations[data.winner.genome.id]


def _provenance(
    campaign: str, data: CampaignData, operator: Operator, candidate: Candidate, figures: WorkloadFigures
) -> dict[str, Any]:
    low, high = figures.seconds_interval or (figures.seconds, figures.seconds)
    return {
        "source": f"tilewright {version()}",
        "campaign": campaign,
        "operator": operator.name,
        "candidate": candidate.genome.id,
        "target": data.target,
        "kind": figures.kind,
        "time_ms": figures.seconds * 1e3,
        "interval_ms": [low * 1e3, high * 1e3],
        **({"time_model": figures.model_version} if figures.model_version else {}),
        "toolchain": {**data.toolchain, **_seen_with(data, candidate)},
    }


def _seen_with(data: CampaignData, candidate: Candidate) -> Mapping[str, str]:
    """Versions, and a device's name, as the worker said them that evaluated a candidate."""
    evaluation = data.evaluations.get(candidate.genome.id)
    return evaluation.toolchain if evaluation is not None else {}
