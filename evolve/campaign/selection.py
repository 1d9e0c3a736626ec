"""Which contender is truly best when every measurement is noisy: re-measure until one is left.

The fittest of many noisy readings is mostly the luckiest (the winner's curse). So contenders are all whose
reading the noise could have made the best, and they are measured again in rounds. One is dropped when the
interval of its distance from the leader excludes zero, and the lower half each time the rounds have doubled
(sequential halving, Karnin, Koren and Somekh 2013): readings go where the decision is close. The first reading
chose the contenders and does not count towards the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.evolve.space.genome import Genome

MOST_CONTENDERS = 24
ROUNDS = 48
LEAST_ROUNDS = 4

_NORMAL_95 = 1.96
_STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)


def student_95(freedom: int) -> float:
    """Two-sided 95 % point of Student's distribution; the normal one's from 12 degrees of freedom on."""
    return _STUDENT_95[freedom - 1] if freedom <= len(_STUDENT_95) else _NORMAL_95


@dataclass
class Contender:
    """``readings`` are log fitness of the repeated measurements."""

    genome: Genome
    readings: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.readings) / len(self.readings) if self.readings else -math.inf

    def half_width(self, spread: float) -> float:
        return spread / math.sqrt(len(self.readings)) if self.readings else math.inf


def contenders(
    readings: Sequence[tuple[Genome, float]], relative_noise: float, most: int = MOST_CONTENDERS
) -> list[Genome]:
    """The genomes whose (genome, fitness) reading lies within the noise of the best, fittest first.

    ``relative_noise`` is the standard deviation of one reading relative to it; two readings differ by it
    times the square root of two.
    """
    ranked = sorted(readings, key=lambda reading: -reading[1])
    if not ranked:
        return []
    limit = ranked[0][1] * math.exp(-2.0 * _NORMAL_95 * math.sqrt(2.0) * relative_noise)
    return [genome for genome, fitness in ranked[:most] if fitness >= limit]


def race(
    genomes: Sequence[Genome],
    measure: Callable[[Genome, int], float | None],
    rounds: int = ROUNDS,
    least_rounds: int = LEAST_ROUNDS,
) -> Genome | None:
    """The genome with the best mean of repeated measurements; ``None`` when all fail.

    ``measure(genome, round)`` gives a fitness > 0, or ``None`` for a failure, which ends that genome's race.
    The spread is pooled over contenders: each is measured too few times to know its own.
    """
    field_of = [Contender(genome) for genome in genomes]
    for number in range(rounds):
        still: list[Contender] = []
        for contender in field_of:
            fitness = measure(contender.genome, number)
            if fitness is not None and fitness > 0.0:
                contender.readings.append(math.log(fitness))
                still.append(contender)
        done = number + 1
        field_of = _undecided(still) if done >= least_rounds else still
        if done >= least_rounds and (done // least_rounds).bit_count() == 1 and done % least_rounds == 0:
            field_of = sorted(field_of, key=lambda contender: -contender.mean)[: -(-len(field_of) // 2)]
        if len(field_of) <= 1 and done >= least_rounds:
            break
    return max(field_of, key=lambda contender: contender.mean).genome if field_of else None


def _undecided(field_of: Sequence[Contender]) -> list[Contender]:
    """Contenders whose distance from the leader has a 95 % interval that reaches zero."""
    if not field_of:
        return []
    spread = _pooled_spread(field_of)
    leader = max(field_of, key=lambda contender: contender.mean)
    leaders = leader.half_width(spread)
    return [
        c
        for c in field_of
        if c is leader or leader.mean - c.mean <= math.hypot(leaders, c.half_width(spread))
    ]


def _pooled_spread(field_of: Sequence[Contender]) -> float:
    """Half width of a 95 % interval of one reading."""
    squares = sum((reading - c.mean) ** 2 for c in field_of for reading in c.readings)
    freedom = sum(len(c.readings) - 1 for c in field_of)
    if freedom < 1:
        return math.inf
    return student_95(freedom) * math.sqrt(squares / freedom)
