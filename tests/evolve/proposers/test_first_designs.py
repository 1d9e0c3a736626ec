"""What is presumed of a space before anything is known, and what earlier campaigns have to prove."""

from __future__ import annotations

import numpy as np

from tilewright.evolve.proposers.surrogate.first_designs import Presumption
from tilewright.evolve.proposers.surrogate.records import SourceRecords, misleads
from tilewright.evolve.space.space import Space

SPACE = Space(
    {"x": (1, 4, 16, 64, 256), "y": (1, 4, 16), "vec": (1, 2, 4, 8), "flag": (False, True)},
    {"32 <= x * y <= 1024": "threads of a block", "x % (y * vec) == 0": "whole vectors"},
)


def penalty(**params: object) -> float:
    return float(Presumption(SPACE).penalty(SPACE.encode(params)[None])[0])


def test_a_quarter_of_a_limit_and_a_few_of_a_quotient_are_presumed_best() -> None:
    best = penalty(x=64, y=4, vec=4, flag=False)  # 256 threads, four vectors each
    assert best == penalty(x=64, y=4, vec=4, flag=True)
    assert best < penalty(x=256, y=4, vec=4, flag=False)  # as many threads as there may be
    assert best < penalty(x=64, y=1, vec=4, flag=False)  # few threads
    assert best < penalty(x=64, y=4, vec=1, flag=False)  # a long row of vectors
    assert penalty(x=64, y=4, vec=8, flag=False) < penalty(x=64, y=16, vec=4, flag=False)


def test_a_space_without_quantities_is_presumed_best_in_the_middle() -> None:
    space = Space({"a": (1, 2, 3, 4, 5), "mode": ("x", "y")})
    told = Presumption(space).penalty(space.points)
    middle = {space.decode(space.points[k])["a"] for k in np.flatnonzero(told == told.min())}
    assert middle == {3}


def test_nothing_is_presumed_of_what_is_off_or_never_far_from_its_limit() -> None:
    space = Space(
        {"warps": (4, 8), "registers": (0, 64, 128), "tile": (64, 128), "depth": (1, 2)},
        {"registers * warps <= 1024": "registers", "128 <= tile * depth <= 128": "always full"},
    )
    told = {tuple(space.decode(row).values()): k for k, row in enumerate(space.points)}
    penalties = Presumption(space).penalty(space.points)
    assert penalties[told[4, 64, 64, 2]] == penalties[told[4, 64, 128, 1]]
    assert (
        penalties[told[4, 64, 64, 2]] < penalties[told[8, 128, 64, 2]]
    )  # a quarter of the limit, and all of it
    off = {penalties[place] for (_, registers, *_), place in told.items() if registers == 0}
    assert len(off) == 1


def records(worth, count: int, seed: int, *, earlier: bool = False) -> SourceRecords:
    space = Space({"a": tuple(range(8)), "b": tuple(range(8)), "c": ("x", "y", "z")})
    rows = space.points[np.random.default_rng(seed).choice(len(space.points), count, replace=False)]
    targets = [worth(space.decode(row)) for row in rows]
    return SourceRecords("kernel", space, list(rows), targets, earlier=earlier)


def true(p: dict) -> float:
    return -0.1 * abs(p["a"] - 5) - 0.05 * p["b"] + 0.2 * (p["c"] == "y")


def test_what_ranks_as_found_is_kept_and_the_opposite_is_dropped() -> None:
    own = records(true, 12, seed=1)
    assert not misleads(records(lambda p: 3 * true(p) - 1.0, 60, seed=2, earlier=True), own)
    assert misleads(records(lambda p: -true(p), 60, seed=2, earlier=True), own)


def test_too_few_or_too_even_records_prove_nothing() -> None:
    wrong = records(lambda p: -true(p), 60, seed=2, earlier=True)
    assert not misleads(wrong, records(true, 5, seed=1))
    assert not misleads(wrong, records(lambda p: 1e-3 * true(p), 20, seed=1))
