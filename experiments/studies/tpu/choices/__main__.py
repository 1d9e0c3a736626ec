"""Does the time model choose what the hardware chose? Published winners of tuning, ranked by the model in their sets.

    python -m experiments.studies.tpu.choices FOLDER [--minutes M] [--table NAME] [--chip CHIP] [--seed N] [--new N]

FOLDER holds the repository ``tpu-inference`` (``b8692ff0``, and ``tpu-inference-0786c01d`` and ``-4fcf78eb`` with older
tables); nothing is fetched, and what was compiled is kept in FOLDER/choices. Compiles what is lacking until the minutes
are over, then says of the rows whose set is complete the rank of the published winner and its regret: its modelled time
over the set's best, less 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.tpu.choices.settings import anchors, fits, seconds
from experiments.studies.tpu.choices.tables import MODULE, TABLES, Blocks, Row, candidates, drawn, rows
from tilewright.fitness.tpu.time_model import VERSION
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
    parser.add_argument(
        "--new", type=int, action="append", default=[], help="leave out rows that this seed drew"
    )
    parser.add_argument("--each", type=int, default=6, help="rows for every count of rows of x")
    told = parser.parse_args(arguments)
    of: list[Row] = []
    for table in TABLES:
        for chip in told.chip or ("v6e", "tpu7x"):
            if not told.table or table.name in told.table:
                whole = rows(table, told.folder, chip)
                seen = {row.shape for seed in told.new for row in drawn(whole, told.each, seed)}
                of += [row for row in drawn(whole, told.each, told.seed) if row.shape not in seen]
    place = told.folder / "choices"
    place.mkdir(exist_ok=True)
    compile_all(of, told.folder, time.monotonic() + 60 * told.minutes)
    facts = [fact for row in of if (fact := judged(row, place))]
    (place / f"facts{told.seed}.json").write_text(json.dumps(facts, indent=1))
    sys.stdout.write(report(facts, len(of)))


def compile_all(of: Sequence[Row], folder: Path, until: float) -> None:
    """Compile what is lacking, what most settings need first, one child for a chip after the other."""
    jobs: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    needed: Counter[str] = Counter()
    for row in of:
        for blocks in (each for each in candidates(row) if fits(row, each)):
            for job in anchors(row, blocks).values():
                if not (folder / "choices" / f"{job['key']}.json").exists():
                    jobs[row.chip][job["key"]] = job
                    needed[job["key"]] += 1
    for chip, wanted in jobs.items():
        settings = sorted(wanted.values(), key=lambda setting: -needed[setting["key"]])
        job = {"chip": chip, "settings": settings, "delays": chip in DELAYED}
        job |= {"root": str(Path(__file__).resolve().parents[4]), "module": str((folder / MODULE).resolve())}
        with tempfile.TemporaryDirectory(prefix="tpu_choices_") as name:
            told = json.dumps(job | {"out": str((folder / "choices").resolve())})
            (Path(name) / "job.json").write_text(told)
            environment = {**os.environ, **recipe.compile_environment(Path(name), delays=chip in DELAYED)}
            command = [sys.executable, str(Path(__file__).with_name("child.py")), "job.json"]
            process = subprocess.Popen(command, cwd=name, env=environment, start_new_session=True)
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def judged(row: Row, place: Path) -> dict[str, Any] | None:
    """Times of a row's set by setting, and the winner's rank and regret if it has a time; None where some of the set is
    not compiled yet."""
    times: dict[Blocks, float] = {}
    failures: dict[str, str] = {}
    whole = candidates(row)
    for blocks in (each for each in whole if fits(row, each)):
        paths = {each: place / f"{job['key']}.json" for each, job in anchors(row, blocks).items()}
        if not all(path.exists() for path in paths.values()):
            return None
        try:
            times[blocks] = seconds(row, blocks, paths)
        except ValueError as error:
            failures[str(blocks)] = str(error)
    us = {str(blocks): round(1e6 * each, 2) for blocks, each in times.items()}
    fact: dict[str, Any] = {
        "table": row.table.name,
        "chip": row.chip,
        "shape": row.shape,
        "winner": row.winner,
    }
    fact |= {"misfits": len(whole) - len(us) - len(failures), "failures": failures, "us": us}
    if (mine := times.get(row.winner)) is not None:
        best = min(times, key=times.__getitem__)
        rank = 1 + sum(other < mine for other in times.values())
        fact |= {"best": best, "rank": rank, "regret": mine / times[best] - 1}
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
        sizes = [int(np.median([len(f["us"]) for f in of])), int(np.median([f["misfits"] for f in of]))]
        told = [f"{v:.0%}" for v in (np.mean(ranks <= 5), np.mean(ranks == 1))]
        told += [f"{v:.1%}" for v in np.quantile(regrets, [0.5, 0.9, 1.0])]
        cells = [*name, len(of), len(of) - len(known), *sizes, *told]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
