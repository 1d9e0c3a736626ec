"""Does the time model choose what the hardware chose? Published winners of tuning, ranked by the model in their sets.

    python -m experiments.studies.tpu.choices FOLDER [--minutes M] [--table NAME] [--chip CHIP] [--seed N]

FOLDER holds the repositories ``tpu-inference`` and ``sglang-jax``; nothing is fetched, and what was compiled is kept in
FOLDER/choices. Compiles what is lacking until the minutes are over, then says of the rows whose set is complete the
rank of the published winner and its regret: its modelled time over the set's best, less 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from experiments.studies.tpu.choices.ranked_sets import compile_all, events_of, fact_of, key_of, report
from experiments.studies.tpu.choices.steps import Grid, Simulated, anchors, fits
from experiments.studies.tpu.choices.tables import TABLES, Blocks, Row, candidates, drawn, rows
from tilewright.fitness.tpu.time_model import CALIBRATIONS
from tilewright.workers.toolchains import libtpu_simulator as recipe


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", choices=[table.name for table in TABLES], action="append")
    parser.add_argument("--chip", choices=["v6e", "tpu7x"], action="append")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--each", type=int, default=6, help="rows for every count of rows of x")
    parser.add_argument("--most", type=int, default=1 << 14, help="rows of x")
    told = parser.parse_args(arguments)
    of = [
        row
        for table in TABLES
        if not told.table or table.name in told.table
        for chip in told.chip or ("v6e", "tpu7x")
        for row in drawn(rows(table, told.folder, chip), told.each, told.most, told.seed)
    ]
    until = time.monotonic() + 60 * told.minutes
    _compile(of, told.folder, until)
    facts = [fact for row in of if (fact := judged(row, told.folder))]
    (told.folder / "choices" / f"facts{told.seed}.json").write_text(json.dumps(facts, indent=1))
    sys.stdout.write(report(facts, len(of)))


def _kept(folder: Path, row: Row, small: Grid, blocks: Blocks) -> Path:
    """The file of what is compiled: a small product that rows of one table share."""
    told = [row.table.name.split(",")[0], row.chip, blocks, list(small), recipe.toolchain()["libtpu"]]
    return folder / "choices" / f"{key_of(told)}.json"


def _compile(of: Sequence[Row], folder: Path, until: float) -> None:
    """Compile what is lacking."""
    jobs: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    needed: Counter[str] = Counter()
    for row in of:
        for setting in filter(partial(fits, row), candidates(row)):
            small = Grid.of(row.shape, setting).small(row.table.block)
            for blocks in anchors(setting):
                if (path := _kept(folder, row, small, blocks)).exists():
                    continue
                needed[path.stem] += 1
                shape = [count * block for count, block in zip(small, blocks, strict=False)]
                job = {"key": path.stem, "module": str((folder / row.table.module).resolve()), "shape": shape}
                jobs[row.chip][path.stem] = job | {
                    "block": row.table.block,
                    "types": row.table.types,
                    "blocks": blocks,
                }
    compile_all(jobs, needed, folder, until)


def judged(row: Row, folder: Path) -> dict[str, Any] | None:
    """What the model says of a row's set; None where some of it is not compiled yet."""
    times: dict[Blocks, float] = {}
    failures: dict[str, str] = {}
    for blocks in filter(partial(fits, row), candidates(row)):
        grid = Grid.of(row.shape, blocks)
        small = grid.small(row.table.block)
        paths = {each: _kept(folder, row, small, each) for each in anchors(blocks)}
        if not all(path.exists() for path in paths.values()):
            return None
        try:
            found = {each: _simulated(path, small) for each, path in paths.items()}
            simulated = Simulated.between(found, row, blocks)
            times[blocks] = simulated.seconds(grid, CALIBRATIONS[row.chip].rules)
        except ValueError as error:
            failures[str(blocks)] = str(error)
    misfits = sum(not fits(row, blocks) for blocks in candidates(row))
    return fact_of(row.table.name, row.chip, row.shape, row.winner, times, failures, misfits)


@cache
def _simulated(path: Path, small: Grid) -> Simulated:
    return Simulated.of(events_of(path), small)


if __name__ == "__main__":
    main(sys.argv[1:])
