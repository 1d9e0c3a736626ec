"""How good is the best configuration after n evaluations? The campaign code, driven on recorded spaces.

    python -m experiments.studies.search.efficiency --seeds 30 --out experiments/records/search/search_efficiency

Score after n evaluations: optimum / best so far, 0 while nothing valid was found; failures count as evaluations.
Per space the median over seeds, then the mean over spaces, with a bootstrap interval over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.studies.search.tables import SPACES, Table, TableEvaluator, read_tables
from tilewright.evolve.campaign.evaluator import Job
from tilewright.evolve.campaign.loop import Budget, Campaign, Plan, Record, Searcher, Start
from tilewright.evolve.campaign.selection import contenders, race
from tilewright.evolve.campaign.transfer import Earlier, Led, leads_of, records_of
from tilewright.evolve.proposers.local_search import LocalSearch
from tilewright.evolve.proposers.parameter_crossover import ParameterCrossover
from tilewright.evolve.proposers.portfolio import Portfolio
from tilewright.evolve.proposers.surrogate.local_moves import KnownSpaces, ParameterProposer
from tilewright.evolve.proposers.surrogate.proposer import SurrogateProposer
from tilewright.evolve.record.archive import Archive
from tilewright.evolve.record.history import Candidate, Proposer
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation

MARKS = (25, 50, 100, 200)
WITHIN = 0.95
"""A run counts as having arrived when it is within 5 % of the optimum."""

ISLANDS = 2
MIGRATION_INTERVAL = 20

PROPOSERS = ("parameters", "surrogate", "crossover", "local_search")


@dataclass(frozen=True)
class Setting:
    """One way to run the benchmark. ``noise`` is the relative standard deviation of a reading."""

    budget: int = 200
    lag: int = 1
    noise: float = 0.0
    proposers: tuple[str, ...] = PROPOSERS


@dataclass(frozen=True)
class Run:
    """One campaign on one table. ``curve`` [budget]: true score of the best true configuration so far.

    ``selected`` is the true score of what a user would be handed: the winner of the re-measurement when
    there is noise, else the best. ``lucky`` is the true score of the best single reading.
    """

    space: str
    seed: int
    curve: np.ndarray
    selected: float
    lucky: float
    remeasured: int
    cpu_seconds: float
    sequence: tuple[str, ...]
    """Genome ids in order of proposal."""


class Nowhere:
    """A record nobody keeps."""

    def add_candidate(self, candidate: Candidate) -> None: ...

    def add_evaluation(self, index: int, evaluation: Evaluation) -> None: ...


def table_campaign(
    table: Table, seed: int, setting: Setting, earlier: Sequence[Earlier] = (), record: Record | None = None
) -> Campaign:
    """A campaign on a table from a random legal point, or from the best that ``earlier`` campaigns found."""
    archive = Archive(ISLANDS, MIGRATION_INTERVAL)
    records = records_of(earlier, table.space_of)
    spaces = KnownSpaces(table.space_of)
    builders: dict[str, Callable[[], Proposer]] = {
        "parameters": lambda: ParameterProposer(archive, spaces),
        "surrogate": lambda: SurrogateProposer(archive, spaces, records),
        "crossover": lambda: ParameterCrossover(archive, spaces),
        "local_search": lambda: LocalSearch(spaces),
    }
    searcher: Searcher = Portfolio([builders[name]() for name in setting.proposers])
    leads = leads_of(earlier, table.space_of)
    start = Start("random", table.random_genome(np.random.default_rng([seed, 1])))
    if leads:
        start, searcher = Start("lead", leads[0]), Led(leads[1:], searcher)
    plan = Plan(
        [start], Budget(evaluations=setting.budget), seed, setting.lag, islands=ISLANDS, must_pass=False
    )
    evaluator = TableEvaluator(table, setting.lag, setting.noise)
    return Campaign(plan, searcher, archive, evaluator, record or Nowhere())


def run_search(table: Table, seed: int, setting: Setting) -> Run:
    """One campaign from a random legal point."""
    began = time.process_time()
    campaign = table_campaign(table, seed, setting)
    campaign.run()
    proposed = campaign.history.candidates
    scores = np.zeros(setting.budget)
    scores[: len(proposed)] = [table.fraction(candidate.genome) for candidate in proposed]
    curve = np.maximum.accumulate(scores)
    lucky = table.fraction(campaign.history.best[0].genome) if campaign.history.best else 0.0
    selected, spent = float(curve[-1]), 0
    if setting.noise:
        selected, spent = _select(table, campaign, setting.noise, seed)
    cpu = time.process_time() - began
    sequence = tuple(candidate.genome.id for candidate in proposed)
    return Run(table.name, seed, curve, selected, lucky, spent, cpu, sequence)


def _select(table: Table, campaign: Campaign, noise: float, seed: int) -> tuple[float, int]:
    """True score of the re-measured winner, and the measurements that took."""
    readings = [(c.genome, e.fitness) for c, e in campaign.history.evaluated if e.fitness is not None]
    evaluator = TableEvaluator(table, noise=noise)
    places = {genome.id: number for number, (genome, _) in enumerate(readings)}
    spent = 0

    def measure(genome: Genome, number: int) -> float | None:
        nonlocal spent
        spent += 1
        rng = np.random.default_rng([seed, 2, number, places[genome.id]])
        return evaluator.evaluate(Job(-1, genome, int(rng.integers(2**31)))).fitness

    winner = race(contenders(readings, noise), measure)
    return (table.fraction(winner) if winner else 0.0), spent


@dataclass(frozen=True)
class Summary:
    """Scores at each mark. ``spaces`` maps a name to its medians; intervals are 95 % bootstrap over seeds."""

    marks: tuple[int, ...]
    spaces: dict[str, list[float]]
    mean: list[float]
    interval: list[tuple[float, float]]
    worst: list[float]
    arrived: float
    """Share of runs within 5 % of the optimum at the end of the budget."""


def summarise(runs: Sequence[Run], resamples: int = 2000) -> Summary:
    budget = len(runs[0].curve)
    marks = tuple(mark for mark in MARKS if mark <= budget)
    by_space: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(run.space for run in runs):
        by_space[name] = np.array([[run.curve[m - 1] for m in marks] for run in runs if run.space == name])
    medians = {name: np.median(scores, axis=0).tolist() for name, scores in by_space.items()}
    rng = np.random.default_rng(0)
    drawn = np.zeros((resamples, len(marks)))
    for scores in by_space.values():
        picks = rng.integers(len(scores), size=(resamples, len(scores)))
        drawn += np.median(scores[picks], axis=1) / len(by_space)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    table = np.array(list(medians.values()))
    arrived = float(np.mean([run.curve[-1] >= WITHIN for run in runs]))
    interval = list(zip(low.tolist(), high.tolist(), strict=True))
    return Summary(marks, medians, table.mean(axis=0).tolist(), interval, table.min(axis=0).tolist(), arrived)


def _task(task: tuple[Path, str, int, Setting]) -> Run:
    folder, name, seed, setting = task
    if folder not in _TABLES:
        _TABLES[folder] = {table.name: table for table in read_tables(folder)}
    return run_search(_TABLES[folder][name], seed, setting)


_TABLES: dict[Path, dict[str, Table]] = {}
"""Tables this process has read; filled by the first task of a worker."""


class Kept:
    """Runs in a file of JSON lines, so that a long benchmark can go on where it was interrupted."""

    def __init__(self, path: Path | None, setting: Setting) -> None:
        self._path, self._setting = path, asdict(setting)
        self.runs: dict[tuple[str, int], Run] = {}
        lines = path.read_text().splitlines() if path and path.is_file() else []
        for told in map(json.loads, lines):
            if told.pop("setting") == json.loads(json.dumps(self._setting)):
                run = Run(**{**told, "curve": np.array(told["curve"]), "sequence": tuple(told["sequence"])})
                self.runs[run.space, run.seed] = run

    def add(self, run: Run) -> None:
        self.runs[run.space, run.seed] = run
        if self._path:
            with self._path.open("a") as file:
                told = {**asdict(run), "curve": run.curve.tolist(), "setting": self._setting}
                file.write(json.dumps(told) + "\n")


def run_all(
    folder: Path, names: Sequence[str], seeds: int, setting: Setting, jobs: int, keep: Path | None = None
) -> list[Run]:
    """Every space under every seed, ``jobs`` at a time; the order of the answer is fixed. Runs that the file
    ``keep`` holds are taken from there, others added to it."""
    kept = Kept(keep, setting)
    wanted = [(name, seed) for name in names for seed in range(seeds)]
    tasks = [(folder, name, seed, setting) for name, seed in wanted if (name, seed) not in kept.runs]
    if jobs <= 1:
        _count(map(_task, tasks), len(tasks), kept)
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            _count(pool.imap(_task, tasks), len(tasks), kept)
    return [kept.runs[place] for place in wanted]


def _count(runs: Iterable[Run], expected: int, kept: Kept) -> None:
    """Keep all of them, with a line on stderr for each."""
    for number, run in enumerate(runs, 1):
        kept.add(run)
        scores = " ".join(f"{run.curve[m - 1]:.3f}" for m in MARKS if m <= len(run.curve))
        sys.stderr.write(f"{number}/{expected} {run.space} seed {run.seed}: {scores}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score of the search on recorded spaces.")
    parser.add_argument("--spaces", type=Path, default=SPACES, help="folder with NAME.json and NAME.csv.gz")
    parser.add_argument("--only", nargs="*", help="names of spaces; default all")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--lag", type=int, default=1, help="evaluations in flight")
    parser.add_argument("--noise", type=float, default=0.0, help="relative standard deviation of a reading")
    parser.add_argument("--proposers", nargs="*", choices=PROPOSERS, default=None)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="file of finished runs, which are not run again")
    parser.add_argument("--out", type=Path, help="write PATH.md, PATH.csv and PATH.png")
    told = parser.parse_args(arguments)
    names = told.only or [table.name for table in read_tables(told.spaces)]
    proposers = tuple(told.proposers or Setting.proposers)
    setting = Setting(told.budget, told.lag, told.noise, proposers)
    runs = run_all(told.spaces.resolve(), names, told.seeds, setting, told.jobs, told.keep)

    from experiments.studies.search.report import describe, write_report

    command = " ".join(["python -m experiments.studies.search.efficiency", *(arguments or sys.argv[1:])])
    sys.stdout.write(describe(runs, setting))
    if told.out:
        write_report(told.out, runs, setting, command)
    return 0 if all(math.isfinite(run.selected) for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
