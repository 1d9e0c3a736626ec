"""Parameter mutations by a model that learns while the campaign runs.

Bayesian optimisation over typed parameters: first points around declared defaults (or anywhere), then the
point of most expected improvement among random ones and all single-parameter changes of the best. Several
sources share one model. It is a fold over the history: refits happen at fixed counts of records and are seeded
by them, so a resumed campaign has the model the unbroken one had.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from threadpoolctl import ThreadpoolController

from evolve.archive import Archive
from evolve.genome import Genome
from evolve.history import Candidate, History, Mutation, MutationKind, Proposal
from evolve.proposers.parameter_model import Group, Model
from evolve.proposers.parameter_records import Records, SourceRecords
from evolve.proposers.parameters import KnownSpaces, SpaceOf, changes
from evolve.space import Rows, Space

FIRST_POINTS = 8
"""Records before a model is trusted."""

LEAST_SUCCESSES = 3

REFIT_EVERY = 3
REFIT_FRACTION = 12
"""The next refit comes after 3 records, or a twelfth of those there are."""

MOST_SOURCES = 6
"""Sources the model covers: the fittest."""

POOL = 1200
"""Random points that compete for each proposal, shared among the sources."""

TOP = 5
"""Best points whose single-parameter changes all compete."""

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

    def __init__(self, archive: Archive, space_of: SpaceOf) -> None:
        self._archive = archive
        self._spaces = KnownSpaces(space_of)
        self._records = Records(self._spaces)
        self._model: Model | None = None
        self._next_fit = FIRST_POINTS
        self._proposed: dict[str, set[int]] = {}
        self._seen = 0
        self._threads = ThreadpoolController()

    def propose(self, history: History, island: int, rng: np.random.Generator) -> Proposal | None:
        # One thread: a sum split over threads may round differently, and workers need the cores.
        with self._threads.limit(limits=1, user_api="blas"):
            return self._propose(history, rng)

    def _propose(self, history: History, rng: np.random.Generator) -> Proposal | None:
        self._note_proposed(history)
        while self._records.next_new(history):
            self._maybe_refit()
        if self._model is None:
            return self._explore(history, rng)
        return self._improve(history, self._model, rng)

    # -- folding ---------------------------------------------------------------------------------

    def _note_proposed(self, history: History) -> None:
        for candidate in history.candidates[self._seen :]:
            genome = candidate.genome
            space = self._spaces[genome.source]
            if space is not None and space.legal(genome.params):
                code = space.codes(space.encode(genome.params)[None])[0]
                self._proposed.setdefault(genome.source, set()).add(int(code))
        self._seen = len(history.candidates)

    def _maybe_refit(self) -> None:
        count = len(self._records.order)
        if count < self._next_fit or self._successes() < LEAST_SUCCESSES:
            return
        sources = self._fittest_sources()
        if self._model is None or tuple(sources) != self._model.sources:
            self._model = Model(sources)
        self._model.learn(seed=count)
        self._next_fit = count + max(REFIT_EVERY, count // REFIT_FRACTION)

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

    def _improve(self, history: History, model: Model, rng: np.random.Generator) -> Proposal | None:
        pending = self._pending(history, model)
        model.condition(pending)
        groups = [(k, self._fresh(records, rows)) for k, records, rows in self._pool(model, rng)]
        if not any(len(rows) for _, rows in groups):
            return None
        scores = model.expected_improvement(groups) * _away_from(pending, groups)
        scores = np.round(scores / max(scores.max(), 1e-300), _DIGITS)
        owners = np.concatenate([np.full(len(rows), k) for k, rows in groups])
        rows = [row for _, rows in groups for row in rows]
        for place in np.argsort(-scores, kind="stable"):
            records, row = model.sources[owners[place]], rows[place]
            parent = _nearest(records, row)
            proposal = self._offer(history, parent, records.space, row)
            if proposal is not None:
                return proposal
        return None

    def _pool(self, model: Model, rng: np.random.Generator) -> Iterator[tuple[int, SourceRecords, Rows]]:
        """Random points of every source, the fitter the more, and the neighbours of the best of all."""
        ranks = np.argsort(np.argsort([-records.best for records in model.sources], kind="stable"))
        shares = 1.0 / (1.0 + ranks)
        counts = np.maximum(1, POOL * shares / shares.sum()).astype(int)
        best = sorted(
            ((-t, k, i) for k, r in enumerate(model.sources) for i, t in enumerate(r.targets) if t == t)
        )[:TOP]
        for k, records in enumerate(model.sources):
            space = records.space
            near = [space.neighbour_rows(records.rows[i], steps=None) for _, owner, i in best if owner == k]
            yield k, records, np.concatenate([space.sample_rows(rng, int(counts[k])), *near])

    def _fresh(self, records: SourceRecords, rows: Rows) -> Rows:
        """Distinct rows never proposed, in order of their codes."""
        codes, first = np.unique(records.space.codes(rows), return_index=True)
        known = self._proposed.get(records.source, set())
        keep = np.array([int(code) not in known for code in codes], dtype=bool)
        return rows[first[keep]]

    def _pending(self, history: History, model: Model) -> list[Group]:
        waiting: list[Group] = []
        candidates = list(history.pending())
        for k, records in enumerate(model.sources):
            genomes = [c.genome for c in candidates if c.genome.source == records.source]
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


def _nearest(records: SourceRecords, row: Rows) -> Candidate:
    """The success that differs in the fewest parameters, the fitter one on a tie."""
    targets = np.array(records.targets)
    apart = (np.array(records.rows) != row).sum(axis=1)
    ranked = np.lexsort((-np.nan_to_num(targets, nan=-np.inf), apart + 1000 * np.isnan(targets)))
    return records.candidates[int(ranked[0])]


def _away_from(pending: list[Group], groups: list[Group]) -> np.ndarray:
    waiting = dict(pending)
    factors = []
    for source, rows in groups:
        factor = np.ones(len(rows))
        for other in waiting.get(source, ()):
            factor[(rows != other).sum(axis=1) <= 1] = NEAR_PENDING
        factors.append(factor)
    return np.concatenate(factors)
