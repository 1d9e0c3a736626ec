"""The ablation's table, picture and rows, written anew after every campaign."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.report import page as markup
from tilewright.evolve.report.charts import ticks
from tilewright.fitness.evaluation import Verdict

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 400, 62, 250, 34, 46
COLOURS = ("--seed", "--good", "--winner", "--baseline")


def write_report(runs: Sequence[dict], options: argparse.Namespace, resolved: Resolved) -> None:
    """``OUT.jsonl`` (one row an evaluation), ``OUT.md`` and ``OUT.svg`` of what there is so far."""
    with options.out.with_suffix(".jsonl").open("w") as file:
        for run in runs:
            for row in run["rows"]:
                file.write(json.dumps({"arm": run["arm"], "seed": run["seed"], **row}) + "\n")
    curves = {arm: best_so_far(runs, arm, options.evaluations) for arm in options.arms}
    curves = {arm: curve for arm, curve in curves.items() if len(curve)}
    shapes = ", ".join(workload.id for workload in resolved.suite.workloads)
    label = f"{options.operator} on {options.target} ({resolved.target.kind.value}), {shapes}"
    options.out.with_suffix(".md").write_text(page(runs, curves, options, label))
    options.out.with_suffix(".svg").write_text(picture(curves, label))


def best_so_far(runs: Sequence[dict], arm: str, evaluations: int) -> np.ndarray:
    """[seeds, evaluations] TFLOP/s of the best after each evaluation; a campaign that ended keeps its best.

    Duplicates are left out, as they are from a campaign's budget.
    """
    curves = []
    for run in runs:
        if run["arm"] == arm:
            curve = np.zeros(evaluations)
            counted = [row for row in run["rows"] if row["verdict"] != Verdict.DUPLICATE]
            values = [row["fitness_tflops"] or 0.0 for row in counted]
            curve[: len(values)] = np.maximum.accumulate(values)
            curve[len(values) :] = max(values, default=0.0)
            curves.append(curve)
    return np.array(curves)


def page(runs: Sequence[dict], curves: dict[str, np.ndarray], options: argparse.Namespace, label: str) -> str:
    """The figures in Markdown."""
    shapes = ", ".join(f"{w}" for w in _workloads(runs))
    seed_fitness = runs[0]["rows"][0]["fitness_tflops"]
    marks = [m for m in (8, 12, 16, 20, 24, 32, 48) if m < options.evaluations] + [options.evaluations]
    lines = [
        f"# Ablation: {label}",
        "",
        f"Best fitness in TFLOP/s after n evaluations, the seed kernel `{options.kernel}` ({seed_fitness:.0f}) and "
        f"failures included: median over seeds [least - greatest]. {shapes}",
        "",
        "| arm | seeds | " + " | ".join(f"n={m}" for m in marks) + " |",
        "| --- | --- |" + " --- |" * len(marks),
    ]
    for arm, curve in curves.items():
        cells = [
            f"{np.median(curve[:, m - 1]):.0f} [{curve[:, m - 1].min():.0f} - {curve[:, m - 1].max():.0f}]"
            for m in marks
        ]
        lines.append(f"| {arm} | {len(curve)} | " + " | ".join(cells) + " |")
    lines += _bound(options)
    lines += ["", "Final best of every seed, in TFLOP/s:", ""]
    lines += [f"* {arm}: {', '.join(f'{v:.0f}' for v in curve[:, -1])}" for arm, curve in curves.items()]
    lines += ["", *_margin(curves), "", "## The fittest of every arm", ""]
    lines += [_story(runs, arm) for arm in curves]
    lines += ["", "## Verdicts", ""]
    for arm in curves:
        counts = Counter(row["verdict"] for run in runs if run["arm"] == arm for row in run["rows"])
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        lines.append(f"* {arm}: {told}")
    return "\n".join(lines) + "\n"


def _workloads(runs: Sequence[dict]) -> list[str]:
    times = runs[0]["rows"][0]["microseconds"]
    return [f"The seed kernel takes {', '.join(f'{t:.1f}' for t in times)} us."]


def _margin(curves: dict[str, np.ndarray]) -> list[str]:
    both, alone = curves.get("rewrites + parameters"), curves.get("parameters")
    if both is None or alone is None:
        return []
    gap = np.median(both[:, -1]) / np.median(alone[:, -1])
    least, most = both[:, -1].min(), alone[:, -1].max()
    outside = "outside" if least > most else "not outside"
    return [
        f"Rewrites + parameters against parameters only: median {gap:.2f} x; the worst seed of the one reads "
        f"{least:.0f}, the best seed of the other {most:.0f}: the margin is {outside} the spread of the seeds."
    ]


def _bound(options: argparse.Namespace) -> list[str]:
    points = [row for row in options.best_point if row["fitness_tflops"]]
    if not points:
        return []
    best = max(points, key=lambda row: row["fitness_tflops"])
    told = ", ".join(f"{name}={value}" for name, value in best["params"].items())
    return [
        "",
        f"All {len(options.best_point)} points of the seed kernel's space ({' '.join(options.bound)} fixed) were "
        f"evaluated, {len(points)} of them ok: the best reads {best['fitness_tflops']:.0f} TFLOP/s ({told}). No search "
        "of parameters alone can read more, whatever its seed and budget.",
    ]


def _story(runs: Sequence[dict], arm: str) -> str:
    rows = [
        (row["fitness_tflops"] or 0.0, run["seed"], row)
        for run in runs
        if run["arm"] == arm
        for row in run["rows"]
    ]
    fitness, seed, row = max(rows, key=lambda r: r[0])
    times = ", ".join(f"{t:.1f}" for t in row["microseconds"])
    params = ", ".join(f"{k}={v}" for k, v in row["params"].items())
    return f"* {arm}, seed {seed}: {fitness:.0f} TFLOP/s ({times} us), last step `{row['detail']}`; {params}"


def picture(curves: dict[str, np.ndarray], label: str) -> str:
    """Median best so far as lines, least to greatest over seeds as bands."""
    if not curves:
        return markup.drawing(WIDTH, HEIGHT, label, standalone=True)
    values = np.concatenate([c[:, 1:].ravel() for c in curves.values()])
    low, high = 0.95 * float(values.min()), 1.03 * float(values.max())
    count = next(iter(curves.values())).shape[1]

    def x(n: float) -> float:
        return LEFT + (n - 1) / max(1, count - 1) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [markup.label(LEFT - 40, 16, f"best TFLOP/s, {label}", class_="quiet")]
    for value in ticks(low, high):
        parts.append(markup.tag("path", d=f"M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}", class_="rule"))
        parts.append(markup.label(LEFT - 8, y(value) + 4, f"{value:g}", class_="quiet end"))
    for n in range(4, count + 1, 4):
        parts.append(markup.label(x(n), HEIGHT - BOTTOM + 18, n, class_="quiet middle"))
    parts.append(markup.label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "evaluations", class_="quiet middle"))
    ends: list[float] = []
    order = sorted(
        zip(curves.items(), COLOURS, strict=False), key=lambda item: -float(np.median(item[0][1][:, -1]))
    )
    for (arm, curve), colour in order:
        upper = [f"{x(n + 1):.1f} {y(v):.1f}" for n, v in enumerate(curve.max(axis=0))]
        lower = [f"{x(n + 1):.1f} {y(v):.1f}" for n, v in enumerate(curve.min(axis=0))]
        band = "M" + "L".join([*upper, *reversed(lower)]) + "Z"
        middle = "M" + "L".join(f"{x(n + 1):.1f} {y(v):.1f}" for n, v in enumerate(np.median(curve, axis=0)))
        parts.append(markup.tag("path", d=band, style=f"fill: var({colour}); opacity: .15; stroke: none"))
        parts.append(
            markup.tag("path", d=middle, style=f"stroke: var({colour}); stroke-width: 2.4; fill: none")
        )
        end = y(float(np.median(curve[:, -1]))) + 4
        ends.append(max(end, ends[-1] + 16) if ends else end)
        note = f"{arm} {np.median(curve[:, -1]):.0f}"
        parts.append(markup.label(WIDTH - RIGHT + 8, ends[-1], note, style=f"fill: var({colour})"))
    return markup.drawing(WIDTH, HEIGHT, label, *parts, standalone=True)
