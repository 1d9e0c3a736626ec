"""The time model held against kernel times that others measured on real TPUs.

    python -m experiments.studies.tpu.truth FOLDER [--cache FOLDER] [--compile]

FOLDER is a truth set (see ``rows``); nothing is fetched. With ``--compile`` what the cache lacks is compiled and
simulated first, which takes about a minute of one core a row. Writes ``experiments/records/tpu_truth/``: the rows as a
table of facts (shapes, measured and modelled times) and the error tables.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from experiments.studies.tpu.truth.fit import class_of
from experiments.studies.tpu.truth.intervals import held_left_out, table
from experiments.studies.tpu.truth.rows import Row, read_rows
from experiments.studies.tpu.truth.simulated import Run, cached
from tilewright.fitness.tpu.memory import replay
from tilewright.fitness.tpu.time_model import CALIBRATIONS, VERSION
from tilewright.workers.toolchains.libtpu_simulator import toolchain

OUT = Path(__file__).resolve().parents[3] / "records" / "tpu_truth"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args(arguments)
    cache = options.cache or options.folder / "cache"
    facts, refused, untried = [], [], []
    for row in read_rows(options.folder):
        runs = (
            row.runs(options.folder, cache)
            if options.compile
            else [cached(spec, cache) for spec in row.specs(options.folder)]
        )
        done = [run for run in runs if run is not None]
        failure = next((run.failure for run in done if run.failure), "")
        if failure:
            refused.append({**_told(row), "reason": failure})
        elif len(done) < len(runs):
            untried.append(_told(row))
        else:
            facts.append(_fact(row, done))
    facts = [{**fact, "held": held_left_out(fact, facts)} for fact in facts]
    OUT.mkdir(parents=True, exist_ok=True)
    data = {"time_model": VERSION, "toolchain": toolchain(), "rows": facts, "not_modelled": refused}
    (OUT / "rows.json").write_text(json.dumps(data, indent=1) + "\n")
    text = report(facts, refused, untried)
    (OUT / "README.md").write_text(text)
    sys.stdout.write(text)


def _told(row: Row) -> dict[str, Any]:
    shape = row.grouped.get("shape") or row.spec.get("arguments", {}) or row.spec.get("config", {})
    return {
        "id": row.id,
        "set": row.set,
        "chip": row.chip,
        "kind": row.kind,
        "lineage": row.lineage,
        "shape": shape,
        "tiles": row.grouped.get("tiles"),
        "measured_ms": row.measured_ms if len(row.measured_ms) <= 5 else float(np.median(row.measured_ms)),
        "host_ms": row.host_ms,
        "fitted": row.fitted,
        "provenance": row.provenance,
    }


def _fact(row: Row, runs: Sequence[Run]) -> dict[str, Any]:
    rules = CALIBRATIONS[row.chip].rules
    seconds = row.modelled(runs, rules)
    run = runs[-1]
    main_op = run.longest
    passed = replay(row.events(run) if row.grouped else main_op.events, rules)
    return {
        **_told(row),
        "modelled_ms": seconds * 1e3,
        "device_ms": row.seconds * 1e3,
        "error": seconds / row.seconds - 1,
        "memory_share": passed.memory / passed.seconds,
        "class": class_of(row, runs),
        "apart": run.apart,
        "cut": "steps" in row.spec,
        "core_cycles": int(main_op.events.work.sum()),
    }


_INTRODUCTION = """Time model {version}; made by `python -m experiments.studies.tpu.truth FOLDER`. Measured times are
of others: `ucb-bar/autocomp` at `dd26a56` (one v6e; the host's 0.107 ms is taken off) and `openxla/tokamax` at
`783ea95` (autotuning records of v5e, v6e and tpu7x, device times). A hash of the row halves them: *fitted* rows give
the constants of tpu7x and v6e; those of v5e were fitted before the split, to all rows then.
Error: modelled over measured, less 1. *Class*: what bounds the kernel, which decides its interval. *With memory's
share*: correlation of the error with the copies' part of the time. *Held*: by the 90 % interval that the rows of all
*other* families give (a family: one kind of kernels on one chip), so nothing of its own. *Apart*: rows whose kernels
were simulated alone, XLA's operations around them by their bytes and matrix products. *Cut*: of these kernels a part of
the grid was simulated, outer axes cut, and its time repeated. Pairs: those that differ by over 2 %."""


def _head(*columns: str) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]


def report(
    facts: Sequence[dict[str, Any]], refused: Sequence[dict[str, Any]], untried: Sequence[dict[str, Any]]
) -> str:
    """The tables, in Markdown."""
    lines = [
        "# The time model against measured TPU kernels",
        "",
        *_INTRODUCTION.format(version=VERSION).splitlines(),
        "",
        *_head(
            "chip",
            "kernels",
            "class",
            "rows",
            "apart",
            "",
            "median error",
            "worst",
            "mean",
            "with memory's share",
            "held",
        ),
    ]
    for (chip, kind, bound, fitted), rows in _grouped(facts, "chip", "kind", "class", "fitted"):
        errors = np.array([row["error"] for row in rows])
        shares = np.array([row["memory_share"] for row in rows])
        trend = f"{np.corrcoef(shares, errors)[0, 1]:+.2f}" if len(rows) > 4 and shares.std() > 0 else ""
        held = np.mean([row["held"] for row in rows])
        lines.append(
            f"| {chip} | {kind} | {bound} | {len(rows)} | {sum(row['apart'] for row in rows)} "
            f"| {'' if fitted else 'not '}fitted | {np.median(abs(errors)):.1%} "
            f"| {max(errors, key=abs):+.1%} | {errors.mean():+.1%} | {trend} | {held:.0%} |"
        )
    lines += ["", "## Intervals, each family left out in turn", "", *table(facts)]
    lines += ["", "## Order within a lineage", ""]
    columns = ("rows", "Spearman", "pairs ordered right")
    lines += _head("lineage", *columns, *(f"not fitted: {name}" for name in columns), "error left in a step")
    for (lineage,), rows in _grouped([row for row in facts if row["lineage"]], "lineage"):
        if len(rows) < 2:
            continue
        ordered = sorted(rows, key=lambda row: row["device_ms"])
        steps = [abs(np.log((1 + a["error"]) / (1 + b["error"]))) for a, b in pairwise(ordered)]
        rest = [row for row in rows if not row["fitted"]]
        lines.append(f"| {lineage} | {_order(rows)} | {_order(rest)} | {np.median(steps):.1%} |")
    if refused:
        lines += ["", "## Not modelled", "", *_head("set", "kernels", "rows", "reason")]
        short = [{**row, "reason": _short(row["reason"])} for row in refused]
        for (name, kind, reason), rows in _grouped(short, "set", "kind", "reason"):
            lines.append(f"| {name} | {kind} | {len(rows)} | {reason} |")
    lines += ["", "## Share of the rows that can be modelled", ""]
    lines += _head("set", "chip", "rows", "modelled", "of them apart", "of them cut", "refused", "not tried")
    for (name, chip), rows in _grouped([*facts, *refused, *untried], "set", "chip"):
        done = [row for row in rows if "modelled_ms" in row]
        failed = [row for row in rows if "reason" in row]
        lines.append(
            f"| {name} | {chip} | {len(rows)} | {len(done)} | {sum(row['apart'] for row in done)} "
            f"| {sum(row['cut'] for row in done)} | {len(failed)} "
            f"| {len(rows) - len(done) - len(failed)} |"
        )
    return "\n".join(lines) + "\n"


def _order(rows: Sequence[dict[str, Any]]) -> str:
    """How many rows, Spearman's coefficient, and pairs in the right order, as cells of a table."""
    if len(rows) < 2:
        return f"{len(rows)} | | "
    right, pairs = _pairs(rows)
    order = spearmanr([row["modelled_ms"] for row in rows], [row["device_ms"] for row in rows])[0]
    return f"{len(rows)} | {order:.2f} | {right} of {pairs}"


def _short(reason: str) -> str:
    return re.sub(r"profiling of [\w.]+", "profiling", reason.replace("|", "/"))[:120]


def _pairs(rows: Iterable[dict[str, Any]]) -> tuple[int, int]:
    apart = [(a, b) for a, b in combinations(rows, 2) if abs(np.log(a["device_ms"] / b["device_ms"])) > 0.02]
    right = sum((a["device_ms"] < b["device_ms"]) == (a["modelled_ms"] < b["modelled_ms"]) for a, b in apart)
    return right, len(apart)


def _grouped(
    rows: Iterable[dict[str, Any]], *keys: str
) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys)].append(row)
    return sorted(found.items(), key=lambda item: tuple(map(str, item[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
