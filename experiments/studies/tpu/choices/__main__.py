"""Does the time model choose what the hardware chose? Published winners of tuning, ranked by the model in their sets.

    python -m experiments.studies.tpu.choices FOLDER [--minutes M] [--table NAME] [--chip CHIP] [--seed N]

FOLDER holds the repositories ``tpu-inference`` and ``sglang-jax``; nothing is fetched, and what was compiled is kept in
FOLDER/choices. Compiles what is lacking until the minutes are over, then says of the rows whose set is complete the
rank of the published winner and its regret: its modelled time over the set's best, less 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.tpu.choices.steps import Grid, Simulated, anchors, fits
from experiments.studies.tpu.choices.tables import TABLES, Blocks, Row, candidates, drawn, rows
from tilewright.fitness.tpu.events import Events
from tilewright.fitness.tpu.time_model import CALIBRATIONS, VERSION
from tilewright.workers.toolchains import libtpu_simulator as recipe

DELAYED = ("tpu7x",)
"""Chips on which the simulator aborts on most of these kernels but for delays in their conditional blocks."""


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
    told = [row.table.name, row.chip, blocks, list(small), recipe.toolchain()["libtpu"]]
    return folder / "choices" / f"{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20]}.json"


def _compile(of: Sequence[Row], folder: Path, until: float) -> None:
    """Compile what is lacking, those that most settings need first, one child for a chip after the other."""
    (folder / "choices").mkdir(exist_ok=True)
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
    for chip, wanted in jobs.items():
        settings = sorted(wanted.values(), key=lambda setting: -needed[setting["key"]])
        job = {"chip": chip, "settings": settings, "delays": chip in DELAYED}
        job |= {"root": str(Path(__file__).resolve().parents[4]), "out": str((folder / "choices").resolve())}
        with tempfile.TemporaryDirectory(prefix="tpu_choices_") as name:
            place = Path(name)
            (place / "job.json").write_text(json.dumps(job))
            environment = {**os.environ, **recipe.compile_environment(place, delays=chip in DELAYED)}
            command = [sys.executable, str(Path(__file__).with_name("child.py")), "job.json"]
            process = subprocess.Popen(command, cwd=place, env=environment, start_new_session=True)
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


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
    fact: dict[str, Any] = {
        "table": row.table.name,
        "chip": row.chip,
        "shape": row.shape,
        "winner": row.winner,
    }
    fact["misfits"] = sum(not fits(row, blocks) for blocks in candidates(row))
    fact |= {
        "failures": failures,
        "us": {str(blocks): round(1e6 * each, 2) for blocks, each in times.items()},
    }
    if row.winner in times:
        best = min(times, key=times.__getitem__)
        rank = 1 + sum(seconds < times[row.winner] for seconds in times.values())
        fact |= {"best": best, "rank": rank, "regret": times[row.winner] / times[best] - 1}
    return fact


@cache
def _simulated(path: Path, small: Grid) -> Simulated:
    told = json.loads(path.read_text())
    if told["failure"]:
        raise ValueError(told["failure"])
    events = Events(*(np.array(told[name], np.int64) for name in ("work", "kinds", "sizes", "ready")))
    return Simulated.of(events, small)


def report(facts: Sequence[dict[str, Any]], asked: int) -> str:
    """The table, in Markdown."""
    head = "table, chip, rows of x, rows, not modelled, settings, do not fit, top 5, first, median regret"
    lines = [f"Time model {VERSION}; {len(facts)} of {asked} rows complete.", ""]
    lines += [f"| {' | '.join((*head.split(', '), '90 %', 'worst'))} |", "|" + " --- |" * 12]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for fact in facts:
        for count in ("all", fact["shape"][0]):
            groups[fact["table"], fact["chip"], count].append(fact)
    for name, of in groups.items():
        known = [fact for fact in of if "rank" in fact]
        regrets, ranks = (np.array([fact[key] for fact in known] or [np.nan]) for key in ("regret", "rank"))
        sizes = [
            int(np.median([size(fact) for fact in of]))
            for size in (lambda f: len(f["us"]), lambda f: f["misfits"])
        ]
        cells = [*name, len(of), len(of) - len(known), *sizes]
        shares = [np.mean(ranks <= 5), np.mean(ranks == 1)]
        told = [f"{v:.0%}" for v in shares] + [f"{v:.1%}" for v in np.quantile(regrets, [0.5, 0.9, 1.0])]
        lines.append(f"| {' | '.join(map(str, [*cells, *told]))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
