"""Spaces on which choices of the search are made, so that the four recorded ones are left to judge it.

    python -m experiments.studies.search.development --seeds 10 --budget 100
    python -m experiments.studies.search.development --change surrogate.view.EXPLOIT_EVERY=2

Made-up kernels (``families``, and with ``--rough`` those of ``rough``) under seeds from 100 on; ``--held-out`` runs
those that choose nothing. ``--change`` gives constants of ``evolve.proposers`` other values (several at once are joined
by ``+``) and reports the difference, seed by seed, with its standard error. Scores as in ``search_efficiency``.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import multiprocessing
import os
import sys
from collections.abc import Sequence

import numpy as np

from experiments.studies.search import families, rough
from testkit.spaces.campaigns import Run, Setting, run_search

FIRST_SEED = 100
MARKS = (15, 25, 50, 100, 200)

SPACES = {**families.DEVELOPMENT, **families.HELD_OUT, **rough.DEVELOPMENT, **rough.HELD_OUT}


def _task(task: tuple[str, int, int, int, tuple[str, ...]]) -> list[Run]:
    """All runs of one space, the same seeds for everybody."""
    name, seeds, budget, lag, changes = task
    for change in changes:
        _change(change)
    table = SPACES[name]()
    return [run_search(table, FIRST_SEED + seed, Setting(budget, lag)) for seed in range(seeds)]


def _change(change: str) -> None:
    """Give a constant another value, wherever this process has imported it."""
    place, _, text = change.partition("=")
    module, _, name = place.rpartition(".")
    getattr(importlib.import_module(f"tilewright.evolve.proposers.{module}"), name)
    for other in [m for key, m in sys.modules.items() if key.startswith("tilewright.evolve.proposers")]:
        if hasattr(other, name):
            setattr(other, name, ast.literal_eval(text))


def _curves(told: argparse.Namespace, names: Sequence[str], changes: tuple[str, ...]) -> np.ndarray:
    """Scores [spaces, seeds, budget]."""
    tasks = [(name, told.seeds, told.budget, told.lag, changes) for name in names]
    with multiprocessing.get_context("spawn").Pool(max(1, told.jobs), maxtasksperchild=1) as pool:
        runs = pool.map(_task, tasks, chunksize=1)
    return np.array([[run.curve for run in mine] for mine in runs])


def describe(names: Sequence[str], curves: np.ndarray) -> str:
    """A table of medians at each mark."""
    marks = [mark for mark in MARKS if mark <= curves.shape[2]]
    lines = [
        "| space | " + " | ".join(f"n={mark}" for mark in marks) + " |",
        "| --- |" + " --- |" * len(marks),
    ]
    for name, scores in zip(names, curves, strict=True):
        medians = np.median(scores[:, [mark - 1 for mark in marks]], axis=0)
        lines.append(f"| {name} | " + " | ".join(f"{score:.3f}" for score in medians) + " |")
    means = curves.mean(axis=(0, 1))[[mark - 1 for mark in marks]]
    lines.append("| mean of all runs | " + " | ".join(f"{score:.4f}" for score in means) + " |")
    return "\n".join(lines)


def compare(change: str, base: np.ndarray, changed: np.ndarray) -> str:
    """One line: what a change does to the mean score at each mark, with its standard error."""
    apart = (changed - base).reshape(-1, base.shape[2])
    errors = apart.std(axis=0, ddof=1) / math.sqrt(len(apart))
    parts = [
        f"n={mark} {apart[:, mark - 1].mean():+.4f} ± {errors[mark - 1]:.4f}"
        for mark in MARKS
        if mark <= base.shape[2]
    ]
    return f"{change}: " + ", ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Choices of the search on development spaces.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--change", nargs="*", default=[], help="MODULE.CONSTANT=VALUE, one at a time")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lag", type=int, default=1, help="evaluations in flight")
    parser.add_argument("--rough", action="store_true", help="spaces as rough as recorded ones")
    parser.add_argument("--held-out", action="store_true", help="spaces that choose nothing")
    told = parser.parse_args(arguments)
    known = rough if told.rough else families
    names = list(known.HELD_OUT if told.held_out else known.DEVELOPMENT)
    base = _curves(told, names, ())
    sys.stdout.write(describe(names, base) + "\n\n")
    for change in told.change:
        changed = _curves(told, names, tuple(change.split("+")))
        sys.stdout.write(compare(change, base, changed) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
