"""Would searches have stopped by themselves, when, and what would that have lost?

    python -m experiments.studies.search.convergence --seeds 5 --out experiments/records/search/search_converged.md
    python -m experiments.studies.search.convergence --development --seeds 10 --limits least=56,64 caution=15,30

Campaigns of 200 evaluations on the recorded spaces, or on made-up ones (smooth and rough), that go on after the moment
at which ``budget: {until: converged}`` would have stopped them; lost is what they gained from there on. ``--limits``
compares other limits on the same campaigns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.studies.search import families, rough
from testkit import SPACES
from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import Table, read_tables
from tilewright.evolve.campaign.convergence import LEAST_EVALUATIONS, LEAST_GAIN, Limits
from tilewright.evolve.campaign.loop import Campaign

BUDGET = 200
FIRST_SEED = 400
"""Of made-up spaces, where the search's own choices used those from 100 on; recorded ones begin at 0."""

EARLY = 0.005
"""Gain lost from which on a stop was too early."""


LEAST_ASKED = 24
"""Silent evaluations from which on a model is asked: no limits compared here are below it."""


@dataclass(frozen=True)
class Followed:
    """One run: after each evaluation its score, how long it was silent, and what its model foretold."""

    space: str
    seed: int
    scores: list[float]
    stale: list[int]
    foretold: list[float | None]

    def stop(self, limits: Limits) -> Stop:
        """Where it would have stopped, with the one that is in flight then."""
        moments = zip(
            self.stale[LEAST_EVALUATIONS - 1 :], self.foretold[LEAST_EVALUATIONS - 1 :], strict=True
        )
        quiet = (limits.expected_gain(stale, told) < LEAST_GAIN for stale, told in moments)
        ends = (n for n, ended in enumerate(quiet, LEAST_EVALUATIONS) if ended)
        at = min(next(ends, len(self.scores)) + 1, len(self.scores))
        return Stop(self.space, at, len(self.scores), 1.0 - self.scores[at - 1] / self.scores[-1])


@dataclass(frozen=True)
class Stop:
    """Of one run: evaluations until it stopped, of how many, and the share of the final score it would have missed."""

    space: str
    at: int
    budget: int
    lost: float


def followed(table: Table, seed: int, budget: int = BUDGET) -> Followed:
    """One campaign that nothing stops."""
    campaign = table_campaign(table, seed, Setting(budget))
    stale: list[int] = []
    foretold: list[float | None] = []

    def look(running: Campaign) -> None:
        if len(stale) < len(running.history.evaluated):
            silent = running.convergence.stale
            asked = silent >= LEAST_ASKED and len(stale) + 1 >= LEAST_EVALUATIONS
            stale.append(silent)
            foretold.append(running.foretell(running.history) if asked else None)

    campaign.on_progress = look
    campaign.run()
    scores = np.maximum.accumulate([table.fraction(each.genome) for each in campaign.history.candidates])
    return Followed(table.name, seed, scores.tolist(), stale, foretold)


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


def compare(runs: Sequence[Followed], grid: Sequence[Limits]) -> str:
    """What each choice of limits saves and loses on the same runs."""
    lines = ["| least | caution | silence | saved | lost (mean) | too early |", "| --- |" + " --- |" * 5]
    for limits in grid:
        stops = [run.stop(limits) for run in runs]
        lost = np.array([stop.lost for stop in stops])
        saved = 1.0 - sum(stop.at for stop in stops) / sum(stop.budget for stop in stops)
        lines.append(
            f"| {limits.least} | {limits.caution:g} | {limits.silence} | {saved:.0%} | {lost.mean():.2%} "
            f"| {(lost > EARLY).mean():.1%} |"
        )
    return "\n".join(lines) + "\n"


def grid_of(told: Sequence[str]) -> list[Limits]:
    """Every combination of NAME=VALUE,VALUE."""
    usual = Limits()
    names = [text.partition("=")[0] for text in told]
    values = [[float(value) for value in text.partition("=")[2].split(",")] for text in told]
    chosen = (dict(zip(names, each, strict=True)) for each in itertools.product(*values))
    return [
        Limits(int(each.get("least", usual.least)), each.get("caution", usual.caution),
               int(each.get("silence", usual.silence)))
        for each in chosen
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Where searches would have stopped by themselves.")
    parser.add_argument("--spaces", type=Path, default=SPACES, help="folder with NAME.json and NAME.csv.gz")
    parser.add_argument("--development", action="store_true", help="made-up spaces instead")
    parser.add_argument("--held-out", action="store_true", help="made-up spaces that choose nothing instead")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limits", nargs="*", default=[], help="NAME=VALUE,VALUE: compare these as well")
    parser.add_argument("--keep", type=Path, help="JSON lines of finished runs: read, and added to")
    parser.add_argument("--out", type=Path, help="write a record in Markdown")
    told = parser.parse_args(arguments)
    makers = {**families.DEVELOPMENT, **rough.DEVELOPMENT} if told.development else {}
    makers = {**families.HELD_OUT, **rough.HELD_OUT} if told.held_out else makers
    made = [make() for make in makers.values()] or read_tables(told.spaces)
    first = FIRST_SEED if makers else 0
    kept = told.keep.read_text().splitlines() if told.keep and told.keep.exists() else []
    known = {(run.space, run.seed): run for run in (Followed(**json.loads(line)) for line in kept)}
    runs = []
    for seed, table in itertools.product(range(first, first + told.seeds), made):
        run = known.get((table.name, seed)) or followed(table, seed)
        runs.append(run)
        if told.keep and (table.name, seed) not in known:
            with told.keep.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")
    text = describe([run.stop(Limits()) for run in runs])
    if told.limits:
        text += "\n" + compare(runs, grid_of(told.limits))
    sys.stdout.write(text)
    if told.out:
        command = " ".join(["python -m experiments.studies.search.convergence", *(arguments or sys.argv[1:])])
        told.out.write_text(f"# Searches that stop by themselves\n\n`{command}`\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
