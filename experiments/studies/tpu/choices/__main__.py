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
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.tpu.choices.steps import Grid, Simulated
from experiments.studies.tpu.choices.tables import TABLES, Blocks, Row, Table, candidates, drawn, rows
from tilewright.fitness.tpu.events import Events
from tilewright.fitness.tpu.time_model import CALIBRATIONS, VERSION
from tilewright.workers.toolchains import libtpu_simulator as recipe

FLAGS = {"v6e": "", "tpu7x": "--xla_tpu_extra_hoisting_range_for_register_producers=0"}
"""Without it the simulator aborts on more kernels on tpu7x ("FIFO is full"); others change by up to 1.5 %."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", choices=[table.name for table in TABLES], action="append")
    parser.add_argument("--chip", choices=["v6e", "tpu7x"], action="append")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--each", type=int, default=6, help="rows for every count of rows of x")
    parser.add_argument(
        "--most", type=int, default=256, help="rows of x; from 512 on XLA moves it to VMEM before"
    )
    parser.add_argument("--settings", type=int, default=10, help="in a set")
    told = parser.parse_args(arguments)
    sets = [
        (row, candidates(row, told.settings, told.seed))
        for table in TABLES
        if not told.table or table.name in told.table
        for chip in told.chip or ("v6e", "tpu7x")
        for row in drawn(rows(table, told.folder, chip), told.each, told.most, told.seed)
    ]
    _compile(sets, told.folder, time.monotonic() + 60 * told.minutes)
    facts = [fact for row, settings in sets if (fact := judged(row, settings, told.folder))]
    (told.folder / "choices" / "facts.json").write_text(json.dumps(facts, indent=1))
    sys.stdout.write(report(facts, len(sets)))


def _kept(folder: Path, row: Row, blocks: Blocks) -> Path:
    """The file of what is compiled for a setting: a small product that rows of one table share."""
    small = list(Grid.of(row.shape, blocks).small(row.chip))
    told = [row.table.name, row.chip, blocks, small, recipe.toolchain()["libtpu"]]
    return folder / "choices" / f"{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20]}.json"


def _compile(sets: Sequence[tuple[Row, list[Blocks]]], folder: Path, until: float) -> None:
    """Compile what is lacking, one child for a table and chip after the other."""
    (folder / "choices").mkdir(exist_ok=True)
    jobs: dict[tuple[Table, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row, settings in sets:
        for blocks in settings:
            if not (path := _kept(folder, row, blocks)).exists():
                small = Grid.of(row.shape, blocks).small(row.chip)
                shape = [count * block for count, block in zip(small, blocks, strict=True)]
                jobs[row.table, row.chip][path.stem] = {"key": path.stem, "shape": shape, "blocks": blocks}
    for (table, chip), wanted in jobs.items():
        job = {"chip": chip, "block": table.block, "types": table.types, "settings": list(wanted.values())}
        places = {
            "root": Path(__file__).parents[4],
            "module": folder / table.module,
            "out": folder / "choices",
        }
        job |= {name: str(path.resolve()) for name, path in places.items()}
        with tempfile.TemporaryDirectory(prefix="tpu_choices_") as name:
            place = Path(name)
            (place / "job.json").write_text(json.dumps(job))
            environment = {**os.environ, **recipe.compile_environment(place)}
            environment["LIBTPU_INIT_ARGS"] += f" {FLAGS[chip]}"
            command = [sys.executable, str(Path(__file__).with_name("child.py")), "job.json"]
            process = subprocess.Popen(command, cwd=place, env=environment, start_new_session=True)
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def judged(row: Row, settings: Sequence[Blocks], folder: Path) -> dict[str, Any] | None:
    """What the model says of a row's set; None where some of it is not compiled yet."""
    times: dict[Blocks, float] = {}
    failures: dict[str, str] = {}
    for blocks in settings:
        if not (path := _kept(folder, row, blocks)).exists():
            return None
        told = json.loads(path.read_text())
        try:
            if told["failure"]:
                raise ValueError(told["failure"])
            events = Events(*(np.array(told[name], np.int64) for name in ("work", "kinds", "sizes", "ready")))
            simulated = Simulated.of(events, Grid.of(row.shape, blocks).small(row.chip), row, blocks)
            times[blocks] = simulated.seconds(Grid.of(row.shape, blocks), CALIBRATIONS[row.chip].rules)
        except ValueError as error:
            failures[str(blocks)] = str(error)
    fact: dict[str, Any] = {
        "table": row.table.name,
        "chip": row.chip,
        "shape": row.shape,
        "winner": row.winner,
    }
    fact["failures"] = failures
    fact["us"] = {str(blocks): round(1e6 * seconds, 2) for blocks, seconds in times.items()}
    if row.winner in times:
        best = min(times, key=times.__getitem__)
        rank = 1 + sum(seconds < times[row.winner] for seconds in times.values())
        fact |= {"best": best, "rank": rank, "regret": times[row.winner] / times[best] - 1}
    return fact


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
        misfits = sum("RESOURCE_EXHAUSTED" in why for fact in of for why in fact["failures"].values())
        cells = [*name, len(of), len(of) - len(known), int(np.median([len(f["us"]) for f in of])), misfits]
        shares = [np.mean(ranks <= 5), np.mean(ranks == 1)]
        told = [f"{v:.0%}" for v in shares] + [f"{v:.1%}" for v in np.quantile(regrets, [0.5, 0.9, 1.0])]
        lines.append(f"| {' | '.join(map(str, [*cells, *told]))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
