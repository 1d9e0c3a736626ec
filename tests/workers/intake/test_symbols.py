"""Numbers that remember their expression."""

from tilewright.workers.intake.source import traced_numbers


def _n(value: int) -> traced_numbers.TracedInt:
    made = traced_numbers.traced(value, "x.shape[0]", frozenset(["shape"]))
    assert isinstance(made, traced_numbers.TracedInt)
    return made


def _at(value: object, size: int) -> object:
    """The expression of a number, at another size."""
    return eval(traced_numbers.code_of(value), {"x": type("X", (), {"shape": [size]})})


def test_arithmetic_comparisons_and_functions_keep_value_and_expression() -> None:
    blocks, even, scale = (_n(100) + 63) // 64, _n(100) % 4 == 0, _n(64) ** -0.5
    assert (blocks, bool(even), scale) == (2, True, 0.125)
    assert (_at(blocks, 4000), _at(even, 7), _at(scale, 16)) == (63, False, 0.25)
    least = traced_numbers.call("min", min)
    assert traced_numbers.code_of(least(_n(9), 4)) == "min(x.shape[0], 4)" and type(least(9, 4)) is int


def test_a_long_expression_becomes_its_value() -> None:
    number = _n(3)
    for _ in range(12):
        number = number | (number >> 1)
    assert not isinstance(number, traced_numbers.Traced) or len(number.code) <= traced_numbers.MAX_CODE
    assert number == 3
