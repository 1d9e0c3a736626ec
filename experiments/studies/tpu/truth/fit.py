"""Constants of the time model from the rows of a truth set that may be fitted to (see ``rows``), chip by chip.

    python -m experiments.studies.tpu.truth.fit FOLDER [--cache FOLDER] [--chip v6e]

Prints the clock, rates (in the ratio of those in use) and latency that fit those rows best, the errors they leave there
and on the rest, and the same for the constants in use. Every lineage weighs the same: its sources differ little, some
compile to the same code. Nothing is compiled and nothing is written.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from experiments.studies.tpu.truth.rows import Row, read_rows
from experiments.studies.tpu.truth.simulated import Run, cached
from tilewright.fitness.tpu.memory import Rules, replay
from tilewright.fitness.tpu.time_model import CALIBRATIONS, kind_of

Measured = tuple[Row, list[Run]]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--chip", choices=sorted(CALIBRATIONS), action="append")
    options = parser.parse_args(arguments)
    cache = options.cache or options.folder / "cache"
    known = []
    for row in read_rows(options.folder):
        runs = [cached(spec, cache) for spec in row.specs(options.folder)]
        done = [run for run in runs if run is not None and not run.failure]
        if len(done) == len(runs):
            known.append((row, done))
    for chip in options.chip or sorted(CALIBRATIONS):
        fitted = [(row, runs) for row, runs in known if row.chip == chip and row.fitted]
        rest = [(row, runs) for row, runs in known if row.chip == chip and not row.fitted]
        used = CALIBRATIONS[chip].rules
        for name, rules in (("in use", used), ("fitted", best_rules(fitted, used))):
            sys.stdout.write(
                f"{chip} {name}: clock {rules.clock / 1e9:.3f} GHz, read {rules.read / 1e12:.3f} TB/s, write "
                f"{rules.write / 1e12:.3f} TB/s, latency {rules.latency * 1e6:.2f} us; "
                f"{_told('fitted rows', residuals(fitted, rules))}; {_told('the rest', residuals(rest, rules))}\n"
            )


def residuals(rows: Sequence[Measured], rules: Rules) -> np.ndarray:
    """log(measured / modelled) of each row."""
    return np.array([np.log(row.seconds / row.modelled(runs, rules)) for row, runs in rows])


def class_of(row: Row, runs: Sequence[Run]) -> str:
    """The class of a row's kernel, whose error its interval is (``time_model.kind_of``)."""
    longest = runs[-1].longest
    passed = replay(row.events(runs[-1]) if row.grouped else longest.events, CALIBRATIONS[row.chip].rules)
    return kind_of("mxu" if row.grouped else "valu", passed.core, passed.memory, passed.step)


def best_rules(rows: Sequence[Measured], start: Rules) -> Rules:
    """The rules that leave the least error on these rows, few far ones counted less; bounded by what is physical."""

    def of(x: np.ndarray) -> Rules:
        return Rules(x[0] * start.clock, x[1] * start.read, x[1] * start.write, x[2] * start.latency)

    lineages = Counter(row.lineage or row.id for row, _ in rows)
    weights = np.array([lineages[row.lineage or row.id] ** -0.5 for row, _ in rows])
    weights /= np.sqrt(np.mean(weights**2))
    found = least_squares(
        lambda x: weights * residuals(rows, of(x)),
        np.ones(3),
        bounds=((0.8, 0.6, 0.25), (1.25, 1.25, 4.0)),
        loss="soft_l1",
        f_scale=0.03,
        diff_step=0.01,
        max_nfev=20,
    )
    return of(found.x)


def _told(name: str, errors: np.ndarray) -> str:
    if not len(errors):
        return f"{name}: none"
    low, high = np.quantile(errors, [0.05, 0.95])
    return f"{name} ({len(errors)}): median error {np.median(abs(errors)):.1%}, 90 % of them {low:+.3f} to {high:+.3f}"


if __name__ == "__main__":
    main(sys.argv[1:])
