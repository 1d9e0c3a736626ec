"""What is exported: the winner's parameters on each shape it was timed on, with its time and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.evolve.errors import UserError
from tilewright.evolve.promote.command import EVENT
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.record.system import version
from tilewright.evolve.report.data import WINNER, CampaignData, load
from tilewright.fitness.evaluation import Evaluation, Verdict, WorkloadFigures
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Operator, Scope, Workload


class Disagreement(UserError):
    """The exported-to kernel does not work as the winner does, so that its tiles would mean something else."""


@dataclass(frozen=True)
class Choice:
    """One row to write. ``figures``: the winner's on this shape."""

    operator: str
    target: str
    workload: Workload
    params: Mapping[str, Any]
    figures: WorkloadFigures
    provenance: Mapping[str, Any]

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
    operator = load_operator(str(data.facts["operator"]))
    suite = operator.suites[str(data.facts["suite"])]
    known = {workload.id: workload for workload in (*suite.workloads, *suite.final)}
    evaluation = _evaluation(data)
    return [
        Choice(
            operator.name,
            data.target,
            known[figures.workload],
            dict(data.winner.genome.params),
            figures,
            {
                **_provenance(journal.parent.name, data, operator, figures),
                **receipts.get(data.winner.index, {}),
            },
        )
        for figures in evaluation.workloads
        if figures.workload in known
    ]


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
    campaign: str, data: CampaignData, operator: Operator, figures: WorkloadFigures
) -> dict[str, Any]:
    assert data.winner is not None
    low, high = figures.seconds_interval or (figures.seconds, figures.seconds)
    return {
        "source": f"tilewright {version()}",
        "campaign": campaign,
        "operator": operator.name,
        "candidate": data.winner.genome.id,
        "target": data.target,
        "kind": figures.kind,
        "time_ms": figures.seconds * 1e3,
        "interval_ms": [low * 1e3, high * 1e3],
        **({"time_model": figures.model_version} if figures.model_version else {}),
        "toolchain": dict(data.toolchain),
    }
