"""Does the time model choose what the hardware chose? Published winners of tuning, ranked by the model in their sets.

    python -m experiments.studies.tpu.choices FOLDER [--seed N] [--minutes M] [--table NAME] [--chip CHIP]

FOLDER holds the repositories ``tpu-inference`` and ``sglang-jax``; nothing is fetched, and what was compiled is kept in
FOLDER/choices. Compiles what the cache lacks until the minutes are over, then says of every row whose set is complete
the rank of the published winner and its regret: its modelled time over the set's best, less 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.tpu.choices.steps import Grid, Simulated, check, operand_bytes, ranked
from experiments.studies.tpu.choices.tables import TABLES, Blocks, Row, candidates, drawn, rows
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu.time_model import CALIBRATIONS, VERSION
from tilewright.workers.toolchains import libtpu_simulator as recipe

ROOT = Path(__file__).resolve().parents[4]
BATCH, LIMIT = 12, 150.0
"""Settings a child compiles, and its seconds."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--per-row-count", type=int, default=8)
    parser.add_argument("--most-rows", type=int, default=2048)
    parser.add_argument("--settings", type=int, default=12)
    parser.add_argument("--table", action="append")
    parser.add_argument("--chip", choices=["v6e", "tpu7x"], action="append")
    options = parser.parse_args(arguments)
    chosen = [
        row
        for table in TABLES
        if not options.table or table.name in options.table
        for chip in options.chip or ("v6e", "tpu7x")
        for row in drawn(
            [row for row in rows(table, options.folder) if row.chip == chip],
            options.per_row_count,
            options.most_rows,
            options.seed,
        )
    ]
    sets = [(row, candidates(row, options.settings, options.seed)) for row in chosen]
    _compile(sets, options.folder, time.monotonic() + 60 * options.minutes)
    facts = [fact for row, settings in sets if (fact := judged(row, settings, options.folder))]
    json.dump(facts, (options.folder / "choices" / "facts.json").open("w"), indent=1)
    sys.stdout.write(report(facts, len(sets)))


def key_of(row: Row, blocks: Blocks) -> str:
    """Of what is simulated for a setting: rows of one table share what has the same blocks and kinds of steps."""
    small = Grid.of(row.shape, blocks).small()
    told = [row.table.name, row.chip, blocks, list(vars(small).values()), recipe.toolchain()["libtpu"]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20]


def _kept(folder: Path, key: str) -> Path:
    return folder / "choices" / f"{key}.json"


def _compile(sets: Sequence[tuple[Row, list[Blocks]]], folder: Path, until: float) -> None:
    """Compile what the cache lacks, a child after the other, row by row."""
    (folder / "choices").mkdir(exist_ok=True)
    jobs: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row, settings in sets:
        for blocks in settings:
            key = key_of(row, blocks)
            if not _kept(folder, key).exists():
                small = vars(Grid.of(row.shape, blocks).small()).values()
                shape = [count * block for count, block in zip(small, blocks, strict=True)]
                jobs[row.table.name, row.chip][key] = {
                    "key": key,
                    "shape": shape,
                    "blocks": blocks,
                    "types": row.table.types,
                }
    for (name, chip), wanted in jobs.items():
        (table,) = (table for table in TABLES if table.name == name)
        left = list(wanted.values())
        while left and time.monotonic() < until:
            _child(left[:BATCH], chip, table.file(folder), table.block, folder)
            left = [each for each in left if not _kept(folder, each["key"]).exists()]
        sys.stderr.write(f"{name} {chip}: {len(wanted) - len(left)} of {len(wanted)} settings compiled\n")


def _child(settings: list[dict[str, Any]], chip: str, module: Path, block: int, folder: Path) -> None:
    """One child on some settings; the one that it died on is kept as a failure."""
    of = CHIPS[chip]
    with tempfile.TemporaryDirectory(prefix="tpu_choices_") as name:
        place = Path(name)
        job = {
            "root": str(ROOT),
            "topology": of.topology,
            "kind": of.device_kind,
            "cores": of.cores,
            "module": str(module.resolve()),
            "block": block,
            "settings": settings,
        }
        (place / "job.json").write_text(json.dumps(job))
        environment = {**os.environ, **recipe.compile_environment(place)}
        child = Path(__file__).with_name("child.py")
        reason = ""
        try:
            done = subprocess.run(
                [sys.executable, str(child), "job.json"],
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT,
                check=False,
            )
            fatal = [line for line in done.stderr.splitlines() if "failed:" in line or "Error" in line]
            reason = f"abort: {(fatal or ['no word'])[-1][-200:]}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            reason = f"more than {LIMIT:.0f} s"
        for setting in settings:
            key = setting["key"]
            if (made := place / f"{key}.json").exists():
                _kept(folder, key).write_text(made.read_text())
            elif (place / f"{key}.started").exists():
                _kept(folder, key).write_text(json.dumps({"failure": reason or "no answer"}))


def judged(row: Row, settings: Sequence[Blocks], folder: Path) -> dict[str, Any] | None:
    """What the model says of a row's set; None where some of it is not compiled yet."""
    calibration = CALIBRATIONS[row.chip]
    times: dict[Blocks, float] = {}
    failures: dict[Blocks, str] = {}
    errors = []
    for blocks in settings:
        kept = _kept(folder, key_of(row, blocks))
        if not kept.exists():
            return None
        told = json.loads(kept.read_text())
        if told["failure"]:
            failures[blocks] = told["failure"]
            continue
        small = Grid.of(row.shape, blocks).small()
        try:
            simulated = Simulated.of(told, small, operand_bytes(row, blocks))
        except (ValueError, IndexError) as error:
            failures[blocks] = f"events: {error}"
            continue
        errors.append(check(simulated, small, calibration.rules))
        times[blocks] = simulated.seconds(row, blocks, calibration.rules, calibration.call)
    fact: dict[str, Any] = {
        "table": row.table.name,
        "chip": row.chip,
        "shape": row.shape,
        "winner": row.winner,
        "swept": row.swept,
        "settings": len(settings),
        "failures": {str(blocks): reason for blocks, reason in failures.items()},
        "laid_out": float(max(np.abs(errors), default=0.0)),
        "times": {str(blocks): seconds for blocks, seconds in times.items()},
    }
    if row.winner in times:
        best = min(times, key=lambda blocks: times[blocks])
        fact |= {
            "rank": ranked(list(times.values()), list(times).index(row.winner)),
            "regret": times[row.winner] / times[best] - 1,
            "best": best,
            "us": times[row.winner] * 1e6,
        }
    return fact


def report(facts: Sequence[dict[str, Any]], asked: int) -> str:
    """Tables, in Markdown."""
    lines = [f"Time model {VERSION}; {len(facts)} of {asked} rows complete.", ""]
    lines.append(
        "| table | chip | rows of x | rows | winner not modelled | settings | top 5 | first | median regret | 90 % | worst |"
    )
    lines.append("| " + " | ".join(["---"] * 11) + " |")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for fact in facts:
        name = fact["table"] + ("" if fact["swept"] else ", not swept")
        groups[name, fact["chip"], "all"].append(fact)
        groups[name, fact["chip"], fact["shape"][0]].append(fact)
    for (name, chip, count), of in groups.items():
        known = [fact for fact in of if "rank" in fact]
        if not known:
            lines.append(f"| {name} | {chip} | {count} | {len(of)} | {len(of)} | | | | | | |")
            continue
        regrets = [fact["regret"] for fact in known]
        ranks = np.array([fact["rank"] for fact in known])
        settings = np.median([len(fact["times"]) for fact in known])
        lines.append(
            f"| {name} | {chip} | {count} | {len(of)} | {len(of) - len(known)} | {settings:.0f} | "
            f"{np.mean(ranks <= 5):.0%} | {np.mean(ranks == 1):.0%} | {np.median(regrets):.1%} | "
            f"{np.quantile(regrets, 0.9):.1%} | {max(regrets):.1%} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
