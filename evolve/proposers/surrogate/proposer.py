"""Parameter mutations by a model that learns while the campaign runs.

Bayesian optimisation over typed parameters: first points around declared defaults (or anywhere), then the
point of most expected improvement among random ones and those near the best. Several sources share one
model. It is a fold over the history: refits happen at fixed counts of records and are seeded by them, and
the pool of points is drawn then and kept until the next, so a resumed campaign has the model and the pool
the unbroken one had.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from threadpoolctl import ThreadpoolController

from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, first_new
from tilewright.evolve.proposers.surrogate.model import Model
from tilewright.evolve.proposers.surrogate.records import Records, SourceRecords, misleads
from tilewright.evolve.proposers.surrogate.view import View, codes_of
from tilewright.evolve.record.history import Candidate, History, MutationKind, Proposal
from tilewright.evolve.space.space import Rows, Space

FIRST_POINTS = 6
FIRST_ANYWHERE = 10
"""Records before a model is trusted: those around declared defaults, and random ones where there are none."""

FEWEST_RECORDS = 5
"""With several in flight the model starts from so many records, once as many points as above are proposed: while the
last of them are being evaluated, the first already say where to look."""

LEAST_SUCCESSES = 3

REFIT_RARER = 160
REFIT_RARE = 20
REFIT_SURELY = 1000
"""The next refit comes with the next record, or, of n, after the 160th part of n to the power 1.5 (2 at 50, 6 at 100,
17 at 200), of a 20th of n squared from 400 on, and after 1000 at the latest. A long campaign spends less time on
models for each evaluation, not more."""

JUDGE_EVERY = 3
"""Records between two times that earlier campaigns are held against this one: who is asked often enough is once wrong
by chance."""

ANEW = 5
"""First points after the last earlier campaign was dropped: what it led to lies together, where it is bad."""

LOOK_ALWAYS = 400
LOOK_SHARE = 12
"""The model looks at its pool again after each record, and from 400 records on after the 12th part of what is beyond
them. What it ranked then is proposed in order."""

MOST_SOURCES = 6
"""Sources the model covers: the fittest."""

FIRST_TRIES = 50
"""Random points among which a new one is looked for."""

FIRST_CHANGES = 4.0
"""Parameters redrawn, on average, for a first point around declared defaults."""


class SurrogateProposer:
    """Proposes where the model expects the largest improvement."""

    name = "surrogate"
    kind = MutationKind.PARAMETER

    def __init__(self, spaces: KnownSpaces, earlier: Sequence[SourceRecords] = ()) -> None:
        """``earlier`` are records of other campaigns, for the model to start from until they prove to mislead."""
        self._earlier = earlier
        self._spaces = spaces
        self._records = Records(self._spaces)
        self._view: View | None = None
        self._least_successes = 1 if earlier else LEAST_SUCCESSES
        self._next_fit = self._next_look = self._next_judgement = 0
        self._anew = 0
        """Proposals that must have been made before there is a model again."""

        self._proposed: dict[str, set[int]] = {}
        self._pending: dict[int, Candidate] = {}
        self._proposed_after: list[int] = []
        """For each candidate, how many evaluations were known when it was proposed."""

        self._seen = 0
        self._threads = ThreadpoolController()

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        self._fold(history)
        if self._view is None:
            return self._explore(history, rng)
        return self._improve(history, self._view)

    # -- folding ---------------------------------------------------------------------------------

    def _fold(self, history: History) -> None:
        for candidate in history.candidates[self._seen :]:
            self._note_proposed(candidate)
        self._seen = len(history.candidates)
        while (evaluated := self._records.next_new(history)) is not None:
            self._pending.pop(evaluated.index, None)
            self._take_in(evaluated)

    def _note_proposed(self, candidate: Candidate) -> None:
        genome = candidate.genome
        self._pending[candidate.index] = candidate
        self._proposed_after.append(candidate.seen)
        space, row = self._spaces[genome.source], self._spaces.row(genome)
        if space is None or row is None:
            return
        code = codes_of(space, row[None])[0]
        self._proposed.setdefault(genome.source, set()).add(code)
        if self._view is not None:
            self._view.strike(genome.source, code)

    def _take_in(self, candidate: Candidate) -> None:
        """Refit, or tell the model of the latest record."""
        count = len(self._records.order)
        if not count or self._records.order[-1][0].candidates[-1] is not candidate:
            return
        if (count >= self._next_fit or self._is_ahead_elsewhere()) and self._knows_enough(count):
            with self._one_thread():
                self._refit(count)
        elif self._view is not None:
            records, place = self._records.order[-1]
            self._view.note(records, place)
            if count >= self._next_look:
                with self._one_thread():
                    self._view.look(count // _patience(count))
                self._next_look = count + _patience(count)

    def _is_ahead_elsewhere(self) -> bool:
        """Whether the latest record leads with a source that the model does not cover."""
        if self._view is None:
            return False
        (records, place), covered = self._records.order[-1], self._view.model.sources
        if any(records is known for known in covered):
            return False
        return records.targets[place] > max(known.best for known in covered)

    def _one_thread(self) -> AbstractContextManager[object]:
        """A sum split over threads may round differently, and workers need the cores."""
        limited: AbstractContextManager[object] = self._threads.limit(limits=1, user_api="blas")
        return limited

    def _refit(self, count: int) -> None:
        sources = self._fittest_sources()
        model = self._view.model if self._view is not None else None
        if self._drop_misleading(count, sources):
            model = None
            if not self._earlier:
                self._anew, self._view = self._proposed_by_now() + ANEW, None
                return
        if model is None or tuple(sources) != model.sources:
            model = Model(sources, self._earlier)
        self._next_fit = count + _interval(count)
        self._next_look = count + _patience(count)
        latest = self._records.order[-1][0].candidates[-1]
        model.learn(spare=self._next_fit - count)
        rng = np.random.default_rng([count, int(latest.genome.id[:8], 16)])
        self._view = View(model, self._proposed, rng, count // _patience(count))

    def _drop_misleading(self, count: int, sources: Sequence[SourceRecords]) -> bool:
        """Forget earlier campaigns that mislead about these; whether there was one."""
        if count < self._next_judgement:
            return False
        self._next_judgement = count + JUDGE_EVERY
        known = len(self._earlier)
        self._earlier = [e for e in self._earlier if not any(misleads(e, records) for records in sources)]
        return len(self._earlier) < known

    def _knows_enough(self, count: int) -> bool:
        successes = sum(records.successes for records in self._records.sources)
        first = self._first_points()
        begun = self._proposed_by_now() >= max(first, self._anew) and count >= min(first, FEWEST_RECORDS)
        return begun and successes >= self._least_successes

    def _proposed_by_now(self) -> int:
        """As many as were proposed when the latest record came, whenever this is asked."""
        return bisect_left(self._proposed_after, self._records.folded)

    def _first_points(self) -> int:
        if self._earlier:
            return 1
        declared = all(records.space.defaults for records in self._records.sources)
        return FIRST_POINTS if declared else FIRST_ANYWHERE

    def _fittest_sources(self) -> list[SourceRecords]:
        working = [records for records in self._records.sources if np.isfinite(records.best)]
        fittest = sorted(working, key=lambda records: -records.best)[:MOST_SOURCES]
        return [records for records in working if records in fittest]

    # -- before there is a model -----------------------------------------------------------------

    def _explore(self, history: History, rng: np.random.Generator) -> Proposal | None:
        """A first point of the source with the fewest points so far."""
        tried: dict[str, Candidate] = {}
        for candidate in history.candidates:
            tried.setdefault(candidate.genome.source, candidate)
        for candidate, _ in sorted(history.successes(), key=lambda ce: ce[1].fitness or 0.0):
            tried[candidate.genome.source] = candidate
        for source in sorted(tried, key=lambda s: len(self._proposed.get(s, ()))):
            space = self._spaces[source]
            if space is None:
                continue
            rows = _first_points(space, tried[source], rng)
            if (proposal := first_new(history, tried[source], space, rows, self.name)) is not None:
                return proposal
        return None

    # -- with a model ----------------------------------------------------------------------------

    def _improve(self, history: History, view: View) -> Proposal | None:
        waiting = self._waiting(view)
        with self._one_thread() if waiting else nullcontext():
            while (best := view.best(waiting)) is not None:
                records, row, parent = best
                proposal = first_new(history, parent, records.space, [row], self.name)
                if proposal is not None:
                    return proposal
                view.strike(records.source, codes_of(records.space, row[None])[0])
        return None

    def _waiting(self, view: View) -> list[tuple[int, Rows]]:
        """Points in flight of the model's sources: the source's number and the row. Without interest to one who
        proposes what it ranked some records ago."""
        waiting: list[tuple[int, Rows]] = []
        if _patience(len(self._records.order)) > 1:
            return waiting
        for k, records in enumerate(view.model.sources):
            mine = [c.genome for c in self._pending.values() if c.genome.source == records.source]
            rows = [self._spaces.row(genome) for genome in mine]
            waiting += [(k, row) for row in rows if row is not None]
        return waiting


def _interval(count: int) -> int:
    """Records between two refits."""
    rarer = int(count * max(math.sqrt(count), count / REFIT_RARE)) // REFIT_RARER
    return min(max(1, rarer), REFIT_SURELY)


def _patience(count: int) -> int:
    """Records between two looks."""
    return max(1, (count - LOOK_ALWAYS) // LOOK_SHARE)


def _first_points(space: Space, start: Candidate, rng: np.random.Generator) -> Rows:
    """Points to learn from first: around the fittest so far where a person declared defaults, else anywhere.

    Declared defaults are a working point in a space of mostly poor ones, and few changes at a time tell a model
    which of them help.
    """
    if not space.defaults or not space.legal(start.genome.params):
        return space.sample_rows(rng, FIRST_TRIES)
    rows = np.repeat(space.encode(start.genome.params)[None], 4 * FIRST_TRIES, axis=0)
    sizes = np.array([len(values) for values in space.parameters.values()])
    changed = rng.random(rows.shape) < FIRST_CHANGES / len(sizes)
    rows = np.where(changed, rng.integers(0, sizes, rows.shape), rows).astype(rows.dtype)
    return rows[space.legal_rows(rows)]
