"""When a search stops by itself: not early, not while it improves, at once on the floor."""

from __future__ import annotations

import pytest

from tilewright.evolve.campaign.convergence import LEAST_EVALUATIONS, Convergence, expected
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures
from tilewright.fitness.headroom import headroom, mean_closed


def figures(seconds: float) -> WorkloadFigures:
    return WorkloadFigures(
        workload="w", seconds=seconds, tflops=1.0 / seconds, roofline_fraction=0.0, kind=FigureKind.MODELLED
    )


def evaluation(seconds: float | None) -> Evaluation:
    if seconds is None:
        return Evaluation(
            genome="g", target="t", suite="s", stage=Stage.COMPILE, verdict=Verdict.COMPILE_ERROR, reason="no"
        )
    return Evaluation(
        genome="g", target="t", suite="s", stage=Stage.MEASURE, verdict=Verdict.OK, fitness=1.0 / seconds,
        workloads=(figures(seconds),),
    )  # fmt: skip


def after(*seconds: float | None, floor: float = 0.0) -> Convergence:
    told = Convergence({"w": {"mxu": floor, "vector_two_ops": 5.0}} if floor else None)
    for each in seconds:
        told.add(evaluation(each))
    return told


def test_silence_converges_and_improvement_does_not() -> None:
    silent = after(1.0, *[2.0] * 400)
    improving = after(*[1.0 / (1.0 + 0.01 * n) for n in range(400)])
    assert silent.reached and not improving.reached
    assert not after(1.0, *[2.0] * (LEAST_EVALUATIONS - 2)).reached


def test_failures_are_silence_too_but_gains_within_the_noise_are_no_improvement() -> None:
    assert after(1.0, *[None] * 400).reached
    assert after(*[1.0 - 1e-6 * n for n in range(400)]).reached


def test_on_the_floor_there_is_nothing_left_to_gain() -> None:
    near = [2.0 - 0.02 * n for n in range(LEAST_EVALUATIONS)]
    assert after(*near, 1.001, floor=1.0).reached
    assert not after(*near, 1.05, floor=1.0).reached
    assert after(*near, 1.001, floor=1.0).expected_gain == pytest.approx(0.001, rel=1e-6)


def test_expectations_fall_with_silence_and_with_age() -> None:
    assert expected(100, 10) > expected(100, 40) > expected(200, 40) > 0.0


def test_headroom_is_the_share_of_the_gap_to_the_floor() -> None:
    rows = headroom([figures(4.0)], [figures(2.0)], {"w": {"mxu": 1.0, "hbm": 0.5, "vector_two_ops": 3.0}})
    assert [row.closed for row in rows] == [pytest.approx(2 / 3)]
    assert rows[0].left == 2.0 and mean_closed(rows) == pytest.approx(2 / 3)
    assert headroom([figures(4.0)], [figures(2.0)], {}) == [] and mean_closed([]) is None
