"""Draw a result of ``fp8_step``: ``python -m experiments.studies.h200.fp8_plot RESULT.json --base NAME --out
FILE.svg``.

One group of bars a shape: each contender's rate over that of ``base``, all measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

COLOURS = ("#8c8c8c", "#1b6ca8", "#74add1", "#d98324", "#5b8c5a", "#a05195")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--base", required=True)
    parser.add_argument("--leave-out", nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    draw(json.loads(arguments.result.read_text()), arguments.base, arguments.leave_out, arguments.out)
    return 0


def draw(result: dict[str, Any], base: str, left_out: list[str], path: Path) -> None:
    """Write the picture. Raises KeyError when a shape lacks ``base``."""
    entries = result["entries"]
    names = [n for n in dict.fromkeys(n for e in entries for n in e["contenders"]) if n not in left_out]
    figure, axes = plt.subplots(figsize=(11, 4.2), layout="constrained")
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        ratios = [ratio(entry, name, base) for entry in entries]
        known = [r for r in ratios if not math.isnan(r)]
        mean = math.exp(sum(map(math.log, known)) / len(known))
        at = [n + (place - (len(names) - 1) / 2) * width for n in range(len(entries))]
        label = f"{name} ({mean:.3f})"
        axes.bar(at, ratios, width * 0.92, label=label, color=COLOURS[place % len(COLOURS)])
    axes.set_xticks(
        range(len(entries)), [e["workload"] for e in entries], rotation=30, ha="right", fontsize=8
    )
    axes.set_ylabel(f"rate / {base}")
    axes.set_ylim(bottom=max(0.0, min(0.8, axes.get_ylim()[0])))
    axes.grid(axis="y", linewidth=0.4)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(
        f"{result['what']}: measured on {result['device']}, torch {result['torch']}, Triton {result['triton']}",
        fontsize=10,
    )
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.28))
    figure.savefig(path)


def ratio(entry: dict[str, Any], name: str, base: str) -> float:
    """One contender's rate over the base's; NaN where it did not run."""
    found = entry["contenders"].get(name)
    return found["tflops"] / entry["contenders"][base]["tflops"] if found else math.nan


if __name__ == "__main__":
    sys.exit(main())
