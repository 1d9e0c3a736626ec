"""Would searches have stopped by themselves, when, and what would that have lost? Is what they expect what comes?

    python -m experiments.studies.search.convergence --seeds 10 --every 1      # recorded spaces
    python -m experiments.studies.search.convergence --development --seeds 132 --fit
    python -m experiments.studies.search.convergence --held-out --seeds 60

Campaigns that go on past the moment at which ``budget: {until: converged}`` would have stopped them; lost is what they
gained from there until 200 evaluations. They make 32 more, so that what was expected of the next 32 can be held against
what came. Made-up spaces are of all kinds in turn and hardly ever the same twice; every other series of kinds is rough.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from experiments.studies.search import families, rough
from testkit import SPACES
from testkit.spaces.campaigns import Setting, table_campaign
from testkit.spaces.tables import Table, read_tables
from tilewright.evolve.campaign.convergence import (
    AHEAD,
    IMPROVEMENT,
    LEAST_EVALUATIONS,
    LEAST_GAIN,
    LEAST_SHARE,
    Outlook,
)
from tilewright.evolve.campaign.loop import Campaign

BUDGET = 200

EARLY = 0.005
"""Gain lost from which on a stop was too early."""

EVERY = 8
"""Evaluations between two looks: enough to fit and to compare, where a campaign looks after each."""

DEVELOPMENT = ("stencil-21", "product-21", "filter-21", "blocked-21", "corner-21", "rows-21")
HELD_OUT = (
    "channels-51", "attention-51", "transpose-51", "channels-52", "attention-52", "transpose-52",
    "stencil-53", "product-53", "filter-53", "blocked-54", "corner-54", "rows-54",
)  # fmt: skip
"""First made-up spaces of each kind; three kinds are not among those that the expectation was fitted to."""


@dataclass(frozen=True)
class Moment:
    """After ``count`` evaluations, ``stale`` of them silent; ``foretold`` by the model, None where it was not asked."""

    count: int
    stale: int
    foretold: float | None


@dataclass(frozen=True)
class Followed:
    """One run of 232 evaluations: the score of its best after each, and its moments in order."""

    space: str
    seed: int
    scores: list[float]
    moments: list[Moment]

    def gain(self, count: int, until: int) -> float:
        """What the evaluations from ``count`` to ``until`` gained."""
        return self.scores[until - 1] / self.scores[count - 1] - 1.0

    def stop(self, rule: Rule) -> Stop:
        """Where it would have stopped, with the one that is in flight then."""
        ends = (m.count + 1 for m in self.moments if rule(m) < LEAST_GAIN)
        at = min(next(ends, BUDGET), BUDGET)
        return Stop(self.space, at, 1.0 - self.scores[at - 1] / self.scores[BUDGET - 1])


Rule = Callable[[Moment], float]
"""What it expects of the next 32 evaluations."""


@dataclass(frozen=True)
class Stop:
    """Of one run: evaluations until it stopped, and the share of the score after 200 that it would have missed."""

    space: str
    at: int
    lost: float


TODAY = Outlook()


def quiet(moment: Moment) -> bool:
    """Whether a campaign asks at all."""
    return moment.stale >= max(LEAST_EVALUATIONS, LEAST_SHARE * moment.count)


def as_it_is(moment: Moment, outlook: Outlook = TODAY) -> float:
    if not quiet(moment) or moment.foretold is None:
        return math.inf
    return outlook.expected_gain(moment.count, moment.foretold)


def before(moment: Moment) -> float:
    """The rule until 2026-11-22: 144 silent evaluations, or 96 and a model that expects less than 0.33 %."""
    if moment.stale < 96:
        return math.inf
    alone = LEAST_GAIN * math.exp((144 - moment.stale) / 22.0)
    return alone if moment.foretold is None else min(alone, 1.5 * moment.foretold)


def followed(table: Table, seed: int, every: int = EVERY) -> Followed:
    """One campaign that nothing stops."""
    campaign = table_campaign(table, seed, Setting(BUDGET + AHEAD))
    moments: list[Moment] = []

    def look(running: Campaign) -> None:
        count, stale = len(running.history.evaluated), running.convergence.stale
        fresh = not moments or moments[-1].count < count
        if fresh and LEAST_EVALUATIONS <= count <= BUDGET and count % every == 0:
            asked = stale >= 16
            moments.append(Moment(count, stale, running.foretell(running.history) if asked else None))

    campaign.on_progress = look
    campaign.run()
    scores = np.maximum.accumulate([table.fraction(each.genome) for each in campaign.history.candidates])
    return Followed(table.name, seed, scores.round(6).tolist(), moments)


Campaigns = Iterator[tuple[Callable[[], Table], str, int]]
"""For each campaign how its space is made, the space's name, and the campaign's seed."""


def made_up(kinds: Sequence[str], seed: int, count: int) -> Campaigns:
    for number in range(count):
        series = number // len(kinds)
        kind, _, first = kinds[number % len(kinds)].rpartition("-")
        name = f"{kind}-{int(first) + series // 2}"
        make = families.named(name)[name]
        if series % 2:
            make, name = _roughened(make, int(first) + series // 2), rough.PREFIX + name
        yield make, name, seed + number


def _roughened(make: Callable[[], Table], seed: int) -> Callable[[], Table]:
    return partial(rough.roughened, make, seed)


def recorded(tables: Sequence[Table], seeds: int) -> Campaigns:
    for seed, table in itertools.product(range(seeds), tables):
        yield partial(_itself, table), table.name, seed


def _itself(table: Table) -> Table:
    return table


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 %, by drawing runs anew."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(len(values), size=(2000, len(values)))].mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def describe(runs: Sequence[Followed], rule: Rule) -> str:
    """By space or kind: where runs stopped, what was saved and lost."""
    lines = [
        "| space | runs | stopped at (median) | evaluations saved | lost (mean) | 95 % | lost (worst) | too early |",
        "| --- |" + " --- |" * 7,
    ]
    stops = [(run.space.rpartition("-")[0] or run.space, run.stop(rule)) for run in runs]
    for name in [*dict.fromkeys(name for name, _ in stops), "all"]:
        mine = [stop for known, stop in stops if name in (known, "all")]
        lost = np.array([stop.lost for stop in mine])
        saved = 1.0 - np.mean([stop.at for stop in mine]) / BUDGET
        low, high = interval(lost)
        lines.append(
            f"| {name} | {len(mine)} | {np.median([stop.at for stop in mine]):.0f} | {saved:.0%} | {lost.mean():.2%} "
            f"| {low:.2%}–{high:.2%} | {lost.max():.2%} | {(lost > EARLY).sum()} of {len(mine)} |"
        )
    return "\n".join(lines) + "\n"


def fixed(moment: Moment, *, count: int) -> float:
    """A budget."""
    return 0.0 if moment.count >= count else math.inf


def silent(moment: Moment, *, stale: int) -> float:
    """Silence alone."""
    return 0.0 if moment.stale >= stale else math.inf


RULES: dict[str, Rule] = {
    "before": before,
    **{f"{count} evaluations, whatever comes": partial(fixed, count=count) for count in (128, 160, 176)},
    **{f"{stale} silent evaluations": partial(silent, stale=stale) for stale in (64, 96, 112)},
    **{
        f"as it is, gains of {size:.1%}": partial(as_it_is, outlook=Outlook(size=size))
        for size in (0.08, 0.1, 0.125, 0.2)
    },
    "as it is": as_it_is,
}


def compare(runs: Sequence[Followed]) -> str:
    """What each rule saves and loses on the same runs."""
    lines = ["| rule | saved | lost (mean) | 95 % | too early |", "| --- |" + " --- |" * 4]
    for name, rule in RULES.items():
        stops = [run.stop(rule) for run in runs]
        lost = np.array([stop.lost for stop in stops])
        saved = 1.0 - np.mean([stop.at for stop in stops]) / BUDGET
        low, high = interval(lost)
        lines.append(
            f"| {name} | {saved:.1%} | {lost.mean():.2%} | {low:.2%}–{high:.2%} | {(lost > EARLY).mean():.1%} |"
        )
    return "\n".join(lines) + "\n"


BINS = (0.0, 0.02, 1 / 30, 0.05, 0.08, 0.12, 0.2, 1.0)
"""Of the chance of an improvement; the third is where a search stops."""


def reliability(runs: Sequence[Followed], outlook: Outlook) -> str:
    """What was expected of the next 32 evaluations, and what came, by how likely an improvement was thought."""
    told, came, of = _outcomes(runs, outlook)
    lines = [
        "| chance foretold | moments | mean | improved | expected gain | gain | 95 % |",
        "| --- |" + " --- |" * 6,
    ]
    for low, high in itertools.pairwise(BINS):
        mine = (told >= low) & (told < high)
        if mine.any():
            foretold, gained = told[mine].mean(), came[mine]
            least, most = _by_run(gained, of[mine])
            lines.append(
                f"| {low:.1%} to {high:.1%} | {mine.sum()} | {foretold:.1%} | {(gained > IMPROVEMENT).mean():.1%} "
                f"| {foretold * outlook.size:.2%} | {gained.mean():.2%} | {least:.2%}–{most:.2%} |"
            )
    return "\n".join(lines) + "\n"


def _by_run(values: np.ndarray, of: np.ndarray) -> tuple[float, float]:
    """95 % of the mean, by drawing runs anew: moments of one run are much alike. ``of`` numbers each value's run."""
    _, place, counts = np.unique(of, return_inverse=True, return_counts=True)
    sums = np.bincount(place, values)
    drawn = np.random.default_rng(0).integers(len(sums), size=(2000, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def _outcomes(runs: Sequence[Followed], outlook: Outlook) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every moment with a model's word: the chance of an improvement, what the next 32 gained, and its run."""
    found = [
        (outlook.chance(m.count, m.foretold), run.gain(m.count, m.count + AHEAD), number)
        for number, run in enumerate(runs)
        for m in run.moments
        if m.foretold is not None
    ]
    told, came, of = np.array(found).T
    return told, came, of


def fitted(runs: Sequence[Followed]) -> str:
    """Level, age and trust of a logistic regression on moments after 24 silent evaluations and 56 in all; and the mean
    gain over the mean chance where this is below 5 %."""
    kept = [
        (m.count, m.foretold, run.gain(m.count, m.count + AHEAD))
        for run in runs
        for m in run.moments
        if m.foretold is not None and m.stale >= 24 and m.count >= 56
    ]
    count, foretold, came = np.array(kept, dtype=float).T
    told = np.log(np.maximum(foretold, 1e-5)) + 5.0
    columns = np.stack([np.ones(len(count)), np.log(count / 100.0), told], axis=1)
    improved = (came > IMPROVEMENT).astype(float)

    def loss(weights: np.ndarray) -> float:
        logits = columns @ weights
        return float(np.logaddexp(0.0, logits).sum() - improved @ logits + 0.5 * (weights[1:] ** 2).sum())

    weights = minimize(loss, np.zeros(3)).x
    chance = 1.0 / (1.0 + np.exp(-columns @ weights))
    size = came[chance < 0.05].sum() / chance[chance < 0.05].sum()
    level, age, trust = weights
    return (
        f"level {level:.2f}, age {age:.2f}, trust {trust:.2f}, size {size:.2f} "
        f"({len(count)} moments, {improved.mean():.1%} of them before an improvement)\n"
    )


def read(line: str) -> Followed:
    told = json.loads(line)
    return Followed(**{**told, "moments": [Moment(**each) for each in told["moments"]]})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Where searches would have stopped by themselves.")
    parser.add_argument("--spaces", type=Path, default=SPACES, help="folder with NAME.json and NAME.csv.gz")
    parser.add_argument("--development", action="store_true", help="made-up spaces instead")
    parser.add_argument("--held-out", action="store_true", help="made-up spaces that choose nothing instead")
    parser.add_argument("--seeds", type=int, default=5, help="campaigns on each recorded space, or in all")
    parser.add_argument("--every", type=int, default=EVERY, help="evaluations between two looks")
    parser.add_argument("--fit", action="store_true", help="fit the expectation to these campaigns as well")
    parser.add_argument("--keep", type=Path, help="JSON lines of finished runs: read, and added to")
    parser.add_argument("--out", type=Path, help="write a record in Markdown")
    told = parser.parse_args(arguments)
    if told.development:
        wanted = made_up(DEVELOPMENT, 900, told.seeds)
    elif told.held_out:
        wanted = made_up(HELD_OUT, 2900, told.seeds)
    else:
        wanted = recorded(read_tables(told.spaces), told.seeds)
    kept = told.keep.read_text().splitlines() if told.keep and told.keep.exists() else []
    known = {(run.space, run.seed): run for run in map(read, kept)}
    runs = []
    for make, name, seed in wanted:
        run = known.get((name, seed))
        if run is None:
            run = followed(make(), seed, told.every)
            if told.keep:
                with told.keep.open("a") as file:
                    file.write(json.dumps(asdict(run)) + "\n")
        runs.append(run)
    text = "\n".join([describe(runs, as_it_is), compare(runs), reliability(runs, TODAY)])
    text += "\n" + fitted(runs) if told.fit else ""
    sys.stdout.write(text)
    if told.out:
        command = " ".join(["python -m experiments.studies.search.convergence", *(arguments or sys.argv[1:])])
        told.out.write_text(f"# Searches that stop by themselves\n\n`{command}`\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
