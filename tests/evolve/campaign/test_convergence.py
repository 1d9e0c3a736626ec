"""When a search stops by itself: not early, not while it improves, at once on the floor."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import Table
from tilewright.evolve.campaign.convergence import LEAST_EVALUATIONS, LEAST_GAIN, Convergence, Outlook
from tilewright.evolve.campaign.loop import Budget, StopReason
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Evaluation, FigureKind, Stage, Verdict, WorkloadFigures
from tilewright.fitness.score import headroom, mean_closed


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
    quiet = after(1.0, *[2.0] * 400)
    improving = after(*[1.0 / (1.0 + 0.01 * n) for n in range(400)])
    assert quiet.reached() and not improving.reached()
    assert not after(1.0, *[2.0] * (LEAST_EVALUATIONS - 2)).reached()


def test_failures_are_silence_too_but_gains_within_the_noise_are_no_improvement() -> None:
    assert after(1.0, *[None] * 400).reached()
    assert after(*[1.0 - 1e-6 * n for n in range(400)]).reached()


def test_on_the_floor_there_is_nothing_left_to_gain() -> None:
    near = [2.0 - 0.02 * n for n in range(LEAST_EVALUATIONS)]
    assert after(*near, 1.001, floor=1.0).reached()
    assert not after(*near, 1.05, floor=1.0).reached()
    assert after(*near, 1.001, floor=1.0).expected_gain() == pytest.approx(0.001, rel=1e-6)


def test_a_model_that_expects_nothing_ends_a_silence_sooner() -> None:
    told = after(1.0, *[2.0] * 119)
    assert not told.reached() and not told.reached(lambda: 0.01) and told.reached(lambda: 1e-5)
    assert not after(*[1.0 / (1.0 + 0.01 * n) for n in range(90)]).reached(lambda: 0.0)


def test_less_is_expected_the_longer_a_search_and_the_less_its_model_expects() -> None:
    outlook = Outlook()
    aged = [outlook.expected_gain(count, 0.005) for count in (50, 100, 200, 400, 1600)]
    trusted = [outlook.expected_gain(150, told) for told in (0.0, 1e-4, 1e-2, 1.0)]
    assert aged == sorted(aged, reverse=True) and trusted == sorted(trusted)
    assert outlook.expected_gain(1600, 1.0) < LEAST_GAIN, "no model keeps a search alive for ever"


def test_an_improvement_within_the_last_third_keeps_a_search_going() -> None:
    late = after(*[2.0] * 400, 1.0, *[2.0] * 150)
    assert not late.reached(lambda: 1e-5)
    assert after(*[2.0] * 400, 1.0, *[2.0] * 250).reached(lambda: 1e-5)


def test_the_closer_the_floor_the_less_is_expected() -> None:
    silent = [2.0] * 99
    far, near = after(1.0, *silent, floor=0.5), after(1.0, *silent, floor=0.98)
    assert near.expected_gain(lambda: 0.005) < LEAST_GAIN < far.expected_gain(lambda: 0.005)


def test_a_search_stops_once_its_model_expects_nothing() -> None:
    """A space in which every parameter counts for itself: found soon, and hardly searched further."""
    space = Space(dict.fromkeys("abc", (1, 2, 4, 8, 16, 32, 64)), {})
    assert space.points is not None
    order = np.argsort(space.codes(space.points))
    times = np.exp(((space.points[order] - [2, 4, 3]) ** 2 * [0.1, 0.05, 0.02]).sum(axis=1))
    table = Table("sum", "", space, space.codes(space.points)[order], times, "SPACE = {}\n")
    campaign = table_campaign(table, 1, Setting(300))
    campaign.plan = dataclasses.replace(campaign.plan, budget=Budget(300, until_converged=True))
    assert campaign.run() is StopReason.CONVERGED
    assert len(campaign.history.evaluated) < 200
    best = campaign.history.best
    assert best is not None and table.fraction(best[0].genome) == 1.0
    told = campaign.foretell(campaign.history)
    assert told is not None and 0.0 <= told < 1e-3


def test_headroom_is_the_share_of_the_gap_to_the_floor() -> None:
    rows = headroom([figures(4.0)], [figures(2.0)], {"w": {"mxu": 1.0, "hbm": 0.5, "vector_two_ops": 3.0}})
    assert [row.closed for row in rows] == [pytest.approx(2 / 3)]
    assert rows[0].left == 2.0 and mean_closed(rows) == pytest.approx(2 / 3)
    assert headroom([figures(4.0)], [figures(2.0)], {}) == [] and mean_closed([]) is None
