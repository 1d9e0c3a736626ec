"""Tables and the picture of what ``direct`` found: campaigns, winners side by side, arms with intervals, rules.

    python -m experiments.studies.rewrites.direct_report --runs OUT.json ... --keep direct_h200.jsonl
    python -m experiments.studies.rewrites.direct_report --records experiments/records/rewrites/direct_h200.jsonl \\
        --picture experiments/records/rewrites/direct_h200.svg

``--keep`` writes what is worth keeping of runs, a line for each campaign and each comparison side by side.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.rewrites.ablation_report import picture
from tilewright.evolve.proposers.rule_credit import rules_of

Json = dict[str, Any]
MARKS = (8, 16, 24, 32, 40, 48)
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Two-sided 95 % points of Student's t by the number of campaigns."""
BETTER = 1.01


def kept(run: Json, name: str) -> Iterator[Json]:
    """Lines of one run: what it was, its campaigns, what was timed side by side."""
    about = {k: run[k] for k in ("seconds", "device_seconds", "genomes", "device")}
    yield {"run": name, "command": run["command"][1:], **about}
    best = {
        r["case"]: r["best"]
        for r in sorted(run["campaigns"], key=lambda r: r.get("best") or 0.0)
        if "best" in r
    }
    for row in run["campaigns"]:
        steps = [[kind, _by(kind, who, detail), verdict, rate, of] for kind, who, detail, verdict, rate, of in
                 row.get("evaluated", [])]  # fmt: skip
        line = {k: v for k, v in row.items() if k not in ("evaluated", "source", "progress")}
        if "best" in row and row["best"] == best[row["case"]]:
            line["source"] = row["source"]
        yield {"run": name, "campaign": line | {"evaluated": steps}}
    for found in run["side_by_side"]:
        yield {"run": name, "side_by_side": found}


def _by(kind: str, who: str, detail: str) -> str:
    return " + ".join(rules_of(detail)) or who if kind == "rewrite" else who


def curve(row: Json, length: int) -> np.ndarray:
    """Best so far after each evaluation that is not a duplicate."""
    values = [rate or 0.0 for _, _, verdict, rate, _ in row["evaluated"] if verdict != "duplicate"]
    found = np.maximum.accumulate(np.array([*values, *[0.0] * max(0, length - len(values))]))
    return found[:length]


def campaigns_table(lines: Sequence[Json]) -> list[str]:
    text = [
        "| run, case | arm, seed | naive kernel | best reading | gain | evaluations, seconds | device, compilers: s |"
    ]
    text += ["| --- |" + " --- |" * 6]
    for line in lines:
        row = line.get("campaign", {})
        if "best" in row:
            text.append(
                f"| {line['run']}, {row['case']} | {row['arm']} {row['seed']} | {row['seed_fitness']:.0f} | "
                f"{row['best']:.0f} {row['unit']} | {row['best'] / row['seed_fitness']:.2f} | {row['evaluations']}, "
                f"{row['seconds']:.0f} | {row['device_seconds']:.1f}, {row['compile_seconds']:.0f} |"
            )
    return text


def side_by_side_table(lines: Sequence[Json]) -> list[str]:
    text = ["| run, case | rates in interleaved rounds, geometric mean over shapes |", "| --- | --- |"]
    for line in lines:
        found = line.get("side_by_side")
        if found and found["means"]:
            rates = ", ".join(f"{name} {rate:g}" for name, rate in found["means"].items())
            text.append(f"| {line['run']}, {found['case']} | {rates} {found['unit']} |")
    return text


def arms_table(rows: Sequence[Json], length: int) -> tuple[list[str], dict[str, np.ndarray]]:
    """Mean best of each arm after so many evaluations, with the 95 % interval of the mean over seeds."""
    arms: dict[str, list[np.ndarray]] = defaultdict(list)
    for row in rows:
        arms[row["arm"]].append(curve(row, length))
    marks = [m for m in MARKS if m <= length]
    text = ["| arm | seeds | " + " | ".join(f"n={m}" for m in marks) + " | last: least, greatest |"]
    text += ["| --- |" + " --- |" * (len(marks) + 2)]
    for arm, curves in sorted(arms.items(), key=lambda item: float(np.mean([c[-1] for c in item[1]]))):
        cells = []
        for mark in marks:
            values = [float(c[mark - 1]) for c in curves]
            half = STUDENT_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
            cells.append(f"{statistics.mean(values):.0f} ± {half:.0f}")
        last = [float(c[-1]) for c in curves]
        text.append(f"| {arm} | {len(curves)} | {' | '.join(cells)} | {min(last):.0f}, {max(last):.0f} |")
    return text, {arm: np.array(curves) for arm, curves in arms.items()}


def rules_table(rows: Sequence[Json]) -> list[str]:
    """What rules earned: children, how many beat their parent by a hundredth, the greatest gain at once."""
    gains: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for kind, who, _, rate, of in row["evaluated"]:
            if kind == "rewrite" and of:
                gains[who].append((rate or 0.0) / of)
    text = ["| rules of a child | children | better than the parent by 1 % | greatest gain at once |"]
    text += ["| --- |" + " --- |" * 3]
    for who, found in sorted(gains.items(), key=lambda item: -max(item[1])):
        better = sum(g > BETTER for g in found)
        if better or len(found) > 4:
            text.append(f"| {who} | {len(found)} | {better} | {max(found):.2f} x |")
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="what ``direct`` wrote")
    parser.add_argument("--keep", type=Path, help="where the lines worth keeping go")
    parser.add_argument("--records", type=Path, nargs="*", default=[], help="lines that were kept")
    parser.add_argument("--picture", type=Path, help="curves of the run with several arms")
    options = parser.parse_args(arguments)
    if options.keep is not None:
        with options.keep.open("w") as file:
            for path in options.runs:
                for line in kept(json.loads(path.read_text()), path.stem):
                    file.write(json.dumps(line) + "\n")
        return
    lines = [json.loads(text) for path in options.records for text in path.read_text().splitlines()]
    text = [*campaigns_table(lines), "", *side_by_side_table(lines), ""]
    runs: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for line in lines:
        if "best" in line.get("campaign", {}):
            runs[line["run"], line["campaign"]["case"]].append(line["campaign"])
    for (run, case), rows in runs.items():
        if len({r["arm"] for r in rows}) > 2:
            length = min(sum(e[2] != "duplicate" for e in r["evaluated"]) for r in rows)
            table, curves = arms_table(rows, length)
            text += [f"## {case}, {run}", "", *table, "", *rules_table(rows), ""]
            if options.picture is not None:
                options.picture.write_text(picture(curves, f"{case} on one H200 (measured)"))
    sys.stdout.write("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
