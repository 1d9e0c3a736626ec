"""Credit for the gain: outcomes by proposer and by rewrite rule, and the records each set."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.evolve.proposers.rule_credit import rules_of
from tilewright.evolve.record.history import MutationKind
from tilewright.evolve.report.data import CampaignData, Point
from tilewright.evolve.report.lineage import gain_over_parents
from tilewright.evolve.report.tables import head_row, table, text_row
from tilewright.evolve.report.text import percent_text
from tilewright.fitness.evaluation import Verdict

MOST_ROWS = 25
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

    def count(self, data: CampaignData, point: Point) -> None:
        """Add the outcome of one candidate."""
        gain = gain_over_parents(data, point.candidate) or 1.0
        if point.evaluation.failed:
            self.failed += 1
        elif point.evaluation.verdict is Verdict.OUTPACED:
            self.slower += 1
        elif abs(gain - 1) <= EQUAL:
            self.equal += 1
        elif gain > 1:
            self.faster += 1
        else:
            self.slower += 1


def credits_of(data: CampaignData, names: Callable[[Point], Sequence[str]]) -> list[Credit]:
    """The credit of each name that ``names`` gives a candidate, largest share first.

    A record is a candidate fitter than all before it and than every seed; its share is the logarithm of that step
    over the logarithm of the campaign's gain, split evenly between its names.
    """
    found: dict[str, Credit] = {}
    steps = _record_steps(data)
    total = sum(steps.values()) or 1.0
    for point in data.points:
        mine = [found.setdefault(name, Credit(name)) for name in dict.fromkeys(names(point))]
        for credit in mine:
            credit.count(data, point)
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


def credit_table(data: CampaignData, rows: Sequence[Credit], what: str) -> str:
    """One row for each name. ``what`` is ``proposer`` or ``rule``."""
    body = [
        text_row(c.name, c.tried, c.faster, c.equal, c.slower, c.failed, c.records, percent_text(c.share))
        for c in rows[:MOST_ROWS]
    ]
    if len(rows) > MOST_ROWS:
        body.append(text_row(f"{len(rows) - MOST_ROWS} more"))
    outcomes = ("tried", "faster than parent", "equal (0.1 %) or a duplicate", "slower", "failed")
    head = head_row(what, *outcomes, "records", "share of the gain")
    return table(f"Candidates by {what} ({data.target_text}, {data.kind})", head, body)


def _record_steps(data: CampaignData) -> dict[int, float]:
    """Logarithm of each step of the best so far, by candidate; seeds raise the best and take no credit."""
    seeds = [p for p in data.points if p.candidate.mutation.kind is MutationKind.SEED]
    best = max((p.evaluation.fitness or 0.0 for p in seeds), default=0.0)
    steps = {}
    for point in data.points:
        fitness = point.evaluation.fitness or 0.0
        if point.candidate.mutation.kind is not MutationKind.SEED and fitness > best:
            if best:
                steps[point.candidate.index] = math.log(fitness / best)
            best = fitness
    return steps
