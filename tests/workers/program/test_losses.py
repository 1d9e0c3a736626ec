"""The test of losses, on curves of which it is known whether they are alike."""

from __future__ import annotations

import math
import random

import pytest

from tilewright.workers.program.prove import loss_test


def curves(kind: str, seed: int) -> list[list[float]]:
    """Three starts of 20 steps: a loss that falls from 12 towards nothing, one that stands still, an output."""
    drawn = random.Random(seed)
    found = []
    for _ in range(3):
        begin = 12 + drawn.gauss(0, 0.05)
        fall = {"falls": 0.8, "stands": 1.0, "output": 1.0}[kind]
        noise = {"falls": 0.01, "stands": 0.05, "output": 0.0}[kind]
        found.append([begin * fall**step * (1 + drawn.gauss(0, noise)) for step in range(20)])
    return found


CHANGES = {
    "rounding": lambda curve, drawn: [v * (1 + drawn.gauss(0, 0.001)) for v in curve],
    "half a step late": lambda curve, drawn: [(a + b) / 2 for a, b in zip([curve[0], *curve], curve, strict=False)],
    "three steps late": lambda curve, drawn: [curve[max(0, n - 3)] for n in range(20)],
    "never learns": lambda curve, drawn: [curve[0]] * 20,
    "ends in NaN": lambda curve, drawn: [*curve[:19], math.nan],
    "a tenth more": lambda curve, drawn: [1.1 * v for v in curve],
    "leaves at the end": lambda curve, drawn: [*curve[:15], *(v + 5 for v in curve[15:])],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "passes"),
    [
        ("falls", "rounding", True),
        ("falls", "half a step late", True),
        ("falls", "three steps late", False),
        ("falls", "never learns", False),
        ("falls", "ends in NaN", False),
        ("falls", "leaves at the end", False),
        ("stands", "rounding", True),
        ("stands", "a tenth more", False),
        ("output", "a tenth more", False),
        ("output", "ends in NaN", False),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_change_that_other_starts_do_not_explain_is_seen(
    kind: str, change: str, passes: bool, seed: int
) -> None:
    drawn = random.Random(100 + seed)
    own = curves(kind, seed)
    found = loss_test(own, [CHANGES[change](curve, drawn) for curve in own], trains=kind != "output")
    assert found.passes == passes, str(found)
