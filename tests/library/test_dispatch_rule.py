"""The dispatch rule to its edges: what is legal, what is nearest, what is out of reach, and what is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.library.dispatch_rule import REACH, Legality, Unserved, complete_shares, nearest

ANYWHERE = Legality((), {})


def test_shares_are_all_told_or_none():
    assert complete_shares([0.5, 0.25]) == [0.5, 0.25] and complete_shares([]) == []
    assert complete_shares([0.5, None]) is complete_shares([0.0]) is None


def known(*shapes, legality=ANYWHERE):
    return [(dict(zip("MNK", shape, strict=False)), legality) for shape in shapes]


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ("cdiv(M, 4) == 3", True),
        ("cdiv(M - 1, 4) == 2", True),
        ("cdiv(M + 4, 4) == 4 and cdiv(1, 4) == 1 and cdiv(0, 4) == 0", True),
        ("min(M, tile) == 9 and max(M, tile) == 16 and abs(M - tile) == 7", True),
        ("M % tile == 0", False),
        ("M == 7", False),
        ("1 // (M - 9) >= 0", False),
        ("1 % (M - 9) or True", False),
        ("M", True),
        ("M - 9", False),
    ],
)
def test_a_constraint_is_read_with_parameters_and_sizes(constraint, holds):
    """A size counts over a parameter of its name; a division by zero does not hold."""
    assert Legality((constraint,), {"tile": 16, "M": 7}).holds({"M": 9}) is holds
    assert Legality(("M == 9", constraint), {"tile": 16}).holds({"M": 9}) is holds
    assert Legality((constraint, "M == 9"), {"tile": 16}).holds({"M": 9}) is holds


def test_a_constraint_has_no_builtins():
    for text in ("len('ab') == 2", "__import__('os')", "print"):
        with pytest.raises(NameError):
            Legality((text,), {}).holds({"M": 1})
    with pytest.raises(SyntaxError):
        Legality(("import os",), {})


def test_the_nearest_is_by_the_sum_over_dimensions():
    far_in_one, near_in_two, large = (512, 64, 64), (256, 256, 64), (64, 64, 64 * 33)
    assert nearest(known(far_in_one, near_in_two, large), {"M": 64, "N": 64, "K": 64}) == 0
    assert nearest(known(large, near_in_two, far_in_one), {"M": 64, "N": 64, "K": 64}) == 2
    assert nearest(known((64, 1), (65, 1)), {"M": 66, "N": 1}) == 1
    assert nearest(known((1, 64), (1, 8)), {"N": 16, "M": 1}) == 1, "sizes are matched by name"


@given(st.permutations(["M", "N", "K"]), st.sampled_from([3, 7, 100, 11008]))
def test_a_tie_goes_to_the_earlier_in_whatever_order_a_sum_is_taken(order, size):
    entries = [
        ({"M": 3 * size, "N": 5 * size, "K": 7 * size}, ANYWHERE),
        ({"M": 7 * size, "N": 3 * size, "K": 5 * size}, ANYWHERE),
    ]
    dims = dict.fromkeys(order, size)
    assert nearest(entries, dims) == 0 and nearest(entries[::-1], dims) == 0


def test_reach_is_counted_in_each_dimension_and_by_what_is_nearest():
    entries = known((128, 128))
    assert REACH == 64.0
    for dims in ((128 * 64, 2), (2, 128 * 64), (2, 2), (128 * 64, 128 * 64)):
        assert nearest(entries, dict(zip("MN", dims, strict=True))) == 0
    for dims in ((128 * 64 + 1, 128), (128, 128 * 64 + 1), (1, 128), (128, 1)):
        with pytest.raises(Unserved, match="64 times away"):
            nearest(entries, dict(zip("MN", dims, strict=True)))
    assert nearest(known((1,)), {"M": 8}, reach=8) == 0
    with pytest.raises(Unserved, match=r"^M 9 is more than 8 times away from every known shape$"):
        nearest(known((1,)), {"M": 9}, reach=8)
    with pytest.raises(Unserved, match=r"^M 9, N 1 is more than 2\.5 times away"):
        nearest(known((1, 1)), {"M": 9, "N": 1}, reach=2.5)


def test_a_halving_of_the_share_is_three_doublings_of_a_size():
    entries = known((64, 64), (64, 64 * 32))
    for size, shares in ((256, [0.5, 0.5]), (128, [0.25, 0.25]), (360, [0.4, 0.4])):
        assert nearest(entries, {"M": 64, "N": size}, shares=shares) == 0
    assert nearest(entries, {"M": 64, "N": 128}, shares=[0.1, 0.8]) == 1
    assert nearest(entries, {"M": 64, "N": 128}, shares=[0.25, 0.5]) == 0, "a tie in distance"
    assert nearest(entries, {"M": 64, "N": 128}, shares=[0.25, 0.5001]) == 1
    assert nearest(entries, {"M": 64, "N": 64}, shares=[1e-6, 1.0]) == 0, "what was seen at the shape itself"
    assert nearest(entries, {"M": 64, "N": 1024}) == 1 and nearest(entries, {"M": 64, "N": 128}) == 0


def test_the_least_expected_time_serves_where_the_nearest_kernel_says_one():
    waves = "(lambda waves: waves * T)(max(cdiv(M, w) for w in (T, 2 * T)))"
    small, large, silent = (Legality((), {"T": tile}, text) for tile, text in ((16, waves), (64, waves), (8, None)))
    only_even = Legality(("M % 2 == 0",), {"T": 1}, "0 * M")
    entries = [({"M": 64}, small), ({"M": 128}, large)]
    assert [nearest(entries, {"M": m}) for m in (32, 60, 64, 65, 96, 128, 200)] == [0, 0, 0, 0, 0, 1, 0]
    assert (
        small.expected_time({"M": 65}) == 80
        and large.expected_time({"M": 65}) == 128
        and silent.expected_time({"M": 1}) is None
    )
    assert nearest([*entries, ({"M": 1 << 12}, only_even)], {"M": 90}) == 2
    assert nearest([*entries, ({"M": 1 << 12}, only_even)], {"M": 91}) == 0
    assert nearest([*entries, ({"M": 1}, only_even)], {"M": 90}) == 0, "beyond its reach"
    assert nearest([*entries, ({"M": 100}, silent)], {"M": 96}) == 2, "one that says nothing: the nearest"
    assert nearest([*entries, ({"M": 300}, silent)], {"M": 96}) == 0, "the nearest says one"
    assert nearest(entries[::-1], {"M": 96}, shares=[0.9, 0.1]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "().__class__.__base__.__subclasses__()",
        "__builtins__",
        "[x for x in (1,)][0]",
        "f'{M}'",
        "'a' * M",
        "9 ** 9 ** 9",
        "1 << M",
        "(lambda f: f(f))(lambda f: f(f))",
        "(lambda f: f(M))(min)",
        "sum((1, 2))",
        "min((M, 1), key=abs)",
        "max(a + b + c for a in (1, 2) for b in (1, 2) for c in (1, 2))",
        "M + " * 600 + "1",
    ],
)
def test_an_expected_time_is_arithmetic(text):
    """A promoted module's author wrote it; importing a library evaluates it."""
    with pytest.raises(ValueError, match="allowed"):
        Legality((), {}, text)
    assert Legality((), {}, "max(a + b for a in (1, 2) for b in (1, 2))").expected_time({}) == 4


def test_only_the_legal_serve():
    even, odd = Legality(("M % 2 == 0",), {}), Legality(("M % 2 == 1",), {})
    entries = [({"M": 8}, even), ({"M": 64}, odd), ({"M": 32}, odd)]
    assert nearest(entries, {"M": 8}) == 0 and nearest(entries, {"M": 9}) == 2
    with pytest.raises(Unserved, match=r"^no kernel takes M 7, N 3$"):
        nearest([({"M": 7, "N": 3}, even)], {"M": 7, "N": 3})
    with pytest.raises(Unserved, match=r"^no kernel takes M 7$"):
        nearest([], {"M": 7})


@pytest.mark.parametrize("size", [0, -1])
def test_an_empty_product_is_said_to_be_one(size):
    with pytest.raises(Unserved, match=rf"^an empty product \(M {size}, N 5\) has no kernel$"):
        nearest(known((1, 5)), {"M": size, "N": 5})
    assert nearest(known((1, 5)), {"M": 1, "N": 5}) == 0
