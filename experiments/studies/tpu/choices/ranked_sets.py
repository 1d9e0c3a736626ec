"""What the studies of published settings share: compiling small kernels, ranks and regrets, the table of them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.tpu.choices.tables import Blocks
from tilewright.fitness.tpu.events import Events
from tilewright.fitness.tpu.time_model import VERSION
from tilewright.workers.toolchains import libtpu_simulator as recipe

DELAYED = ("tpu7x",)
"""Chips on which the simulator aborts on most of these kernels but for delays in their conditional blocks."""


def key_of(told: Any) -> str:
    """The name of a file of what is compiled."""
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20]


def compile_all(
    jobs: Mapping[str, Mapping[str, dict[str, Any]]], needed: Counter[str], folder: Path, until: float
) -> None:
    """Compile jobs by chip and key, those that most settings need first, one child for a chip after the other."""
    (folder / "choices").mkdir(exist_ok=True)
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


def events_of(path: Path) -> Events:
    """Of a small kernel. Raises ValueError where it has none."""
    told = json.loads(path.read_text())
    if told["failure"]:
        raise ValueError(told["failure"])
    return Events(*(np.array(told[name], np.int64) for name in ("work", "kinds", "sizes", "ready")))


def fact_of(
    table: str,
    chip: str,
    shape: Blocks,
    winner: Blocks,
    times: Mapping[Blocks, float],
    failures: Mapping[str, str],
    misfits: int,
) -> dict[str, Any]:
    """Times of a row's set by setting, and the winner's rank and regret if it has a time."""
    fact: dict[str, Any] = {
        "table": table,
        "chip": chip,
        "shape": shape,
        "winner": winner,
        "misfits": misfits,
    }
    fact |= {
        "failures": failures,
        "us": {str(blocks): round(1e6 * each, 2) for blocks, each in times.items()},
    }
    if winner in times:
        best = min(times, key=times.__getitem__)
        rank = 1 + sum(seconds < times[winner] for seconds in times.values())
        fact |= {"best": best, "rank": rank, "regret": times[winner] / times[best] - 1}
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
        sizes = [
            int(np.median([size(fact) for fact in of]))
            for size in (lambda f: len(f["us"]), lambda f: f["misfits"])
        ]
        cells = [*name, len(of), len(of) - len(known), *sizes]
        shares = [np.mean(ranks <= 5), np.mean(ranks == 1)]
        told = [f"{v:.0%}" for v in shares] + [f"{v:.1%}" for v in np.quantile(regrets, [0.5, 0.9, 1.0])]
        lines.append(f"| {' | '.join(map(str, [*cells, *told]))} |")
    return "\n".join(lines) + "\n"
