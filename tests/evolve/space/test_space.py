"""Spaces: declarations are read, never run; constraints are total, safe and exact; sampling stays legal."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.spaces.tables import RecordedSpace
from tilewright.evolve.space.space import Space, SpaceError

SOURCE = '''
"""A kernel."""
SPACE = {"block": (16, 32, 64), "stages": (1, 2), "cached": (False, True), "order": ("rows", "columns")}
DEFAULTS = {"block": 32, "stages": 1, "cached": False, "order": "rows"}
CONSTRAINTS = {
    "M % block == 0": "block must divide M",
    "block * stages <= limit": "buffers must fit",
    "not cached or order == 'rows'": "caching walks rows",
}
'''


def enumerated(space):
    assert space.points is not None
    return [space.decode(row) for row in space.points]


def near(space, params):
    return [space.decode(row) for row in space.neighbour_rows(space.encode(params))]


def test_a_source_declares_its_space_for_every_workload():
    space = Space.from_source(SOURCE, [{"M": 64, "limit": 64}, {"M": 96, "limit": 128}])
    points = enumerated(space)
    assert {p["block"] for p in points} == {16, 32}
    assert all(p["block"] * p["stages"] <= 64 for p in points)
    assert len(points) == 4 * 3
    assert space.legal(space.defaults)
    reasons = space.violations({"block": 64, "stages": 2, "cached": True, "order": "columns"})
    assert [reason.split(" (")[0] for reason in reasons] == [
        "block must divide M",
        "buffers must fit",
        "caching walks rows",
    ]


def test_unknown_missing_and_unlisted_are_told():
    space = Space({"a": (1, 2), "b": (True, False)})
    assert space.violations({"a": 3, "c": 1}) == [
        "c is no parameter (known: a, b)",
        "a=3 is not among 1, 2",
        "b is missing",
    ]
    assert not space.legal({"a": True, "b": True})
    assert not space.legal({"a": 1, "b": 1})


@pytest.mark.parametrize(
    "source",
    [
        "SPACE = {",
        "SPACE = [1]",
        "SPACE = {'a': ()}\nDEFAULTS = {'a': 1}",
        "SPACE = {'a': (1, 1)}\nDEFAULTS = {'a': 1}",
        "SPACE = {'a': (None,)}\nDEFAULTS = {'a': None}",
        "SPACE = {'a': (1,)}",
        "SPACE = {'a': (1,)}\nDEFAULTS = {'a': 1}\nCONSTRAINTS = {'a == 1': ''}",
    ],
)
def test_malformed_declarations_are_one_sentence(source):
    with pytest.raises(SpaceError) as caught:
        Space.from_source(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("a.real == 1", "Attribute is not allowed"),
        ("__import__('os')", "is not allowed"),
        ("(lambda: 1)()", "is not allowed"),
        ("[x for x in (1,)]", "ListComp is not allowed"),
        ("a[0]", "Subscript is not allowed"),
        ("a * 'x' == 1", "where a number is needed"),
        ("(1, 2) * a == 1", "where a number is needed"),
        ("a < 'x'", "order is defined between numbers"),
        ("nothing > 1", "nothing is unknown"),
        ("a >", "is not an expression"),
        ("min(*a) > 1", "is not allowed"),
        ("a << 40", "not allowed"),
        ("+" * 100 + "a", "nested too deeply"),
        ("1 or " * 1000 + "a", "longer than"),
    ],
)
def test_what_a_constraint_may_not_say(expression, fault):
    with pytest.raises(SpaceError, match=fault.replace("(", r"\(")):
        Space({"a": (1, 2)}, {expression: "because"})


def test_an_empty_space_names_the_cause():
    with pytest.raises(SpaceError, match="N must be even"):
        Space({"a": (1,)}, {"N % 2 == 0": "N must be even"}, [{"N": 2}, {"N": 3}])
    with pytest.raises(SpaceError, match="a > 3"):
        Space({"a": (1, 2)}, {"a > 3": "large"})


_NAMES = st.sampled_from(["a", "b", "N", "3", "0", "2.5"])
_NUMBERS = st.recursive(
    _NAMES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(inner, inner).map(lambda t: f"min({t[0]}, {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
    ),
    max_leaves=6,
)
_CLAIMS = st.recursive(
    st.tuples(_NUMBERS, st.sampled_from(["<", "<=", "==", "!=", ">"]), _NUMBERS).map(" ".join),
    lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({' '.join(t)})"),
    max_leaves=4,
)


@settings(max_examples=50, deadline=None)
@given(_CLAIMS, st.integers(1, 5))
def test_constraints_mean_what_python_means(expression, n):
    parameters = {"a": (0, 1, 2, 3), "b": (1, 4, 16)}

    def python(a, b):
        try:
            return bool(eval(expression, {"a": a, "b": b, "N": n, "min": min}))
        except ZeroDivisionError:
            return False

    legal = {(a, b) for a, b in product(*parameters.values()) if python(a, b)}
    try:
        space = Space(parameters, {expression: "so"}, {"N": n})
    except SpaceError:
        assert not legal
        return
    assert {(p["a"], p["b"]) for p in enumerated(space)} == legal
    rng = np.random.default_rng(0)
    assert all((p["a"], p["b"]) in legal for p in (space.sample(rng) for _ in range(20)))


def large_space():
    parameters = {f"p{i}": tuple(range(8)) for i in range(24)}
    return Space(parameters, {f"p{i} <= p{i + 1}": "rising" for i in range(23)})


def test_a_large_space_is_sampled_within_its_constraints():
    space = large_space()
    assert space.points is None
    assert space.size_bound == 8**24
    rng = np.random.default_rng(1)
    points = [space.sample(rng) for _ in range(10)]
    assert all(space.legal(p) for p in points)
    again = np.random.default_rng(1)
    assert points == [space.sample(again) for _ in range(10)]
    assert all(space.legal(n) for n in near(space, points[0]))


def test_neighbours_step_once_in_order_and_anywhere_among_kinds():
    space = Space({"n": (1, 2, 4, 8), "c": ("x", "y", "z")}, {"n != 4 or c != 'y'": "no"})
    assert near(space, {"n": 2, "c": "y"}) == [{"n": 1, "c": "y"}, {"n": 2, "c": "x"}, {"n": 2, "c": "z"}]


def test_a_recorded_space_has_what_was_recorded():
    space = RecordedSpace({"a": (1, 2, 3), "b": (0, 1)}, {}, np.array([[0, 1], [2, 0]]))
    assert enumerated(space) == [{"a": 1, "b": 1}, {"a": 3, "b": 0}]
    assert not space.legal({"a": 1, "b": 0})
