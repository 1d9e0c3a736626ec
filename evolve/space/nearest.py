"""The legal point nearest to a given one: a kernel's defaults are made for some shapes and meet others."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product

import numpy as np

from tilewright.evolve.space.genome import Value
from tilewright.evolve.space.space import Rows, Space

MOST_CHANGED = 3
"""Parameters that may differ where a space is too large to be enumerated."""

LARGEST_RING = 1 << 12
"""Points looked at for one choice of parameters to change."""


def nearest(space: Space, params: Mapping[str, Value]) -> dict[str, Value] | None:
    """A legal point that differs from ``params`` in the fewest parameters, by the fewest steps in all.

    None if ``params`` has values the space does not list, or if nothing near is legal.
    """
    if set(params) != set(space.names):
        return None
    try:
        here = space.encode(params)
    except KeyError:
        return None
    if space.points is not None:
        return _best(space, here, space.points)
    for changed in range(MOST_CHANGED + 1):
        rings = [_ring(space, here, columns) for columns in combinations(range(len(here)), changed)]
        rows = np.concatenate(rings)
        found = _best(space, here, rows[space.legal_rows(rows)])
        if found is not None:
            return found
    return None


def _ring(space: Space, here: Rows, columns: tuple[int, ...]) -> Rows:
    """Every row that differs from ``here`` in exactly these columns, or none where they are too many."""
    sizes = [len(space.parameters[space.names[column]]) for column in columns]
    if np.prod(sizes, dtype=float) > LARGEST_RING:
        return np.zeros((0, len(here)), dtype=here.dtype)
    others = [
        [place for place in range(size) if place != here[column]]
        for column, size in zip(columns, sizes, strict=True)
    ]
    places = list(product(*others))
    rows = np.repeat(here[None], len(places), axis=0)
    rows[:, list(columns)] = np.array(places, dtype=here.dtype).reshape(len(places), len(columns))
    return rows


def _best(space: Space, here: Rows, rows: Rows) -> dict[str, Value] | None:
    if not len(rows):
        return None
    apart = np.abs(rows.astype(np.int64) - here)
    ordinal = np.array([space.is_ordinal(name) for name in space.names])
    steps = np.where(ordinal, apart, apart > 0).sum(axis=1)
    return space.decode(rows[np.lexsort((steps, (apart > 0).sum(axis=1)))[0]])
