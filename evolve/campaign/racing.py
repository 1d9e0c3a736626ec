"""Races inside a campaign: the few workloads that screen a candidate, and the rates it must reach there.

Workloads are chosen so that a candidate's mean log rate on them says most of its fitness, as the fittest half of the
campaign's own whole evaluations has it; that half also says how far such a judgement may be off. A quarter and then
half of the workloads are rungs of a successive halving (Jamieson and Talwalkar 2016), but what ends a candidate is an
interval, not a quota. All of it is a fold over the history: what a job is held against depends on what was known when
it was made, and on nothing else.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, History
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.intervals import student_95
from tilewright.fitness.race import Race, Rung
from tilewright.fitness.score import headroom

SHARES = (0.25, 0.5)
"""Of the workloads, measured by each rung."""

LEAST_RECORDS = 8
"""Evaluations on the whole suite before any candidate is stopped."""

CLOSED = 1.02
"""A workload whose time is within this factor of its floor decides no race."""

REFIT_SHARE = 10
"""Rungs are chosen anew after so many more whole evaluations: a tenth of those there are."""


class Racing:
    """``workloads`` are the ids of the suite's. One of one workload has no race.

    ``floors``: least seconds by workload and unit. Where the fastest so far is on the floor nothing is left to gain; a
    race is run on others as long as there are any.
    """

    def __init__(
        self, workloads: Sequence[str], archive: Archive, floors: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        self._workloads = tuple(workloads)
        self._floors = floors or {}
        self._archive = archive
        self._rates: list[np.ndarray] = []
        self._rungs: tuple[Rung, ...] = ()
        self._folded = self._next_fit = 0

    def race(self, history: History, candidate: Candidate) -> Race | None:
        """The race of a candidate, from what is known now; None while too little is known."""
        for _, evaluation in history.evaluated[self._folded :]:
            self._add(evaluation)
        self._folded = len(history.evaluated)
        if not self._rungs:
            return None
        params = {name: str(value) for name, value in candidate.genome.params.items()}
        cells = [
            ({name: value for name, value in cell.items() if name not in params}, elite.fitness)
            for elite in self._archive.elites(candidate.island)
            for cell in [elite.evaluation.descriptors]
            if all(params.get(name, value) == value for name, value in cell.items())
        ]
        fastest = {name: figures.seconds for name, (_, figures) in self._archive.per_workload.items()}
        best = (history.best[1].fitness if history.best else None) or 0.0
        return Race(self._rungs, tuple(cells), fastest, best)

    def _add(self, evaluation: Evaluation) -> None:
        rates = {figures.workload: figures.rate for figures in evaluation.workloads}
        if evaluation.verdict is not Verdict.OK or set(rates) != set(self._workloads):
            return
        self._rates.append(np.log([rates[name] for name in self._workloads]))
        count = len(self._rates)
        if count >= max(LEAST_RECORDS, self._next_fit) and len(self._workloads) > 1:
            self._rungs = self._choose_rungs(np.array(self._rates))
            self._next_fit = count + max(1, count // REFIT_SHARE)

    def _choose_rungs(self, rates: np.ndarray) -> tuple[Rung, ...]:
        """``rates`` [records, workloads] are logarithms. Workloads join one by one, each the one that helps most."""
        total = rates.mean(axis=1)
        fittest = np.sort(np.argsort(-total, kind="stable")[: -(-len(rates) // 2)])
        deviations = rates[fittest] - total[fittest, None]
        sizes = sorted({math.ceil(share * len(self._workloads)) for share in SHARES})
        chosen: list[int] = []
        rungs = []
        closed = self._closed()
        while len(chosen) < sizes[-1]:
            left = [w for w in range(len(self._workloads)) if w not in chosen]
            left = [w for w in left if self._workloads[w] not in closed] or left
            # nine digits: a choice must not hang on rounding
            chosen.append(min(left, key=lambda w: (round(float(deviations[:, [*chosen, w]].mean(axis=1).std()), 9), w)))
            if len(chosen) in sizes:
                rungs.append(self._rung(chosen, deviations[:, chosen].mean(axis=1)))
        return tuple(rungs)

    def _closed(self) -> frozenset[str]:
        """Workloads whose fastest time is on the floor."""
        fastest = [figures for _, figures in self._archive.per_workload.values()]
        rows = headroom(fastest, fastest, self._floors)
        return frozenset(row.workload for row in rows if row.left < CLOSED)

    def _rung(self, chosen: Sequence[int], offsets: np.ndarray) -> Rung:
        """``offsets``: of each record, the mean log rate on the chosen workloads less that on all."""
        count = len(offsets)
        spread = float(offsets.std(ddof=1)) * math.sqrt(1.0 + 1.0 / count)
        names = tuple(self._workloads[w] for w in chosen)
        return Rung(names, float(offsets.mean()), student_95(count - 1) * spread)
