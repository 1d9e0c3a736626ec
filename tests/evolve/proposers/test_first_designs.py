"""What is presumed of a space before anything is known, and what earlier campaigns have to prove."""

import numpy as np

from tilewright.evolve.proposers.surrogate.records import SourceRecords, misleads
from tilewright.evolve.space.space import Space


def records(worth, count, seed, *, earlier=False):
    space = Space({"a": tuple(range(8)), "b": tuple(range(8)), "c": ("x", "y", "z")})
    rows = space.points[np.random.default_rng(seed).choice(len(space.points), count, replace=False)]
    targets = [worth(space.decode(row)) for row in rows]
    return SourceRecords("kernel", space, list(rows), targets, earlier=earlier)


def true(p):
    return -0.1 * abs(p["a"] - 5) - 0.05 * p["b"] + 0.2 * (p["c"] == "y")


def test_what_ranks_as_found_is_kept_and_the_opposite_is_dropped():
    own = records(true, 12, seed=1)
    assert not misleads(records(lambda p: 3 * true(p) - 1.0, 60, seed=2, earlier=True), own)
    assert misleads(records(lambda p: -true(p), 60, seed=2, earlier=True), own)


def test_too_few_or_too_even_records_prove_nothing():
    wrong = records(lambda p: -true(p), 60, seed=2, earlier=True)
    assert not misleads(wrong, records(true, 5, seed=1))
    assert not misleads(wrong, records(lambda p: 1e-3 * true(p), 20, seed=1))
