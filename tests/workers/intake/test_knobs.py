"""Which equal numbers of a launch move together, told by runs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.source.knobs import Knob, values_around
from tilewright.workers.intake.triton import knob_evidence
from tilewright.workers.intake.triton.knob_finder import extents

NUMBERS = {"BM": 64, "BN": 64, "rows": 64, "columns": 64, "other": 32}
ECHOES = ("rows", "columns")
BOTH = [v for v in values_around(64) if v != 64]
CASES: dict[str, tuple[Callable[..., bool], tuple[str, ...] | None, list[int]]] = {
    "a tile that nothing repeats": (lambda BM, **_: True, (), BOTH),
    "a grid that repeats it": (lambda BM, rows, **_: rows == BM, ("rows",), BOTH),
    "a grid of two axes": (lambda BM, BN, rows, columns, **_: (rows, columns) == (BM, BN), ("rows",), BOTH),
    "a grid and a size": (lambda BM, rows, columns, **_: rows == columns == BM, ECHOES, BOTH),
    "two tiles that must agree": (lambda BM, BN, **_: BM == BN, ("BN", *ECHOES), BOTH),
    "programs too many do no harm": (lambda BM, rows, **_: rows <= BM, ("rows",), BOTH),
    "a bound from below": (lambda BM, **_: BM >= 64, (), [128, 256, 512]),
    "a meaning": (lambda BM, **_: BM == 64, None, []),
    "a window longer than the shapes": (lambda BM, **_: BM >= 16, None, []),
}


def _reaching(tl: Any, x: Any, n: Any, REACH: Any, GROUP: Any, BM: Any, BN: Any, D: Any) -> None:
    first = tl.maximum(0, n - REACH)
    at = tl.arange(0, 2 * BM)
    for start in tl.range(first, n // GROUP, BN):
        tl.load(x + start + at[None, :] * D + tl.zeros([D], x.dtype))


def test_what_a_kernel_makes_tiles_of():
    assert [name in extents(_reaching) for name in ("REACH", "GROUP", "BM", "BN", "D")] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("name", CASES)
def test_equal_numbers_that_must_move_with_a_knob_become_its_ties(name, monkeypatch):
    monkeypatch.setattr(knob_evidence, "blanks", lambda seed, dims, device: {})
    monkeypatch.setattr(knob_evidence, "launch_arguments", lambda seed, params, tensors: dict(params))
    passes, ties, values = CASES[name]
    tiles = name != "a window longer than the shapes"
    knobs = [Knob(n, v, values_around(v), "", echo=n in ECHOES, tiles=tiles) for n, v in NUMBERS.items()]
    seed: Any = SimpleNamespace(text=SimpleNamespace(knobs=knobs, ties={}), defaults=NUMBERS)

    trials: Any = SimpleNamespace(
        seed=seed,
        wide=[SimpleNamespace(dims={})],
        passed_at=lambda gates, points, shapes: [[passes(**{**NUMBERS, **point})] for point in points],
    )
    gates: Any = None
    found = knob_evidence._moved_together(trials, gates, knobs[0])
    assert found is None if ties is None else found == (ties, values)


@pytest.mark.parametrize(
    ("rows", "by_place", "found"), [(3, 0.0, ["M", "N"]), (7, 0.01, []), (3, 1.0, []), (4, 1.0, []), (7, 1.0, [])]
)
def test_rows_of_what_is_random_by_place_or_a_triangle_are_not_judged_by_themselves(rows, by_place, found):
    dropped = np.random.default_rng(10).random(2 * 64 * 64) < by_place  # where an element lies in memory says it

    def reference(inputs):
        x = inputs["x"]
        return [np.triu(x) if by_place == 1.0 else np.where(dropped[: x.size].reshape(x.shape), 0.0, x)]

    seed: Any = SimpleNamespace(
        site=SimpleNamespace(operands=[Operand("x", "float32", ("M", "N"))]), reference=reference
    )
    x = np.random.default_rng(4).standard_normal((rows, 70))
    shape: Any = SimpleNamespace(dims={"M": rows, "N": 70}, inputs={"x": x}, answers=reference({"x": x}))
    results: Any = [SimpleNamespace(place=0, shape=("M", "N"))]
    assert knob_evidence.independent_dimensions(seed, shape, results) == found
