"""Would these searches have stopped by themselves, when, and what would that have lost? And what was to be expected?

    python -m experiments.studies.search.efficiency --seeds 30 --keep RUNS.jsonl
    python -m experiments.studies.search.convergence RUNS.jsonl --out experiments/records/search/search_converged.md

``RUNS.jsonl`` holds finished runs of ``efficiency``. A run stops where ``evolve.campaign.convergence`` says so; lost is
what the rest of its budget gained.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.evolve.campaign.convergence import AHEAD, LEAST_EVALUATIONS, LEAST_GAIN, Convergence, expected
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict

STALE_EDGES = (0, 8, 16, 32, 64, 200)
EARLY = 0.005
"""Gain lost from which on a stop was too early."""


@dataclass(frozen=True)
class Stop:
    """Of one run: evaluations until it stopped, of how many, and the share of the final score it would have missed."""

    space: str
    at: int
    budget: int
    lost: float


def stop_of(space: str, curve: np.ndarray) -> Stop:
    """``curve`` [budget]: best score so far."""
    told = Convergence()
    for count, score in enumerate(curve, 1):
        told.add(_evaluation(float(score)))
        if told.reached:
            return Stop(space, count, len(curve), 1.0 - float(score / curve[-1]))
    return Stop(space, len(curve), len(curve), 0.0)


def _evaluation(score: float) -> Evaluation:
    common = {"genome": "", "target": "", "suite": "", "stage": Stage.MEASURE}
    if score <= 0.0:
        return Evaluation(**common, verdict=Verdict.COMPILE_ERROR, reason="nothing valid yet")
    return Evaluation(**common, verdict=Verdict.OK, fitness=score)


def calibration(curves: Iterable[np.ndarray]) -> str:
    """Gain that was expected of the next evaluations and gain that came, by length of the silence before."""
    moments = []
    for curve in curves:
        stale, mark = 0, 0.0
        for place, score in enumerate(curve[:-AHEAD]):
            stale = 0 if score > mark * 1.002 else stale + 1
            mark = max(mark, float(score)) if stale == 0 else mark
            if place + 1 >= LEAST_EVALUATIONS and score > 0.0:
                moments.append((stale, expected(place + 1, stale), curve[place + AHEAD] / score - 1.0))
    table = np.array(moments)
    lines = [
        "| evaluations without gain | moments | expected | came | more than 0.5 % |",
        "| --- |" + " --- |" * 4,
    ]
    for low, high in itertools.pairwise(STALE_EDGES):
        mine = table[(table[:, 0] >= low) & (table[:, 0] < high)]
        if len(mine):
            means, often = mine.mean(axis=0), float((mine[:, 2] > LEAST_GAIN).mean())
            lines.append(
                f"| {low} to {high - 1} | {len(mine)} | {means[1]:.2%} | {means[2]:.2%} | {often:.0%} |"
            )
    return "\n".join(lines) + "\n"


def describe(stops: Sequence[Stop]) -> str:
    """By space: where runs stopped, what was saved and lost."""
    lines = [
        "| space | runs | stopped at (median) | evaluations saved | lost (mean) | lost (worst) | too early |",
        "| --- |" + " --- |" * 6,
    ]
    names = dict.fromkeys(stop.space for stop in stops)
    for name, mine in [*((n, [s for s in stops if s.space == n]) for n in names), ("all", list(stops))]:
        lost = np.array([stop.lost for stop in mine])
        saved = 1.0 - sum(stop.at for stop in mine) / sum(stop.budget for stop in mine)
        lines.append(
            f"| {name} | {len(mine)} | {np.median([stop.at for stop in mine]):.0f} | {saved:.0%} | {lost.mean():.2%} "
            f"| {lost.max():.2%} | {(lost > EARLY).mean():.0%} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Where finished runs would have stopped by themselves.")
    parser.add_argument("runs", type=Path, help="runs kept by efficiency --keep")
    parser.add_argument("--out", type=Path, help="write a record in Markdown")
    told = parser.parse_args(arguments)
    runs = [json.loads(line) for line in told.runs.read_text().splitlines()]
    curves = [(run["space"], np.array(run["curve"])) for run in runs]
    text = describe([stop_of(*curve) for curve in curves]) + "\n" + calibration(curve for _, curve in curves)
    sys.stdout.write(text)
    if told.out:
        told.out.write_text(f"# Searches that stop by themselves, on recorded spaces\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
