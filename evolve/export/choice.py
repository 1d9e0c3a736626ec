"""Candidates of a campaign to export: on each shape the parameters, their time and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from tilewright.fitness.evaluation import Verdict, WorkloadFigures
from tilewright.seeds.catalogue import UnknownOperator, load_operator
from tilewright.seeds.operator import Operator, Scope, Workload


class Disagreement(UserError):
    """The other program's kernel does not work as the winner does, so its tiles would mean something else."""


@dataclass(frozen=True)
class Choice:
    """One row to write: a candidate on a shape. ``source`` is the text of its kernel."""

    operator: str
    target: str
    workload: Workload
    params: Mapping[str, Any]
    figures: WorkloadFigures
    provenance: Mapping[str, Any]
    source: str = ""

    @property
    def family(self) -> str:
        return self.operator.split("/")[0]


Writer = Callable[[Sequence[Choice]], dict[str, str]]
"""Makes files (path to text) of rows, or raises Disagreement."""


@dataclass(frozen=True)
class SearchedCampaign:
    """A recorded campaign. ``receipts``: by candidate's index, where its promotion's receipt lies in a library."""

    name: str
    data: CampaignData
    operator: Operator
    workloads: Mapping[str, Workload]
    receipts: Mapping[int, Mapping[str, str]]

    @classmethod
    def read(cls, journal: Path) -> SearchedCampaign:
        """Raises UserError."""
        with Journal(journal) as opened:
            data = load(opened)
            receipts: dict[int, dict[str, str]] = {}
            for event in opened.events():
                if event.kind == EVENT:
                    version = f"kernels/{event.detail['operator']}/versions/{event.detail['version']}"
                    receipt = {"receipt": f"{version}/receipt.json"}
                    receipts |= {int(index): receipt for index in event.detail["candidates"]}
        # an operator of the user's own may have the name of one that ships
        try:
            operator = load_operator(str(data.config.get("operator") or data.facts["operator"]))
        except UnknownOperator as error:
            raise UserError(f"{error}.") from error
        suite = operator.suites[str(data.facts["suite"])]
        workloads = {workload.id: workload for workload in (*suite.workloads, *suite.final)}
        return cls(journal.parent.name, data, operator, workloads, receipts)

    def winner(self) -> list[Choice]:
        """The winner on its final shapes, or on those of the search where it has no finals. Raises UserError."""
        data = self.data
        if data.winner is None:
            raise UserError(f"{self.name} has no winner to export; let it find one first.")
        evaluation = data.references.get(Scope.FINAL.value, {}).get(WINNER)
        if evaluation is None or evaluation.verdict is not Verdict.OK:
            evaluation = data.evaluations[data.winner.genome.id]
        return [self._choice(data.winner, f) for f in evaluation.workloads if f.workload in self.workloads]

    def fastest(self, fits: Callable[[Choice], bool]) -> list[Choice]:
        """On each shape the fastest candidate for which ``fits`` holds; a shape without one is left out.

        Times are those of the search, so of several equal candidates the luckiest is chosen.
        """
        best: dict[str, Choice] = {}
        for name, evaluation in self.data.evaluations.items():
            candidate = self.data.candidates.get(name)
            if candidate is None or evaluation.verdict is not Verdict.OK:
                continue
            for figures in evaluation.workloads:
                held = best.get(figures.workload)
                if figures.workload in self.workloads and (
                    not held or figures.seconds < held.figures.seconds
                ):
                    choice = self._choice(candidate, figures)
                    if fits(choice):
                        best[figures.workload] = choice
        return [best[workload] for workload in sorted(best)]

    def winner_or_fastest(self, write: Writer) -> tuple[dict[str, str], list[str]]:
        """Files of the winner, or of the fastest candidates that ``write`` accepts, and one remark for each shape.

        A remark says how far the written candidate is from a winner that could not be written. Raises Disagreement
        when nothing can be written.
        """
        winners = self.winner()
        try:
            return write(winners), []
        except Disagreement:
            others = self.fastest(lambda choice: _accepts(write, choice))
            if not others:
                raise
        winner = winners[0].provenance["candidate"]
        searched = self.fastest(lambda choice: choice.provenance["candidate"] == winner)
        best = {choice.workload.id: choice.figures.seconds for choice in searched}
        remarks = [
            f"{choice.workload.id}: the winner is another kernel ({best[choice.workload.id] * 1e6:.1f} us); the "
            f"fastest candidate with the program's own schedule is written ({choice.figures.seconds * 1e6:.1f} us, "
            f"{choice.provenance['kind']})"
            for choice in others
            if choice.workload.id in best
        ]
        return write(others), remarks

    def _choice(self, candidate: Candidate, figures: WorkloadFigures) -> Choice:
        data, genome = self.data, candidate.genome
        low, high = figures.seconds_interval or (figures.seconds, figures.seconds)
        # the worker that evaluated the candidate says the device's name and its own versions
        evaluation = data.evaluations.get(genome.id)
        provenance = {
            "source": f"tilewright {version()}",
            "campaign": self.name,
            "operator": self.operator.name,
            "candidate": genome.id,
            "target": data.target,
            "kind": figures.kind,
            "time_ms": figures.seconds * 1e3,
            "interval_ms": [low * 1e3, high * 1e3],
            **({"time_model": figures.model_version} if figures.model_version else {}),
            "toolchain": {**data.toolchain, **(evaluation.toolchain if evaluation is not None else {})},
            **self.receipts.get(candidate.index, {}),
        }
        workload = self.workloads[figures.workload]
        return Choice(
            self.operator.name, data.target, workload, dict(genome.params), figures, provenance, genome.source
        )


def require_seed(choice: Choice) -> None:
    """Raises Disagreement for a kernel that is no seed of the operator: what its tiles mean is not known."""
    seeds = load_operator(choice.operator).kernels.values()
    if choice.source and source_id(choice.source) not in {source_id(seed.source) for seed in seeds}:
        raise Disagreement(
            f"the winner on {choice.workload.id} is a kernel that the search wrote, with a schedule of its own; tiles "
            f"of {choice.operator}'s seeds can be exported."
        )


def _accepts(write: Writer, choice: Choice) -> bool:
    try:
        return bool(write([choice]))
    except (Disagreement, KeyError):  # KeyError: another kernel has other parameters
        return False
