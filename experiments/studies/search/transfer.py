"""How many evaluations later shapes of a suite need when the search starts from what earlier shapes taught.

    python -m experiments.studies.search.transfer --seeds 10 --out experiments/records/search/search_transfer.md

Shapes come in random order. Each is searched twice: cold, from a random point, and from what the campaigns of the
shapes before it found. Counted are evaluations, the first included, until 98 % of the shape's optimum.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from testkit.spaces.tables import SPACES, Table, read_tables
from testkit.spaces.transfer import Pair, compare, suites


def describe(pairs: Sequence[Pair]) -> str:
    """Means by suite in Markdown."""
    lines = [
        "| suite | shapes | pairs | cold, mean | warm, mean | ratio of means | cold, median | warm, median |",
        "| --- |" + " --- |" * 7,
    ]
    for suite in dict.fromkeys(pair.suite for pair in pairs):
        mine = [pair for pair in pairs if pair.suite == suite]
        cold, warm = np.array([p.cold for p in mine]), np.array([p.warm for p in mine])
        shapes = len({p.shape for p in mine})
        lines.append(
            f"| {suite} | {shapes} | {len(mine)} | {cold.mean():.1f} | {warm.mean():.1f} | "
            f"{warm.mean() / cold.mean():.2f} | {np.median(cold):.0f} | {np.median(warm):.0f} |"
        )
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
    parser = argparse.ArgumentParser(
        description="Evaluations to 98 % of the optimum, cold and with transfer."
    )
    parser.add_argument("--spaces", type=Path, default=SPACES / "own")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write this Markdown file")
    told = parser.parse_args(arguments)
    known = suites(read_tables(told.spaces))
    pairs = [
        pair
        for suite, tables in known.items()
        for seed in range(told.seeds)
        for pair in compare(suite, tables, seed)
    ]
    parts = (
        describe(pairs),
        describe_agreement([agreement(s, t) for s, t in known.items()]),
        describe_screening([screening(s, t) for s, t in known.items()]),
    )
    text = "\n".join(parts)
    sys.stdout.write(text)
    if told.out:
        command = " ".join(["python -m experiments.studies.search.transfer", *(arguments or sys.argv[1:])])
        told.out.write_text(f"# Transfer between shapes\n\n`{command}`\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
