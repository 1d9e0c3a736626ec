"""What is passed on under other names is said plainly, where that can be told, and left alone where it cannot."""

from __future__ import annotations

import pytest

from tilewright.workers.intake.pallas.argument_names import plain

CALLED = """def single(batch, q_ref, k_ref, o_ref, *, scale, steps):
    o_ref[batch] = q_ref[batch] * scale + k_ref[batch] * steps"""
DISPATCHER = """def kernel(q_ref, *args, **kwargs):
    inner = single
    for batch in range(2):
        inner(batch, q_ref, *args, scale=kwargs['scale'], steps=kwargs['steps'])"""


def run(functions: dict[str, str]) -> list[float]:
    scope: dict = {}
    exec("\n\n".join(functions.values()), scope)
    out = [0.0, 0.0]
    scope["kernel"]([1.0, 2.0], [3.0, 4.0], out, scale=10.0, steps=7.0)
    return out


def test_a_dispatcher_takes_the_names_of_what_it_calls():
    before = {"single": CALLED, "kernel": DISPATCHER}
    after = plain(before)
    assert after["single"] == CALLED
    assert after["kernel"].startswith("def kernel(q_ref, k_ref, o_ref, *, scale, steps):")
    assert run(after) == run(before) == [31.0, 48.0]


@pytest.mark.parametrize(
    "change",
    [
        ("inner = single", "inner = unknown"),
        ("for batch in", "print(args)\n    for batch in"),
        ("for batch in", "print(kwargs)\n    for batch in"),
        ("for batch in", "k_ref = 1\n    for batch in"),
        ("inner(batch, q_ref, *args", "inner(*args, q_ref, batch"),
    ],
)
def test_what_cannot_be_told_stays(change):
    text = DISPATCHER.replace(*change)
    assert text != DISPATCHER
    assert plain({"single": CALLED, "kernel": text})["kernel"] == text


def test_another_name_of_a_parameter_becomes_the_parameter():
    inner = "    def at(i, j):\n        next_j = j\n        return (i, next_j + n)"
    text = f"def wrapper(n):\n{inner}\n    return at(1, 2)"
    after = plain({"wrapper": text})["wrapper"]
    assert "next_j" not in after
    scope: dict = {}
    exec(after, scope)
    assert scope["wrapper"](5) == (1, 7)


@pytest.mark.parametrize(
    "text",
    [
        "def at(i, j):\n    k = j\n    k = k + 1\n    return k",
        "def at(i, j):\n    k = j\n    j = i\n    return k",
        "def at(i, j):\n    k = j\n    return lambda: k",
    ],
)
def test_names_that_are_bound_again_stay(text):
    assert plain({"at": text})["at"] == text
