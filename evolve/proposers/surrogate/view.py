"""A fitted model, and the points it is asked about until the next refit: anywhere, near the best, and between them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.evolve.proposers.surrogate.model import Group, Model
from tilewright.evolve.proposers.surrogate.records import SourceRecords
from tilewright.evolve.record.history import Candidate
from tilewright.evolve.space.space import Rows, Space

ANYWHERE = 700
"""Random points, shared among the sources, the fitter the more."""

NEAR = 300
"""Points a few parameters away from one of the best, or between two of them; likewise shared."""

LOCAL_RECORDS = 2
"""While a source whose defaults are declared has fewer records than this times its live parameters, only the
single-parameter changes of its best points compete: so few say nothing of the far side of the space, and a person's
defaults are better than most of it."""

WHOLE = 1500
"""Legal points up to which all of them compete."""

NEAR_CHANGES = 2.5
"""Parameters redrawn, on average, for a point near one of the best."""

TOP = 8
"""Best points whose single-parameter changes all compete."""

PARENTS = 10
"""Best points that others are made from."""


def pool_of(sources: Sequence[SourceRecords], rng: np.random.Generator) -> list[tuple[int, Rows]]:
    """Legal rows for each source that are worth asking a model about."""
    ranks = np.argsort(np.argsort([-records.best for records in sources], kind="stable"))
    shares = 1.0 / (1.0 + ranks)
    shares /= shares.sum()
    best = [(k, i) for _, k, i in ranked_successes(sources)[:PARENTS]]
    pool = []
    for k, records in enumerate(sources):
        space, rows = records.space, [np.zeros((0, len(records.space.names)), dtype=np.int16)]
        mine = [records.rows[i] for owner, i in best if owner == k]
        live = sum(len(values) > 1 for values in space.parameters.values())
        local = bool(mine) and bool(space.defaults) and len(records.rows) < LOCAL_RECORDS * live
        if not local and space.points is not None and len(space.points) <= WHOLE * shares[k]:
            rows.append(space.points)
        else:
            anywhere, near = (0, 0) if local else (max(1, int(ANYWHERE * shares[k])), int(NEAR * shares[k]))
            rows.append(space.sample_rows(rng, anywhere))
            rows += [near_rows(space, np.array(mine), near, rng)] if mine else []
            rows += [space.neighbour_rows(records.rows[i], steps=None) for o, i in best[:TOP] if o == k]
        pool.append((k, np.concatenate(rows)))
    return pool


def ranked_successes(sources: Sequence[SourceRecords]) -> list[tuple[float, int, int]]:
    """(minus log fitness, source, position there) of all successes, fittest first."""
    return sorted((-t, k, i) for k, r in enumerate(sources) for i, t in enumerate(r.targets) if t == t)


def near_rows(space: Space, parents: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Legal rows made from ``parents``: each value from one of two of them, a few redrawn."""
    sizes = np.array([len(values) for values in space.parameters.values()])
    one, other = (parents[rng.integers(len(parents), size=count)] for _ in range(2))
    rows = np.where(rng.random(one.shape) < 0.5, one, other)
    redrawn = rng.random(rows.shape) < NEAR_CHANGES / max(1, int((sizes > 1).sum()))
    rows = np.where(redrawn, rng.integers(0, sizes, rows.shape), rows).astype(np.int16)
    return rows[space.legal_rows(rows)]


def distinct(space: Space, rows: Rows) -> Rows:
    """Each row once, in order of codes."""
    _, first = np.unique(space.codes(rows), return_index=True)
    return rows[first]


def codes_of(space: Space, rows: Rows) -> list[int]:
    """A number per row, equal for equal rows."""
    return [int(code) for code in space.codes(rows)]


NEAR_PENDING = 0.5
"""Factor on points one parameter away from one in flight: its outcome will say much about them."""

_DIGITS = 9
"""Scores are compared to so many digits, so that rounding differs nowhere between machines."""

EXPLOIT_EVERY = 4
EXPLOIT_DOUBT = 0.25
"""Every fourth look, the model's doubt counts for a quarter: expected improvement alone explores for too long."""


class View:
    """A fitted model and the points it is asked about until the next refit."""

    def __init__(self, model: Model, proposed: Mapping[str, set[int]], rng: np.random.Generator, number: int) -> None:
        """``proposed`` maps a source to the codes of its points that are no longer open; ``number`` counts looks."""
        self.model = model
        self._proposed = proposed
        self._numbers = {records.source: k for k, records in enumerate(model.sources)}
        self._places: dict[tuple[int, int], int] = {}
        self._owners: list[int] = []
        self._rows: list[Rows] = []
        self._open = np.zeros(0, dtype=bool)
        self._fittest = ranked_successes(model.sources)[:PARENTS]
        self._news: list[tuple[int, int]] = []
        self._order: np.ndarray | None = None
        self._number = number
        self._add(pool_of(model.sources, rng))

    def _add(self, groups: Sequence[Group]) -> None:
        fresh: list[Group] = []
        still_open: list[bool] = []
        for k in sorted({k for k, _ in groups}):
            records = self.model.sources[k]
            proposed = self._proposed.get(records.source, set())
            rows = distinct(records.space, np.concatenate([rows for owner, rows in groups if owner == k]))
            codes = codes_of(records.space, rows)
            keep = [i for i, code in enumerate(codes) if (k, code) not in self._places]
            self._places.update(((k, codes[i]), place) for place, i in enumerate(keep, len(self._rows)))
            self._rows.extend(rows[keep])
            self._owners.extend([k] * len(keep))
            still_open.extend([codes[i] not in proposed for i in keep])
            fresh.append((k, rows[keep]))
        self._open = np.concatenate([self._open, np.array(still_open, dtype=bool)])
        self.model.add(fresh)

    def strike(self, source: str, code: int) -> None:
        """This point has been proposed."""
        place = self._places.get((self._numbers.get(source, -1), code))
        if place is not None:
            self._open[place] = False

    def note(self, records: SourceRecords, place: int) -> None:
        """One more record, for the next ``look``."""
        if records.source in self._numbers:
            self._news.append((self._numbers[records.source], place))

    def look(self, number: int) -> None:
        """Tell the model what was noted; the neighbours of records among the best join the pool."""
        news, self._news = self._news, []
        rows = [(k, self.model.sources[k].rows[i]) for k, i in news]
        near = [(k, self._near(k, i)) for k, i in news if self._ranks_among_top(k, i)]
        places = self._places_of(rows, near)
        self.model.observe(places, [self.model.sources[k].targets[i] for k, i in news])
        self._order, self._number = None, number

    def _near(self, k: int, i: int) -> Rows:
        records = self.model.sources[k]
        return records.space.neighbour_rows(records.rows[i], steps=None)

    def _places_of(self, points: Sequence[tuple[int, Rows]], more: Sequence[Group] = ()) -> list[int]:
        """Where points (source, row) stand in the pool, which they join if need be, and ``more`` with them."""
        codes = [(k, codes_of(self.model.sources[k].space, row[None])[0]) for k, row in points]
        missing = [(k, row[None]) for (k, row), code in zip(points, codes, strict=True) if code not in self._places]
        if missing or more:
            self._add([*missing, *more])
        return [self._places[code] for code in codes]

    def _ranks_among_top(self, k: int, place: int) -> bool:
        target = self.model.sources[k].targets[place]
        if math.isnan(target):
            return False
        entry = (-target, k, place)
        self._fittest = sorted([*self._fittest, entry])[:PARENTS]
        return entry in self._fittest[:TOP]

    def best(self, pending: Sequence[tuple[int, Rows]]) -> tuple[SourceRecords, Rows, Candidate] | None:
        """The open point of most expected improvement, and the closest of the fittest as its parent."""
        order = self._ranking(self._places_of(pending))
        if not self._open.any():
            return None
        place = int(order[np.argmax(self._open[order])])
        records, row = self.model.sources[self._owners[place]], self._rows[place]
        return records, row, self._parent(self._owners[place], row)

    def _ranking(self, waiting: Sequence[int]) -> np.ndarray:
        """Places from the most promising down; without points in flight, the same until the next look."""
        if self._order is not None and not waiting:
            return self._order
        doubt = 1.0 if self._number % EXPLOIT_EVERY else EXPLOIT_DOUBT
        scores = self.model.promise(waiting, doubt) + np.log(self._away_from(waiting))
        order = np.argsort(-np.round(scores, _DIGITS), kind="stable")
        if not waiting:
            self._order = order
        return order

    def _parent(self, k: int, row: Rows) -> Candidate:
        records = self.model.sources[k]
        fit = [i for _, owner, i in self._fittest if owner == k] or [int(np.nanargmax(records.targets))]
        apart = (np.array([records.rows[i] for i in fit]) != row).sum(axis=1)
        return records.candidates[fit[int(np.argmin(apart))]]

    def _away_from(self, waiting: Sequence[int]) -> np.ndarray:
        factor = np.ones(len(self._rows))
        if not waiting:
            return factor
        owners = np.array(self._owners)
        for place in waiting:
            mine = np.flatnonzero(owners == owners[place])
            rows = np.array([self._rows[p] for p in mine])
            factor[mine[(rows != self._rows[place]).sum(axis=1) <= 1]] = NEAR_PENDING
        return factor
