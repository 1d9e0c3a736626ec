"""How many evaluations later shapes of a suite need when the search starts from what earlier shapes taught.

    python -m experiments.studies.search.transfer --seeds 10 --out experiments/records/search/search_transfer.md

Shapes come in random order. Each is searched twice, 200 evaluations or all: cold, from a random point, and from what
the campaigns of the shapes before it found. Counted are evaluations, the first included, until 95 % and 98 % of what
the cold campaign ends with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy.stats import spearmanr

from testkit.spaces.tables import SPACES, Table, read_tables
from testkit.spaces.transfer import SHARES, Pair, compare, drawn, search, suites
from tilewright.evolve.proposers.surrogate import proposer
from tilewright.evolve.proposers.surrogate.agreement import misleads
from tilewright.evolve.proposers.surrogate.records import SourceRecords


def describe(pairs: Sequence[Pair]) -> str:
    """Means by suite in Markdown, for each share of what the cold campaign ends with."""
    columns = [f"{what} {share:.0%}" for share in SHARES for what in ("cold,", "warm,", "ratio,")]
    lines = [
        "| suite | shapes | pairs | " + " | ".join(columns) + " |",
        "| --- |" + " --- |" * (2 + len(columns)),
    ]
    for suite in dict.fromkeys(pair.suite for pair in pairs):
        mine = [pair for pair in pairs if pair.suite == suite]
        cold, warm = (
            np.array(found).mean(axis=0) for found in zip(*((p.cold, p.warm) for p in mine), strict=True)
        )
        cells = [f"{c:.1f} | {w:.1f} | {w / c:.2f}" for c, w in zip(cold, warm, strict=True)]
        shapes = len({pair.shape for pair in mine})
        lines.append(f"| {suite} | {shapes} | {len(mine)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Agreement:
    """How far one shape stands for another: Spearman's rank correlation over the points both have, and what the
    best of one loses on the other against its own best (mean over ordered pairs of shapes)."""

    suite: str
    shapes: int
    correlation: float
    loss: float


def agreement(suite: str, tables: Sequence[Table]) -> Agreement:
    """Over all ordered pairs of shapes that succeed on the same points."""
    correlations, losses = [], []
    for one, other in permutations(tables, 2):
        places = np.searchsorted(other.codes, one.codes)
        assert np.array_equal(other.codes[places], one.codes)  # shapes of a suite have the same points
        first, second = one.times, other.times[places]
        both = ~(np.isnan(first) | np.isnan(second))
        correlations.append(spearmanr(first[both], second[both]).statistic)
        best = int(np.nanargmin(np.where(both, first, np.nan)))
        losses.append(1.0 - other.optimum / second[best])
    return Agreement(suite, len(tables), float(np.mean(correlations)), float(np.mean(losses)))


def describe_agreement(found: Sequence[Agreement]) -> str:
    lines = ["| suite | shapes | rank correlation | loss of the other's best |", "| --- |" + " --- |" * 3]
    lines += [f"| {a.suite} | {a.shapes} | {a.correlation:.3f} | {a.loss:.1%} |" for a in found]
    return "\n".join(lines) + "\n"


MARKS = (10, 15, 25, 40, 60)
EARLIER_POINTS = 80
LARGE = 300
"""Points of tables on which a transfer that misleads is tried."""


def describe_misled(suite: str, table: Table, seeds: int) -> str:
    """Mean score over seeds at each mark: cold, after random points of the same table, after the same points with their
    fitness inverted, and after these when nobody notices; and after how many evaluations they were dropped."""
    rows = []
    for name, inverted, noticed in (
        ("nothing", None, True),
        (f"{EARLIER_POINTS} points, right", False, True),
        (f"{EARLIER_POINTS} points, inverted", True, True),
        ("the same, had they not been dropped", True, False),
    ):
        curves, dropped = [], []
        for seed in range(seeds):
            told = [] if inverted is None else [drawn(table, EARLIER_POINTS, seed, inverted=inverted)]
            judged = _Judged(noticed)
            with patch.object(proposer, "misleads", judged):
                history = search(table, seed, told, MARKS[-1])
            scores = [table.fraction(candidate.genome) for candidate in history.candidates]
            curves.append(np.maximum.accumulate(scores)[[mark - 1 for mark in MARKS]])
            dropped += judged.dropped
        means = " | ".join(f"{mean:.3f}" for mean in np.mean(curves, axis=0))
        when = f"{len(dropped)} of {seeds}, after {np.median(dropped):.0f}" if dropped else "none"
        rows.append(f"| {suite} | {name} | {means} | {when if told else ''} |")
    return "\n".join(rows) + "\n"


MISLED_HEAD = (
    f"| suite | what the model is told of earlier | {' | '.join(f'n={mark}' for mark in MARKS)} | dropped |\n"
    + "| --- |"
    + " --- |" * (2 + len(MARKS))
    + "\n"
)


class _Judged:
    """``misleads``, or nobody who notices; ``dropped``: own records when an earlier campaign was dropped."""

    def __init__(self, noticed: bool) -> None:
        self._noticed = noticed
        self.dropped: list[int] = []

    def __call__(self, earlier: SourceRecords, own: SourceRecords) -> bool:
        found = self._noticed and misleads(earlier, own)
        if found:
            self.dropped.append(len(own.rows))
        return found


SCREENED = 1
PROMOTED = 0.25
"""Every point is measured on this many workloads drawn at random, the best quarter of them on all."""


@dataclass(frozen=True)
class Screening:
    """``cost`` is the share of all measurements made; ``loss`` and ``worst`` (95th percentile) are what the suite's
    geometric mean loses against the point that is best on all workloads."""

    suite: str
    workloads: int
    points: int
    cost: float
    loss: float
    worst: float


def screening(suite: str, tables: Sequence[Table], draws: int = 300) -> Screening:
    """A suite as one problem: promote what is good on few workloads."""
    codes = tables[0].codes
    logs = np.log([table.times[np.searchsorted(table.codes, codes)] for table in tables])
    logs = logs[:, ~np.isnan(logs).any(axis=0)]
    workloads, points = logs.shape
    promoted = -(-points // round(1 / PROMOTED))
    whole, rng = logs.mean(axis=0), np.random.default_rng(0)
    losses = []
    for _ in range(draws):
        few = rng.choice(workloads, SCREENED, replace=False)
        kept = np.argsort(logs[few].mean(axis=0), kind="stable")[:promoted]
        losses.append(1.0 - np.exp(whole.min() - whole[kept].min()))
    cost = (points * SCREENED + promoted * (workloads - SCREENED)) / (points * workloads)
    return Screening(suite, workloads, points, cost, float(np.mean(losses)), float(np.quantile(losses, 0.95)))


def describe_screening(found: Sequence[Screening]) -> str:
    lines = [
        "| suite | workloads | points | share of measurements | mean loss | 95th percentile |",
        "| --- |" + " --- |" * 5,
    ]
    lines += [
        f"| {s.suite} | {s.workloads} | {s.points} | {s.cost:.0%} | {s.loss:.2%} | {s.worst:.2%} |"
        for s in found
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Evaluations to 95 % and 98 %, cold and with transfer.")
    parser.add_argument("--spaces", type=Path, default=SPACES / "own")
    parser.add_argument("--only", default="", help="suites whose name holds this")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--misled", type=int, default=10, help="seeds of the transfer that misleads")
    parser.add_argument("--out", type=Path, help="write this Markdown file")
    told = parser.parse_args(arguments)
    known = {name: tables for name, tables in suites(read_tables(told.spaces)).items() if told.only in name}
    pairs = [
        pair
        for suite, tables in known.items()
        for seed in range(told.seeds)
        for pair in compare(suite, tables, seed)
    ]
    large = {name: tables[0] for name, tables in known.items() if len(tables[0].times) > LARGE}
    parts = (
        describe(pairs),
        describe_agreement([agreement(s, t) for s, t in known.items()]),
        describe_screening([screening(s, t) for s, t in known.items()]),
    )
    text = "\n".join(parts)
    if large:
        text += "\n" + MISLED_HEAD + "".join(describe_misled(s, t, told.misled) for s, t in large.items())
    sys.stdout.write(text)
    if told.out:
        command = " ".join(["python -m experiments.studies.search.transfer", *(arguments or sys.argv[1:])])
        told.out.write_text(f"# Transfer between shapes\n\n`{command}`\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
