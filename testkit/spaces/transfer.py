"""How many evaluations later shapes of a suite need when the search starts from what earlier shapes taught."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import Table
from tilewright.evolve.campaign.transfer import Earlier
from tilewright.evolve.record.history import History
from tilewright.evolve.space.genome import Genome

SHARES = (0.95, 0.98)
"""Of what the cold campaign ends with."""

BUDGET = 200
"""Evaluations of each campaign, or its whole space."""


@dataclass(frozen=True)
class Pair:
    """Evaluations until each of ``SHARES`` on one shape, cold and with what ``earlier`` shapes taught."""

    suite: str
    shape: str
    seed: int
    earlier: int
    cold: tuple[int, ...]
    warm: tuple[int, ...]


def suites(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """Tables that share a kernel, by its name."""
    found: dict[str, list[Table]] = {}
    for table in tables:
        found.setdefault(table.kernel, []).append(table)
    return {kernel.split('"')[3]: shapes for kernel, shapes in found.items() if len(shapes) > 1}


def compare(suite: str, tables: Sequence[Table], seed: int, budget: int = BUDGET) -> list[Pair]:
    """All shapes of a suite in an order drawn from ``seed``."""
    order = np.random.default_rng([seed, 3]).permutation(len(tables))
    known: list[Earlier] = []
    pairs = []
    for earlier, place in enumerate(order):
        table = tables[int(place)]
        cold = search(table, seed, [], budget)
        warm = search(table, seed, known, budget) if known else cold
        if earlier:
            scores = [table.fraction(candidate.genome) for candidate in cold.candidates]
            marks = [share * max(scores) for share in SHARES]
            found = (_reached(table, cold, marks), _reached(table, warm, marks))
            pairs.append(Pair(suite, table.name, seed, earlier, *found))
        known.append(_lesson(table, warm))
    return pairs


def search(table: Table, seed: int, earlier: Sequence[Earlier], budget: int = BUDGET) -> History:
    """A campaign of so many evaluations or over its whole space."""
    campaign = table_campaign(table, seed, Setting(budget=min(budget, len(table.times))), earlier)
    campaign.run()
    return campaign.history


def drawn(table: Table, count: int, seed: int, *, inverted: bool) -> Earlier:
    """An earlier campaign of random points, true or with the fitness of each turned upside down."""
    lesson = Earlier("drawn", table.kernel)
    sign = -1.0 if inverted else 1.0
    for row in table.space.sample_rows(np.random.default_rng([seed, 5]), count):
        genome = Genome(table.kernel, table.space.decode(row))
        lesson.points.append(
            (genome, -sign * math.log(table.time(genome)))
        )  # the logarithm of no number is NaN
    return lesson


def _lesson(table: Table, history: History) -> Earlier:
    lesson = Earlier(table.name, table.kernel)
    for candidate, evaluation in history.evaluated:
        lesson.add(candidate.genome, evaluation)
    return lesson


def _reached(table: Table, history: History, marks: Sequence[float]) -> tuple[int, ...]:
    """Evaluations until each mark; one more than there were where it was not reached."""
    scores = [table.fraction(candidate.genome) for candidate in history.candidates]
    found = (
        next((n for n, score in enumerate(scores, 1) if score >= mark), len(scores) + 1) for mark in marks
    )
    return tuple(found)
