"""How good is the best configuration after n evaluations? The campaign code, driven on recorded spaces.

    python -m experiments.studies.search.efficiency --seeds 30 --out RECORD

Score after n evaluations: optimum / best so far, 0 while nothing valid was found; failures count as evaluations.
Per space the median over seeds, then the mean over spaces, with a bootstrap interval over seeds.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from testkit.spaces.campaigns import PROPOSERS, Run, Setting, run_search
from testkit.spaces.tables import SPACES, Table, read_tables

MARKS = (25, 50, 100, 200)
WITHIN = 0.95
"""A run counts as having arrived when it is within 5 % of the optimum."""


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
        for row in map(json.loads, lines):
            if row.pop("setting") == json.loads(json.dumps(self._setting)):
                run = Run(**{**row, "curve": np.array(row["curve"]), "sequence": tuple(row["sequence"])})
                self.runs[run.space, run.seed] = run

    def add(self, run: Run) -> None:
        self.runs[run.space, run.seed] = run
        if self._path:
            with self._path.open("a") as file:
                row = {**asdict(run), "curve": run.curve.tolist(), "setting": self._setting}
                file.write(json.dumps(row) + "\n")


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
    parser.add_argument("--out", type=Path, help="write PATH.md and PATH.csv")
    options = parser.parse_args(arguments)
    names = options.only or [table.name for table in read_tables(options.spaces)]
    proposers = tuple(options.proposers or Setting.proposers)
    setting = Setting(options.budget, options.lag, options.noise, proposers)
    runs = run_all(options.spaces.resolve(), names, options.seeds, setting, options.jobs, options.keep)

    from experiments.studies.search.report import describe, write_report

    command = " ".join(["python -m experiments.studies.search.efficiency", *(arguments or sys.argv[1:])])
    sys.stdout.write(describe(runs, setting))
    if options.out:
        write_report(options.out, runs, setting, command)
    return 0 if all(math.isfinite(run.handed) for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
