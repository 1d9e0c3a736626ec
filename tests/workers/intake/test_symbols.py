"""Numbers that remember their expression."""

from tilewright.workers.intake.source import traced_numbers as symbols


def _n(value: int) -> symbols.TracedInt:
    made = symbols.traced(value, "x.shape[0]", frozenset(["shape"]))
    assert isinstance(made, symbols.TracedInt)
    return made


def test_arithmetic_keeps_value_and_expression() -> None:
    found = (_n(100) + 63) // 64
    assert found == 2
    assert eval(symbols.code_of(found), {"x": type("X", (), {"shape": [4000]})}) == 63


def test_comparisons_decide_and_can_be_said() -> None:
    even = _n(100) % 4 == 0
    assert even
    assert eval(symbols.code_of(even), {"x": type("X", (), {"shape": [7]})}) is False


def test_functions_are_noted_where_an_argument_is_traced() -> None:
    least = symbols.call("min", min)
    assert symbols.code_of(least(_n(9), 4)) == "min(x.shape[0], 4)"
    assert type(least(9, 4)) is int


def test_floats_of_sizes_are_expressions() -> None:
    scale = _n(64) ** -0.5
    assert scale == 0.125
    assert symbols.code_of(scale) == "(x.shape[0] ** -0.5)"


def test_a_long_expression_becomes_its_value() -> None:
    number = _n(3)
    for _ in range(12):
        number = number | (number >> 1)
    assert not isinstance(number, symbols.Traced) or len(number.code) <= symbols.MAX_CODE
    assert number == 3
