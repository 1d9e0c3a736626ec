"""Whether records of an earlier campaign tell this one's good points from its bad ones."""

from __future__ import annotations

import math

import numpy as np

from tilewright.evolve.proposers.surrogate.features import Encoder
from tilewright.evolve.proposers.surrogate.records import SourceRecords
from tilewright.evolve.proposers.surrogate.trees import Forest

LEAST_RECORDS = 8
"""Own records of a source before they are held against what was known before."""

LEAST_SPREAD = 0.02
LEAST_SHARE = 0.3
"""Standard deviation of their log fitness, and its share of that of the earlier ones, below which there is nothing to
tell apart: points that right records led to are good without exception."""

LEAST_CORRELATION = 0.1
"""Rank correlation of what was foretold with what came; below it, an earlier campaign misleads."""

_TREES = 25


def misleads(earlier: SourceRecords, own: SourceRecords) -> bool:
    """Whether trees that know only the earlier records rank the own ones no better than chance.

    Records of one source alone are compared: what another source's parameters do is another matter.
    """
    if earlier.space.names != own.space.names or len(own.rows) < LEAST_RECORDS:
        return False
    came = _fallen(own.targets)
    before = _fallen(earlier.targets)
    if came.std() < max(LEAST_SPREAD, LEAST_SHARE * before.std()):
        return False
    encoder = Encoder([earlier.space])
    known = encoder.split(0, np.array(earlier.rows))
    rows = [earlier.space.legal_row(own.space.decode(row)) for row in own.rows]
    both = [k for k, row in enumerate(rows) if row is not None]
    if len(both) < LEAST_RECORDS:
        return False
    forest = Forest(known, before, _TREES, seed=len(earlier.rows), bootstrap=True)
    told, _ = forest.predict(encoder.split(0, np.array([rows[k] for k in both])))
    ranks = [_ranks(np.round(values, 9)) for values in (told, came[both])]
    foretold, found = (rank - rank.mean() for rank in ranks)
    scale = math.sqrt(float(foretold @ foretold) * float(found @ found))
    return scale == 0.0 or round(float(foretold @ found) / scale, 9) < LEAST_CORRELATION


def _fallen(targets: list[float]) -> np.ndarray:
    """Failures count as the worst that worked."""
    values = np.array(targets, dtype=float)
    worst = np.nanmin(values) if not np.isnan(values).all() else 0.0
    return np.where(np.isnan(values), worst, values)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Place of each value in ascending order; equal ones share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - 0.5 * (counts - 1))[place]
