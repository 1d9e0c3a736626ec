"""The points a model is asked about: anywhere, near the best, and between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.evolve.proposers.surrogate.records import SourceRecords
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
    best = [(k, i) for _, k, i in ranked(sources)[:PARENTS]]
    pool = []
    for k, records in enumerate(sources):
        space, rows = records.space, [np.zeros((0, len(records.space.names)), dtype=np.int16)]
        mine = [records.rows[i] for owner, i in best if owner == k]
        local = bool(mine) and _stays_near(records)
        if not local and space.points is not None and len(space.points) <= WHOLE * shares[k]:
            rows.append(space.points)
        else:
            anywhere, near = (0, 0) if local else (max(1, int(ANYWHERE * shares[k])), int(NEAR * shares[k]))
            rows.append(space.sample_rows(rng, anywhere))
            rows += [near_rows(space, np.array(mine), near, rng)] if mine else []
            rows += [space.neighbour_rows(records.rows[i], steps=None) for o, i in best[:TOP] if o == k]
        pool.append((k, np.concatenate(rows)))
    return pool


def _stays_near(records: SourceRecords) -> bool:
    live = sum(len(values) > 1 for values in records.space.parameters.values())
    return bool(records.space.defaults) and len(records.rows) < LOCAL_RECORDS * live


def ranked(sources: Sequence[SourceRecords]) -> list[tuple[float, int, int]]:
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
