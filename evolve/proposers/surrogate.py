"""Parameter mutations by a model that learns while the campaign runs.

Bayesian optimisation over typed parameters: first points around declared defaults (or anywhere), then the
point of most expected improvement among random ones and those near the best. Several sources share one
model. It is a fold over the history: refits happen at fixed counts of records and are seeded by them, and
the pool of points is drawn then and kept until the next, so a resumed campaign has the model and the pool
the unbroken one had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from threadpoolctl import ThreadpoolController

from evolve.archive import Archive
from evolve.genome import Genome
from evolve.history import Candidate, History, Mutation, MutationKind, Proposal
from evolve.proposers.parameter_model import Group, Model
from evolve.proposers.parameter_pool import PARENTS, TOP, codes_of, distinct, pool_of, ranked
from evolve.proposers.parameter_records import Records, SourceRecords
from evolve.proposers.parameters import KnownSpaces, SpaceOf, changes
from evolve.space import Rows, Space

FIRST_POINTS = 6
"""Records before a model is trusted."""

LEAST_SUCCESSES = 3

REFIT_EVERY = 3
REFIT_RARER = 300
"""The next refit comes after 3 records, or, of n, after the 300th part of n to the power 1.5: after 9 at 200 and
105 at 1000. A long campaign spends less time on models for each evaluation, not more."""

MOST_SOURCES = 6
"""Sources the model covers: the fittest."""

NEAR_PENDING = 0.5
"""Factor on points one parameter away from one in flight: its outcome will say much about them."""

FIRST_TRIES = 50
"""Random points among which a new one is looked for."""

FIRST_CHANGES = 4.0
"""Parameters redrawn, on average, for a first point around declared defaults."""

_DIGITS = 9
"""Scores are compared to so many digits, so that rounding differs nowhere between machines."""


class SurrogateProposer:
    """Proposes where the model expects the largest improvement."""

    name = "surrogate"
    kind = MutationKind.PARAMETER

    def __init__(self, archive: Archive, space_of: SpaceOf, earlier: Sequence[SourceRecords] = ()) -> None:
        """``earlier`` are records of other campaigns, for the model to start from."""
        self._archive = archive
        self._earlier = earlier
        self._spaces = KnownSpaces(space_of)
        self._records = Records(self._spaces)
        self._view: View | None = None
        self._next_fit = 1 if earlier else FIRST_POINTS
        self._proposed: dict[str, set[int]] = {}
        self._pending: dict[int, Candidate] = {}
        self._seen = self._folded = 0
        self._threads = ThreadpoolController()

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        # One thread: a sum split over threads may round differently, and workers need the cores.
        with self._threads.limit(limits=1, user_api="blas"):
            self._fold(history)
            if self._view is None:
                return self._explore(history, rng)
            return self._improve(history, self._view)

    # -- folding ---------------------------------------------------------------------------------

    def _fold(self, history: History) -> None:
        for candidate in history.candidates[self._seen :]:
            self._note_proposed(candidate)
        self._seen = len(history.candidates)
        while self._records.next_new(history):
            candidate = history.evaluated[self._folded][0]
            self._folded += 1
            self._pending.pop(candidate.index, None)
            self._take_in(candidate)

    def _note_proposed(self, candidate: Candidate) -> None:
        genome = candidate.genome
        self._pending[candidate.index] = candidate
        space = self._spaces[genome.source]
        if space is None or not space.legal(genome.params):
            return
        row = space.encode(genome.params)
        (code,) = codes_of(space, row[None])
        self._proposed.setdefault(genome.source, set()).add(code)
        if self._view is not None:
            self._view.strike(genome.source, code)

    def _take_in(self, candidate: Candidate) -> None:
        """Refit, or tell the model of the latest record."""
        count = len(self._records.order)
        if not count or self._records.order[-1][0].candidates[-1] is not candidate:
            return
        if count >= self._next_fit and self._successes() >= (1 if self._earlier else LEAST_SUCCESSES):
            self._refit(count)
        elif self._view is not None:
            records, place = self._records.order[-1]
            self._view.observe(records, place)

    def _refit(self, count: int) -> None:
        sources = self._fittest_sources()
        model = self._view.model if self._view is not None else None
        if model is None or tuple(sources) != model.sources:
            model = Model(sources, self._earlier)
        self._next_fit = count + max(REFIT_EVERY, int(count * math.sqrt(count)) // REFIT_RARER)
        latest = self._records.order[-1][0].candidates[-1]
        model.learn(seed=count, spare=self._next_fit - count)
        rng = np.random.default_rng([count, int(latest.genome.id[:8], 16)])
        self._view = View(model, self._proposed, rng)

    def _successes(self) -> int:
        return sum(int(np.isfinite(records.targets).sum()) for records in self._records.sources)

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
            for row in _first_points(space, tried[source], rng):
                proposal = self._offer(history, tried[source], space, row)
                if proposal is not None:
                    return proposal
        return None

    # -- with a model ----------------------------------------------------------------------------

    def _improve(self, history: History, view: View) -> Proposal | None:
        while (best := view.best(self._waiting(view))) is not None:
            records, row, parent = best
            proposal = self._offer(history, parent, records.space, row)
            if proposal is not None:
                return proposal
            view.strike(records.source, codes_of(records.space, row[None])[0])
        return None

    def _waiting(self, view: View) -> list[Group]:
        waiting: list[Group] = []
        for k, records in enumerate(view.model.sources):
            genomes = [c.genome for c in self._pending.values() if c.genome.source == records.source]
            rows = [records.space.encode(g.params) for g in genomes if records.space.legal(g.params)]
            if rows:
                waiting.append((k, np.array(rows)))
        return waiting

    def _offer(self, history: History, parent: Candidate, space: Space, row: Rows) -> Proposal | None:
        genome = Genome(parent.genome.source, space.decode(row))
        if genome.id in history:
            return None
        detail = changes(parent.genome.params, genome.params)
        return Proposal(genome, (parent.genome.id,), Mutation(self.kind, self.name, detail))


class View:
    """A fitted model and the points it is asked about until the next refit."""

    def __init__(self, model: Model, proposed: Mapping[str, set[int]], rng: np.random.Generator) -> None:
        """``proposed`` maps a source to the codes of its points that are no longer open."""
        self.model = model
        self._proposed = proposed
        self._numbers = {records.source: k for k, records in enumerate(model.sources)}
        self._places: dict[tuple[int, int], int] = {}
        self._points: list[Group] = []
        self._owners: list[int] = []
        self._rows: list[Rows] = []
        self._open = np.zeros(0, dtype=bool)
        self._fittest = ranked(model.sources)[:PARENTS]
        self._add(pool_of(model.sources, rng))

    def _add(self, groups: Sequence[Group]) -> None:
        fresh: list[Group] = []
        still_open: list[bool] = []
        for k, rows in groups:
            records = self.model.sources[k]
            proposed = self._proposed.get(records.source, set())
            codes = codes_of(records.space, rows)
            keep = [i for i, code in enumerate(codes) if (k, code) not in self._places]
            for i in keep:
                self._places[k, codes[i]] = len(self._rows)
                self._rows.append(rows[i])
                self._owners.append(k)
                still_open.append(codes[i] not in proposed)
            fresh.append((k, rows[keep]))
        self._open = np.concatenate([self._open, np.array(still_open, dtype=bool)])
        self.model.add(fresh)

    def strike(self, source: str, code: int) -> None:
        """This point has been proposed."""
        place = self._places.get((self._numbers.get(source, -1), code))
        if place is not None:
            self._open[place] = False

    def observe(self, records: SourceRecords, place: int) -> None:
        """One more record; the neighbours of one among the best join the pool."""
        k = self._numbers.get(records.source)
        if k is None or not self.model.room:
            return
        self.model.observe(k, records.rows[place], records.targets[place])
        if self._ranks_among_top(k, place):
            near = records.space.neighbour_rows(records.rows[place], steps=None)
            self._add([(k, distinct(records.space, near))])

    def _ranks_among_top(self, k: int, place: int) -> bool:
        target = self.model.sources[k].targets[place]
        if math.isnan(target):
            return False
        entry = (-target, k, place)
        self._fittest = sorted([*self._fittest, entry])[:PARENTS]
        return entry in self._fittest[:TOP]

    def best(self, pending: Sequence[Group]) -> tuple[SourceRecords, Rows, Candidate] | None:
        """The open point of most expected improvement, and the closest of the fittest as its parent."""
        if not self._open.any():
            return None
        scores = self.model.expected_improvement(pending)
        scores = np.where(self._open, scores * self._away_from(pending), -1.0)
        place = int(np.argmax(np.round(scores / max(scores.max(), 1e-300), _DIGITS)))
        records, row = self.model.sources[self._owners[place]], self._rows[place]
        return records, row, self._parent(self._owners[place], row)

    def _parent(self, k: int, row: Rows) -> Candidate:
        records = self.model.sources[k]
        fit = [i for _, owner, i in self._fittest if owner == k] or [_argbest(records)]
        return records.candidates[min(fit, key=lambda i: int((records.rows[i] != row).sum()))]

    def _away_from(self, pending: Sequence[Group]) -> np.ndarray:
        factor = np.ones(len(self._rows))
        if not pending:
            return factor
        owners = np.array(self._owners)
        for k, waiting in pending:
            mine = np.flatnonzero(owners == k)
            rows = np.array([self._rows[p] for p in mine])
            for other in waiting:
                factor[mine[(rows != other).sum(axis=1) <= 1]] = NEAR_PENDING
        return factor


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


def _argbest(records: SourceRecords) -> int:
    return int(np.nanargmax(records.targets))
