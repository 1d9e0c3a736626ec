"""When a search stops by itself: not early, not while it improves, at once on the floor."""

import dataclasses

import numpy as np
import pytest

from testkit.evaluations import failed, figures, passed
from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import Table
from tilewright.evolve.campaign.convergence import LEAST_EVALUATIONS, Convergence
from tilewright.evolve.campaign.loop import Budget, StopReason
from tilewright.evolve.space.space import Space


def evaluation(seconds):
    return failed() if seconds is None else passed("g", figures(seconds=seconds), fitness=1.0 / seconds)


def after(*seconds, floor=0.0):
    told = Convergence({"w": {"mxu": floor, "vector_two_ops": 5.0}} if floor else None)
    for each in seconds:
        told.add(evaluation(each))
    return told


IMPROVING = [1.0 / (1.0 + 0.01 * n) for n in range(400)]
NEAR = [2.0 - 0.02 * n for n in range(LEAST_EVALUATIONS)]
LATE = [*[2.0] * 400, 1.0]


@pytest.mark.parametrize(
    ("seconds", "floor", "foretold", "reached"),
    [
        ([1.0, *[2.0] * 400], 0.0, None, True),
        (IMPROVING, 0.0, None, False),
        ([1.0, *[2.0] * (LEAST_EVALUATIONS - 2)], 0.0, None, False),
        ([1.0, *[None] * 400], 0.0, None, True),
        ([1.0 - 1e-6 * n for n in range(400)], 0.0, None, True),
        ([*NEAR, 1.001], 1.0, None, True),
        ([*NEAR, 1.05], 1.0, None, False),
        ([1.0, *[2.0] * 119], 0.0, None, False),
        ([1.0, *[2.0] * 119], 0.0, 0.01, False),
        ([1.0, *[2.0] * 119], 0.0, 1e-5, True),
        (IMPROVING[:90], 0.0, 0.0, False),
        ([*LATE, *[2.0] * 150], 0.0, 1e-5, False),
        ([*LATE, *[2.0] * 250], 0.0, 1e-5, True),
    ],
    ids=["silence", "improving", "too few", "failures are silence", "gains within the noise", "on the floor",
         "above the floor", "a short silence", "a hopeful model", "a hopeless model", "improving in spite of a model",
         "improved within the last third", "improved before it"],
)  # fmt: skip
def test_when_a_search_has_converged(seconds, floor, foretold, reached):
    assert after(*seconds, floor=floor).reached(lambda: foretold) is reached


def test_a_search_stops_once_its_model_expects_nothing():
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
