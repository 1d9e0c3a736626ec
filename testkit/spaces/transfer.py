"""How many evaluations later shapes of a suite need when the search starts from what earlier shapes taught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import Table
from tilewright.evolve.campaign.transfer import Earlier
from tilewright.evolve.record.history import History

REACHED = 0.98


BUDGET = 40
"""Evaluations of each campaign, or its whole space."""


@dataclass(frozen=True)
class Pair:
    """Evaluations until ``REACHED`` on one shape, cold and with what ``earlier`` shapes taught."""

    suite: str
    shape: str
    seed: int
    earlier: int
    cold: int
    warm: int


def suites(tables: Sequence[Table]) -> dict[str, list[Table]]:
    """Tables that share a kernel, by its name."""
    found: dict[str, list[Table]] = {}
    for table in tables:
        found.setdefault(table.kernel, []).append(table)
    return {kernel.split('"')[3]: shapes for kernel, shapes in found.items() if len(shapes) > 1}


def compare(suite: str, tables: Sequence[Table], seed: int) -> list[Pair]:
    """All shapes of a suite in an order drawn from ``seed``."""
    order = np.random.default_rng([seed, 3]).permutation(len(tables))
    known: list[Earlier] = []
    pairs = []
    for earlier, place in enumerate(order):
        table = tables[int(place)]
        cold = _search(table, seed, [])
        warm = _search(table, seed, known) if known else cold
        if earlier:
            pairs.append(Pair(suite, table.name, seed, earlier, _reached(table, cold), _reached(table, warm)))
        known.append(_lesson(table, warm))
    return pairs


def _search(table: Table, seed: int, earlier: Sequence[Earlier]) -> History:
    budget = min(BUDGET, len(table.times))
    campaign = table_campaign(table, seed, Setting(budget=budget), earlier)
    campaign.run()
    return campaign.history


def _lesson(table: Table, history: History) -> Earlier:
    lesson = Earlier(table.name, table.kernel)
    for candidate, evaluation in history.evaluated:
        lesson.add(candidate.genome, evaluation)
    return lesson


def _reached(table: Table, history: History) -> int:
    """Evaluations until the mark; one more than there were when it was not reached."""
    scores = [table.fraction(candidate.genome) for candidate in history.candidates]
    return next((n for n, score in enumerate(scores, 1) if score >= REACHED), len(scores) + 1)
