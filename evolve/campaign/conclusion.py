"""The end of a campaign: its best genomes checked once more, and the winner among them; seeds and baselines beside it.

On a measured target the genomes run side by side on the device and a dispatch table is written; on a modelled target
the finalists pass the gates again, with all inputs.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.evolve.campaign import dispatch_table
from tilewright.evolve.campaign.loop import Start
from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.errors import UserError
from tilewright.evolve.record.history import POINTS, History, MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.pool import Evaluator, Pool
from tilewright.workers.cluster.settings import PoolUnavailable


@dataclass
class References:
    """An ``Evaluator`` around another that also runs reference jobs and writes them to the journal."""

    inner: Evaluator
    journal: Journal
    seed: int
    _names: dict[int, tuple[str, Scope]] = field(default_factory=dict)
    _next: int = -1

    @property
    def slots(self) -> int:
        return self.inner.slots

    def submit(self, job: Job) -> None:
        self.inner.submit(job)

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        """Raises PoolUnavailable where workers failed in the final check: that is no figure of a finalist."""
        finished, fault = [], ""
        for index, evaluation in self.inner.wait(timeout_seconds):
            if index not in self._names:
                finished.append((index, evaluation))
                continue
            name, scope = self._names.pop(index)
            if evaluation.verdict is Verdict.INFRA_ERROR and scope is Scope.FINAL:
                fault = f"the final check was not done: {evaluation.reason.removesuffix('.')}"
            else:
                self.journal.add_reference(name, scope.value, evaluation)
        if fault:
            raise PoolUnavailable(fault)
        return finished

    def drop(self, indices: Collection[int]) -> None:
        self.inner.drop(indices)

    def activity(self) -> list[str]:
        lines = self.inner.activity()
        for index, (name, scope) in self._names.items():
            shown = f"{name.partition(':')[0]} ({scope.value}),"  # without a finalist's id
            lines = [line.replace(f"candidate {index},", shown) for line in lines]
        return lines

    def close(self) -> None:
        self.inner.close()

    def request(
        self, name: str, scope: Scope, genome: Genome, baseline: str | None = None, *, verify: bool = False
    ) -> None:
        """Evaluate ``genome`` under ``name`` unless the journal already has that figure.

        Among final workloads, ``verify`` has it pass the gates again, with all inputs and on a measured shape.
        """
        if name in self.journal.references(scope.value):
            return
        index, self._next = self._next, self._next - 1
        self._names[index] = (name, scope)
        best = 0.0 if verify else math.inf
        self.inner.submit(Job(index, genome, self.seed, best=best, scope=scope, baseline=baseline))

    def drain(self, on_progress: Callable[[], bool]) -> bool:
        """Wait for every requested reference; ``on_progress`` returns True to give up early."""
        while self._names:
            self.wait(0.25)
            if on_progress():
                return False
        return True


COMPARED = 14
"""Most genomes that are measured side by side."""

OVERALL = 3
"""How many of them are the best on the whole suite; the rest are faster on some workloads."""

LOTS = 2
"""How often so many are measured where none of those before passed."""

COMPARISON_FILE = "comparison.json"


def contenders(history: History, most: int = COMPARED, without: Collection[str] = ()) -> list[Genome]:
    """The fittest genomes, then one by one the one that makes the workloads' fastest faster by most.

    Among them is the fittest that the campaign was given, a seed or a point of one: what it gained, it gained on that.
    ``without``: ids of genomes that failed before.
    """
    ranked = [ce for ce in history.successes() if ce[0].genome.id not in without]
    ranked.sort(key=lambda ce: -(ce[1].fitness or 0.0))
    given = [c for c, _ in ranked if c.mutation.kind is MutationKind.SEED or c.mutation.proposer == POINTS]
    first = [*(candidate for candidate, _ in ranked[:OVERALL]), *given[:1]]
    chosen = {candidate.genome.id: candidate.genome for candidate in first}
    left = {c.genome.id: (c.genome, {f.workload: f.seconds for f in e.workloads}) for c, e in ranked}
    least: dict[str, float] = {}
    while left and len(chosen) < most:
        for genome in chosen:
            for workload, seconds in left.pop(genome, (None, {}))[1].items():
                least[workload] = min(seconds, least.get(workload, seconds))
        gains = {
            genome: sum(math.log(max(1.0, least.get(w, s) / s)) for w, s in seconds.items())
            for genome, (_, seconds) in left.items()
        }
        if gains:
            best = max(gains, key=lambda genome: gains[genome])  # the fittest where none is faster anywhere
            chosen[best] = left[best][0]
    return list(chosen.values())


def conclude_measured(resolved: Resolved, history: History, comparer: Pool, journal: Journal, folder: Path) -> Genome:
    """Write ``comparison.json`` and ``dispatch_table.json`` into ``folder``; the table's default genome wins.

    Where none of the genomes passes, the next best follow, ``LOTS`` of them in all. Raises UserError when no genome
    passes this last run, the device is gone or the folder full.
    """
    genomes: dict[str, Genome] = {}
    for _ in range(LOTS):
        lot = contenders(history, without=genomes)
        if genomes and not lot:
            break
        genomes.update((genome.id, genome) for genome in lot)
        try:
            comparison = comparer.compare(lot, resolved.config.seed)
        except ConnectionError as error:
            raise UserError(f"the final comparison failed: {error}; resume to try again.") from error
        if comparison.genomes:
            break
    if not comparison.genomes:
        reason = next(iter(comparison.failed.values()), "no genome was compared")
        raise UserError(f"the final comparison failed: {reason}; resume to try again.")
    suite = resolved.suite
    found = dispatch_table.table(
        resolved.operator,
        suite.workloads,
        suite.name,
        comparison,
        genomes,
        resolved.target.constants,
        resolved.target.hardware,
    )
    try:
        (folder / COMPARISON_FILE).write_text(comparison.to_json() + "\n", encoding="utf-8")
        dispatch_table.write(found, folder / dispatch_table.FILE)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}.") from error
    journal.add_event("dispatched", genomes=list(found["genomes"]), default=found["default"])
    return genomes[found["default"]]


WINNER = "winner"

RESERVES = 8
"""Most of the next best that are checked, one after the other, where no finalist passes."""


@dataclass(frozen=True)
class Finals:
    """Checks finalists, times what they are shown beside, and draws schedules.

    ``on_progress`` returns True to give up early; ``note`` tells the user.
    """

    resolved: Resolved
    journal: Journal
    references: References
    note: Callable[[str], None]
    on_progress: Callable[[], bool]

    def winner(self, history: History) -> Genome | None:
        """The fittest finalist that passes; None where none does, or the user gave up.

        A suite with final workloads times finalists, the best seed and baselines there. One without has their times
        already: its finalists are checked in turn until one passes. Where none does, the next best are, in turn.
        """
        count = self.resolved.config.search.finalists
        ranked = [candidate.genome for candidate, _ in history.fittest(count + RESERVES)]
        if not ranked:
            return None
        beside = ", the best seed and baselines on the final shapes" if self.resolved.suite.final else ""
        self.note(f"final check: the finalists once more, with all kinds of inputs{beside}")
        together = count if self.resolved.suite.final else 1
        groups = [ranked[:together], *([genome] for genome in ranked[together:])]
        for turn, group in enumerate(groups):
            for genome in group:
                self.references.request(f"finalist:{genome.id}", Scope.FINAL, genome, verify=True)
            if self.resolved.suite.final and turn == 0:
                self._time_beside(history)
            if not self.references.drain(self.on_progress):
                return None
            if (winner := self._pick(group)) is not None:
                return winner
            if len(ranked) > count == together + turn:
                self.note("no finalist passed the final check: the next best are checked, one by one")
        self.note(f"none of {len(ranked)} finalists passed the final check: there is no winner")
        return None

    def _time_beside(self, history: History) -> None:
        """Request the best seed and the baselines on the final workloads."""
        found = [(history.evaluation(start.genome.id), start) for start in self.resolved.starts]
        best: Start = max(found, key=lambda es: (es[0] and es[0].fitness) or 0.0)[1]
        self.references.request(f"seed:{best.name}", Scope.FINAL, best.genome)
        for kernel, genome in self.resolved.baselines:
            self.references.request(kernel.name, Scope.FINAL, genome, kernel.name)

    def _pick(self, finalists: list[Genome]) -> Genome | None:
        """The fittest that has passed, its figures under ``WINNER`` as well."""
        finals = self.journal.references(Scope.FINAL.value)
        figures = [(finals.get(f"finalist:{genome.id}"), genome) for genome in finalists]
        passed = [(e, g) for e, g in figures if e is not None and e.verdict is Verdict.OK]
        if not passed:
            return None
        evaluation, winner = max(passed, key=lambda eg: eg[0].fitness or 0.0)
        if WINNER not in finals:
            self.journal.add_reference(WINNER, Scope.FINAL.value, evaluation)
        return winner
