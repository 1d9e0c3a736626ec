"""Credit for the gain: outcomes by proposer and by rewrite rule, and the records each set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.evolve.proposers.rule_credit import rules_of
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.report.charts import LETTER
from tilewright.evolve.report.data import CampaignData, Point
from tilewright.evolve.report.lineage import gain_over_parents
from tilewright.evolve.report.page import drawing, label, tag, title
from tilewright.evolve.report.text import shorten
from tilewright.fitness.evaluation import Verdict

WIDTH, ROW, BAR, TOP = 860, 26, 16, 60
LABEL, FIGURES = 240, 270
MOST_RULES = 25
EQUAL = 0.001
"""A child is equal to its fittest parent if their rates differ by at most this share."""


@dataclass
class Credit:
    """Outcomes of the candidates of one proposer or rule. ``share`` of the campaign's gain, in logarithms."""

    name: str
    faster: int = 0
    equal: int = 0
    slower: int = 0
    failed: int = 0
    records: int = 0
    share: float = 0.0

    @property
    def tried(self) -> int:
        return self.faster + self.equal + self.slower + self.failed


def credits_of(data: CampaignData, names: Callable[[Point], Sequence[str]]) -> list[Credit]:
    """The credit of each name that ``names`` gives a candidate, largest share first.

    A record is a candidate fitter than all before it and than every seed; its share is the logarithm of that step
    over the logarithm of the campaign's gain, split evenly between its names.
    """
    found: dict[str, Credit] = {}
    steps = _records(data)
    total = sum(steps.values()) or 1.0
    for point in data.points:
        mine = [found.setdefault(name, Credit(name)) for name in dict.fromkeys(names(point))]
        for credit in mine:
            _count(credit, data, point)
            if point.candidate.index in steps:
                credit.records += 1
                credit.share += steps[point.candidate.index] / total / len(mine)
    return sorted(found.values(), key=lambda c: (-c.share, -c.faster, -c.tried, c.name))


def by_proposer(data: CampaignData) -> list[Credit]:
    """Credit of proposers; seeds have none."""

    def names(point: Point) -> list[str]:
        mutation = point.candidate.mutation
        return [] if mutation.kind is MutationKind.SEED else [mutation.proposer]

    return credits_of(data, names)


def by_rule(data: CampaignData) -> list[Credit]:
    """Credit of rewrite rules; a candidate of several rules counts for each of them."""

    def names(point: Point) -> list[str]:
        mutation = point.candidate.mutation
        return rules_of(mutation.detail) if mutation.kind is MutationKind.REWRITE else []

    return credits_of(data, names)


def credit_svg(data: CampaignData, rows: Sequence[Credit], what: str, *, standalone: bool = False) -> str:
    """One bar of each name's candidates, split by outcome. ``what`` is ``proposer`` or ``rule``."""
    shown = rows[:MOST_RULES]
    unit = f"candidates by {what} and outcome ({data.target_text}, {data.kind})"
    parts = [label(0, 14, unit, class_="quiet"), *_legend()]
    longest = max((row.tried for row in shown), default=1)
    scale = (WIDTH - LABEL - FIGURES) / longest
    for n, row in enumerate(shown):
        parts += _bar(row, TOP + n * ROW, scale)
    if len(rows) > len(shown):
        more = f"{len(rows) - len(shown)} more"
        parts.append(label(LABEL - 8, TOP + len(shown) * ROW + 12, more, class_="quiet end"))
    height = TOP + (len(shown) + (len(rows) > len(shown))) * ROW + 4
    return drawing(WIDTH, height, f"Mutation credit by {what}", *parts, standalone=standalone)


def _bar(row: Credit, y: float, scale: float) -> Iterable[str]:
    yield label(LABEL - 8, y + 13, shorten(row.name, int((LABEL - 8) / LETTER)), class_="end")
    x = float(LABEL)
    for name, count in _outcomes(row):
        if count:
            tip = title(f"{row.name}: {count} {name} of {row.tried}")
            yield tag("rect", tip, x=x, y=y, width=count * scale, height=BAR, class_=_class(name))
            x += count * scale
    records = f"{row.records} record{'s' * (row.records != 1)}, {row.share * 100:.0f} % of the gain"
    yield label(x + 8, y + 13, f"{row.tried} tried; {records}", class_="quiet" if not row.records else None)


def _legend() -> Iterable[str]:
    x = 0.0
    for name, _ in _outcomes(Credit("")):
        yield tag("rect", x=x, y=26, width=14, height=12, class_=_class(name))
        yield label(x + 20, 36, name, class_="quiet")
        x += 34 + LETTER * len(name)


def _outcomes(row: Credit) -> list[tuple[str, int]]:
    return [
        ("faster than parent", row.faster),
        ("equal (0.1 %)", row.equal),
        ("slower", row.slower),
        ("failed", row.failed),
    ]


def _class(outcome: str) -> str:
    return "outcome " + outcome.split()[0]


def _count(credit: Credit, data: CampaignData, point: Point) -> None:
    if point.evaluation.verdict is not Verdict.OK:
        credit.failed += 1
        return
    gain = gain_over_parents(data, point.candidate) or 1.0
    if abs(gain - 1) <= EQUAL:
        credit.equal += 1
    elif gain > 1:
        credit.faster += 1
    else:
        credit.slower += 1


def _records(data: CampaignData) -> dict[int, float]:
    """Logarithm of each step of the best so far, by candidate; seeds raise the best and take no credit."""
    seeds = [
        p.evaluation.fitness
        for p in data.points
        if p.candidate.mutation.kind is MutationKind.SEED and p.evaluation.fitness
    ]
    best = max(seeds, default=0.0)
    steps = {}
    for point in data.points:
        fitness = point.evaluation.fitness or 0.0
        if point.candidate.mutation.kind is not MutationKind.SEED and fitness > best:
            if best:
                steps[point.candidate.index] = math.log(fitness / best)
            best = fitness
    return steps
