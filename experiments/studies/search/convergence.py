"""Would searches have stopped by themselves, when, and what would that have lost?

    python -m experiments.studies.search.convergence --seeds 5 --out experiments/records/search/search_converged.md
    python -m experiments.studies.search.convergence --development --seeds 10

Campaigns of 200 evaluations on the recorded spaces, or on made-up ones (seeds from 100 on), that go on after the moment
at which ``budget: {until: converged}`` would have stopped them; lost is what they gained from there on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.studies.search.families import DEVELOPMENT
from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import SPACES, Table, read_tables
from tilewright.evolve.campaign.loop import Campaign

BUDGET = 200
FIRST_SEED = 100
"""Of made-up spaces; recorded ones begin at 0."""

EARLY = 0.005
"""Gain lost from which on a stop was too early."""


@dataclass(frozen=True)
class Stop:
    """Of one run: evaluations until it stopped, of how many, and the share of the final score it would have missed."""

    space: str
    at: int
    budget: int
    lost: float


def stop_of(table: Table, seed: int, budget: int = BUDGET) -> Stop:
    """One campaign, and where it would have stopped."""
    campaign = table_campaign(table, seed, Setting(budget))
    stopped: list[int] = []

    def look(running: Campaign) -> None:
        if not stopped and running.convergence.reached(lambda: running.foretell(running.history)):
            stopped.append(len(running.history.evaluated))

    campaign.on_progress = look
    campaign.run()
    scores = np.array([table.fraction(candidate.genome) for candidate in campaign.history.candidates])
    curve = np.maximum.accumulate(scores)
    at = stopped[0] if stopped else len(curve)
    return Stop(table.name, at, len(curve), 1.0 - float(curve[at - 1] / curve[-1]))


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
    parser = argparse.ArgumentParser(description="Where searches would have stopped by themselves.")
    parser.add_argument("--spaces", type=Path, default=SPACES, help="folder with NAME.json and NAME.csv.gz")
    parser.add_argument("--development", action="store_true", help="made-up spaces instead")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write a record in Markdown")
    told = parser.parse_args(arguments)
    made = [make() for make in DEVELOPMENT.values()] if told.development else read_tables(told.spaces)
    first = FIRST_SEED if told.development else 0
    stops = [stop_of(table, first + seed) for table in made for seed in range(told.seeds)]
    text = describe(stops)
    sys.stdout.write(text)
    if told.out:
        command = " ".join(["python -m experiments.studies.search.convergence", *(arguments or sys.argv[1:])])
        told.out.write_text(f"# Searches that stop by themselves\n\n`{command}`\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
