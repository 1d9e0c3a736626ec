"""Selection under noise: the luckiest reading does not win, and sure losers are not measured for long."""

from __future__ import annotations

import math

import numpy as np

from tilewright.evolve.campaign.selection import contenders, race
from tilewright.evolve.space.genome import Genome

NOISE = 0.05


def field_of(truths: np.ndarray) -> list[tuple[Genome, float]]:
    return [(Genome("k", {"x": number}), float(truth)) for number, truth in enumerate(truths)]


def test_remeasuring_beats_the_luckiest_reading() -> None:
    lucky_loss, raced_loss, spent = [], [], 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        field = field_of(100.0 * (1 - 0.2 * rng.random(60)))
        truth = {genome.id: value for genome, value in field}
        best = max(truth.values())

        def measure(genome: Genome, number: int) -> float:
            nonlocal spent
            spent += 1
            return truth[genome.id] * math.exp(NOISE * rng.standard_normal())  # noqa: B023

        readings = [(genome, measure(genome, 0)) for genome, _ in field]
        winner = race(contenders(readings, NOISE), measure)
        assert winner is not None
        lucky = max(readings, key=lambda reading: reading[1])[0]
        lucky_loss.append(1 - truth[lucky.id] / best)
        raced_loss.append(1 - truth[winner.id] / best)
    assert np.mean(raced_loss) < 0.01 < np.mean(lucky_loss)
    assert spent / 40 - 60 < 200


def test_a_clear_winner_ends_the_race_early() -> None:
    rng = np.random.default_rng(0)
    calls = 0

    def measure(genome: Genome, number: int) -> float:
        nonlocal calls
        calls += 1
        return (2.0 if genome.params["x"] == 3 else 1.0) * math.exp(0.01 * rng.standard_normal())

    winner = race([Genome("k", {"x": number}) for number in range(8)], measure)
    assert winner is not None
    assert winner.params["x"] == 3
    assert calls == 32


def test_failures_leave_the_race_and_without_survivors_there_is_no_winner() -> None:
    genomes = [Genome("k", {"x": 0}), Genome("k", {"x": 1})]
    winner = race(genomes, lambda genome, number: None if genome.params["x"] else 1.0)
    assert winner == genomes[0]
    assert race(genomes, lambda genome, number: None) is None
    assert contenders([], 0.05) == []
