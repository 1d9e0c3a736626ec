"""Defaults made for other shapes are moved to the nearest legal point."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tilewright.evolve.proposers.rewrite.proposer import inherit
from tilewright.evolve.space import space as module
from tilewright.evolve.space.space import Space, SpaceError, nearest_point

BLOCKS = {"block": (128, 256, 512, 1024), "stages": (1, 2, 3, 4), "mode": ("loop", "grid", "whole")}
RULES = {"K % block == 0": "block must divide K", "block * stages <= limit": "must fit"}


def distance(space, a, b):
    changed = [name for name in space.names if a[name] != b[name]]
    places = {name: list(space.parameters[name]) for name in changed}
    steps = [
        abs(places[name].index(a[name]) - places[name].index(b[name])) if space.is_ordinal(name) else 1
        for name in changed
    ]
    return len(changed), sum(steps)


@given(st.sampled_from([384, 1024, 7168, 7680]), st.integers(128, 4096), st.data())
def test_nothing_legal_is_nearer(k, limit, data):
    try:
        space = Space(BLOCKS, RULES, {"K": k, "limit": limit})
    except SpaceError:
        return
    params = {name: data.draw(st.sampled_from(values)) for name, values in BLOCKS.items()}
    found = nearest_point(space, params)
    assert space.legal(found)
    best = min(distance(space, params, space.decode(row)) for row in space.points)
    assert distance(space, params, found) == best
    assert (found == params) == space.legal(params)


def test_a_rewritten_child_starts_at_a_legal_point():
    """Of a rule that widens a parameter the declared defaults may be illegal, too."""
    text = 'SPACE = {"block": (64, 128, 256, 512)}\nDEFAULTS = {"block": 256}\nCONSTRAINTS = {"K % block == 0": "-"}'
    space = Space.from_source(text, [{"K": 384}])
    assert not space.legal(space.defaults) and inherit(space, {"block": 512}) == {"block": 128}


def test_a_space_too_large_to_enumerate_is_searched_around_the_point():
    names = [f"p{n}" for n in range(12)]
    space = Space({name: tuple(range(1, 9)) for name in names}, {"p0 > 4 and p1 > 4 and p2 > 6": "they are large"})
    assert space.points is None
    found = nearest_point(space, dict.fromkeys(names, 1))
    assert distance(space, dict.fromkeys(names, 1), found)[0] == 3
    assert found["p0"] == found["p1"] == 5 and found["p2"] == 7
    assert math.prod(found[name] for name in names[3:]) == 1
    assert nearest_point(space, {**dict.fromkeys(names, 1), "p3": 99}) is None
    assert module.MOST_CHANGED == 3 and nearest_point(space, {"p0": 1}) is None
