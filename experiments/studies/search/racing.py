"""What racing inside a campaign saves, and what it costs: the campaign code on recorded suites, with and without.

    python -m experiments.studies.search.racing --seeds 10 --out experiments/records/search/search_racing.md

Cost is workloads measured; quality is the true fitness of the winner over the suite's optimum. A wrong stop is a
stopped candidate whose true fitness is above the winner's at the end of its campaign.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from testkit.spaces.campaigns import ISLANDS, MIGRATION_INTERVAL, Nowhere
from testkit.spaces.suites import SuiteEvaluator, SuiteTable, joined, made_up
from testkit.spaces.tables import SPACES, read_table, read_tables
from testkit.spaces.transfer import suites as recorded_suites
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Start
from tilewright.evolve.campaign.racing import Racing
from tilewright.evolve.proposers.local_search import LocalSearch
from tilewright.evolve.proposers.parameter_crossover import ParameterCrossover
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.surrogate.local_moves import ParameterProposer
from tilewright.evolve.proposers.surrogate.proposer import SurrogateProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import FigureKind, Verdict

BUDGET = 140
LAG = 4
NOISE = 0.01
"""Relative standard deviation of a reading of a measured suite: a screen's median of five calls on an H200."""

MADE_UP = (("gemm_rtx3090", 0.03), ("gemm_rtx3090", 0.1), ("conv_a100", 0.03), ("conv_a100", 0.1))
WORKLOADS = 12

NOTE = f"""Campaigns of {BUDGET} evaluations (fewer where a suite has fewer points), {LAG} in flight, means over seeds.
Suites of `h200` are measured and of `tpu7x` modelled recordings of our own, a table a workload. `spread` s: a
third-party table whose {WORKLOADS} workloads are made up: each multiplies the recorded time of a point by effects of
its own, of standard deviation s in log time, for every value of every parameter. Readings of measured and made-up
suites have {NOISE:.0%} noise.

`measured`: workloads measured in a campaign. `winner`: true fitness of the best reading over the suite's optimum; the
last such column is the search without racing when it had measured as much as racing did in all. `wrongly`: stopped
although truly fitter than the winner.
"""


@dataclass(frozen=True)
class Run:
    """One campaign. After each candidate, ``spent``: workloads measured; ``scores``: true score of the best reading."""

    suite: str
    seed: int
    racing: bool
    workloads: int
    spent: np.ndarray
    scores: np.ndarray
    stopped: int
    wrong: int

    def score_at(self, spent: float) -> float:
        """Of the best when so many workloads had been measured."""
        place = int(np.searchsorted(self.spent, spent, side="right")) - 1
        return float(self.scores[max(place, 0)])


def all_suites() -> dict[str, SuiteTable]:
    """Recorded shapes of our own, and made-up workloads of third-party tables."""
    found = {}
    for name, tables in recorded_suites(read_tables(SPACES / "own")).items():
        kind = FigureKind.MEASURED if name.startswith("h200") else FigureKind.MODELLED
        found[name] = joined(name, tables, kind)
    for name, spread in MADE_UP:
        suite = made_up(read_table(SPACES / f"{name}.json"), WORKLOADS, spread)
        found[suite.name] = suite
    return found


def run_search(suite: SuiteTable, seed: int, racing: bool) -> Run:
    """One campaign from a random point; integration in index order."""
    archive = Archive(ISLANDS, MIGRATION_INTERVAL)
    proposers = [
        ParameterProposer(archive, suite.space_of),
        SurrogateProposer(archive, suite.space_of),
        ParameterCrossover(archive, suite.space_of),
        LocalSearch(suite.space_of),
    ]
    genome = Genome(suite.kernel, suite.space.sample(np.random.default_rng([seed, 1])))
    budget = min(BUDGET, len(suite.times))
    plan = Plan(
        [Start("random", genome)], Budget(evaluations=budget), seed, LAG, islands=ISLANDS, must_pass=False
    )
    noise = NOISE if suite.kind is FigureKind.MEASURED else 0.0
    evaluator = SuiteEvaluator(suite, LAG, noise)
    racer = Racing(suite.workloads, archive) if racing else None
    campaign = Campaign(plan, Portfolio(proposers), archive, evaluator, Nowhere(), racer=racer)
    campaign.run()
    return _read(suite, seed, racing, campaign, evaluator)


def _read(suite: SuiteTable, seed: int, racing: bool, campaign: Campaign, evaluator: SuiteEvaluator) -> Run:
    best, true, scores, stopped = 0.0, 0.0, [], []
    for candidate, evaluation in campaign.history.evaluated:
        if evaluation.fitness is not None and evaluation.fitness > best:
            best, true = evaluation.fitness, suite.fraction(candidate.genome)
        if evaluation.verdict is Verdict.OUTPACED:
            stopped.append(suite.fraction(candidate.genome))
        scores.append(true)
    spent = np.cumsum([evaluator.spent[c.index] for c, _ in campaign.history.evaluated])
    wrong = sum(score > true for score in stopped)
    return Run(suite.name, seed, racing, len(suite.workloads), spent, np.array(scores), len(stopped), wrong)


_SUITES: dict[str, SuiteTable] = {}
"""Filled by the first task of a worker."""


def _task(task: tuple[str, int, bool]) -> Run:
    if not _SUITES:
        _SUITES.update(all_suites())
    name, seed, racing = task
    return run_search(_SUITES[name], seed, racing)


def describe(runs: Sequence[Run]) -> str:
    """Means by suite in Markdown."""
    lines = [
        "| suite | workloads | measured without | measured with | share | winner without | winner with | "
        "without, at the cost of with | stopped | wrongly |",
        "| --- |" + " --- |" * 9,
    ]
    for name in dict.fromkeys(run.suite for run in runs):
        whole = [run for run in runs if run.suite == name and not run.racing]
        raced = [run for run in runs if run.suite == name and run.racing]
        cost = [float(np.mean([run.spent[-1] for run in some])) for some in (whole, raced)]
        final = [float(np.mean([run.scores[-1] for run in some])) for some in (whole, raced)]
        same = np.mean([w.score_at(r.spent[-1]) for w, r in zip(whole, raced, strict=True)])
        lines.append(
            f"| {name} | {whole[0].workloads} | {cost[0]:.0f} | {cost[1]:.0f} | {cost[1] / cost[0]:.2f} | "
            f"{final[0]:.4f} | {final[1]:.4f} | {same:.4f} | {np.mean([r.stopped for r in raced]):.1f} | "
            f"{np.mean([r.wrong for r in raced]):.2f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Racing on recorded suites.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", help="names of suites; default all")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write a record in Markdown")
    told = parser.parse_args(arguments)
    names = told.only or list(all_suites())
    tasks = [(name, seed, racing) for name in names for seed in range(told.seeds) for racing in (False, True)]
    with multiprocessing.get_context("spawn").Pool(max(1, told.jobs)) as pool:
        runs = pool.map(_task, tasks, chunksize=1)
    table = describe(runs)
    sys.stdout.write(table)
    if told.out:
        command = " ".join(["python -m experiments.studies.search.racing", *(arguments or sys.argv[1:])])
        about = f"`{command}`, {time.strftime('%Y-%m-%d')}, python {platform.python_version()}, numpy {np.__version__}"
        told.out.write_text(f"# Racing inside campaigns, on recorded suites\n\n{about}.\n\n{NOTE}\n{table}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
