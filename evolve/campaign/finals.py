"""The end of a campaign on a modelled target: its finalists checked once more, harder, and the winner among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.evolve.campaign.loop import Start
from tilewright.evolve.campaign.references import References
from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.record.history import History
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Verdict
from tilewright.seeds.operator import Scope

WINNER = "winner"


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
        already: its finalists are checked in turn until one passes.
        """
        count = self.resolved.config.search.finalists
        finalists = [candidate.genome for candidate, _ in history.fittest(count)]
        if not finalists:
            return None
        self.note("final check: finalists, the best seed and baselines")
        groups = [finalists] if self.resolved.suite.final else [[genome] for genome in finalists]
        for group in groups:
            for genome in group:
                self.references.request(f"finalist:{genome.id}", Scope.FINAL, genome, verify=True)
            if self.resolved.suite.final:
                self._time_beside(history)
            if not self.references.drain(self.on_progress):
                return None
            if (winner := self._pick(group)) is not None:
                self._draw(winner)
                self.references.drain(self.on_progress)
                return winner
        self.note("no finalist passed the final check: there is no winner")
        return None

    def _time_beside(self, history: History) -> None:
        """Request the best seed and the baselines on the final workloads."""
        found = [(history.evaluation(start.genome.id), start) for start in self.resolved.starts]
        best: Start = max(found, key=lambda es: (es[0] and es[0].fitness) or 0.0)[1]
        self.references.request(f"seed:{best.name}", Scope.FINAL, best.genome)
        for kernel, genome in self.resolved.baselines:
            self.references.request(kernel.name, Scope.FINAL, genome, kernel.name)

    def _draw(self, winner: Genome) -> None:
        """Request the schedules to draw, the first seed's and the winner's.

        What final workloads were timed with has its schedule: the winner's there beside the best seed's is drawn.
        """
        if self.resolved.suite.final:
            return
        start = self.resolved.starts[0]
        self.references.request(WINNER, Scope.TIMELINE, winner)
        self.references.request(f"seed:{start.name}", Scope.TIMELINE, start.genome)

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
