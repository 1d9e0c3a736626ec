"""A modelled gain within the model's error is a tie, unless both are one source under another schedule."""

import math
from types import SimpleNamespace

import pytest

from testkit.evaluations import figures, passed
from tilewright.evolve.promote.judge import judge
from tilewright.fitness.evaluation import FigureKind
from tilewright.fitness.tpu import time_model
from tilewright.seeds.operator import Suite, Workload

SHAPE = Workload("w", {"M": 8})


def modelled(seconds, version=time_model.VERSION):
    ends = {"seconds_low": seconds * math.exp(-0.05), "seconds_high": seconds * math.exp(0.05)}
    return figures(seconds=seconds, model_version=version, diagnosis=ends)


def judged(ours, theirs, *, same_source):
    """The judgement of a kernel that takes ``ours`` seconds against one that takes ``theirs``."""

    def verified(name, seconds, source):
        genome = SimpleNamespace(id=name, source=source)
        made = modelled(seconds)
        return SimpleNamespace(
            contender=SimpleNamespace(name=name, genome=genome),
            seconds=lambda workload: [made.seconds],
            evaluations=[SimpleNamespace(workloads=(made,))],
        )

    found = {"winner": verified("winner", ours, "a"), "seed": verified("seed", theirs, "a" if same_source else "b")}
    resolved = SimpleNamespace(suite=Suite("s", (SHAPE,), (SHAPE,)), target=SimpleNamespace(kind=FigureKind.MODELLED))
    nomination = SimpleNamespace(resolved=resolved, genome_for=lambda workload: "winner")
    verification = SimpleNamespace(comparison=None, found=found)
    return judge(nomination, verification, {"winner": "winner"}, {"w": "seed"})


@pytest.mark.parametrize(
    ("gain", "same_source", "refused"),
    [
        (1.04, False, "is a tie: the time model's error is larger than the gain"),
        (1.06, False, None),
        (1.03, True, None),
        (1.015, True, "is a tie"),
        (0.99, True, "is no gain"),
    ],
)
def test_promotion_asks_for_a_gain_beyond_the_models_error(gain, same_source, refused):
    objection = judged(1.0, gain, same_source=same_source).objection()
    assert objection is None if refused is None else refused in objection


def test_a_winner_is_even_with_what_lies_in_its_interval():
    def evaluation(fitness, *version):
        interval = (fitness * 0.95, fitness * 1.05)
        return passed("g", modelled(1.0 / fitness, *version), fitness=fitness, interval=interval)

    assert evaluation(100.0).even_with(evaluation(96.0))
    assert not evaluation(100.0).even_with(evaluation(94.0))
    assert not evaluation(100.0).even_with(evaluation(96.0, 1))
