"""What the search benchmark found: a page and a table of runs, beside the peers' figures."""

import csv
import datetime
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from experiments.studies.search.efficiency import MARKS, Run, Setting, Summary, summarise
from testkit.spaces.campaigns import digest

GOALS = {25: 0.88, 50: 0.93, 100: 0.98, 200: 1.0}
ARRIVED_GOAL = 0.95

PEERS: dict[str, dict[str, tuple[float, ...]]] = {
    "Kernel Tuner 1.5.0 adaptive_tabu_greywolf": {
        "gemm_rtx3090": (0.878, 0.903, 0.982, 1.000),
        "conv_a100": (0.609, 0.732, 0.931, 0.931),
        "dedisp_a100": (0.992, 0.994, 0.996, 0.997),
        "conv_rtx3090_fail": (0.758, 0.862, 0.990, 1.000),
    },
    "Helion 1.5.1 LFBOTreeSearch, restarted": {
        "gemm_rtx3090": (0.795, 0.850, 0.982, 1.000),
        "conv_a100": (0.583, 0.668, 0.872, 0.965),
        "dedisp_a100": (0.990, 0.993, 0.997, 0.997),
        "conv_rtx3090_fail": (0.842, 0.915, 1.000, 1.000),
    },
    "Kernel Tuner 1.5.0 hybrid_vndx": {
        "gemm_rtx3090": (0.784, 0.856, 0.925, 0.982),
        "conv_a100": (0.605, 0.729, 0.843, 1.000),
        "dedisp_a100": (0.993, 0.995, 0.996, 0.999),
        "conv_rtx3090_fail": (0.775, 0.921, 0.983, 0.989),
    },
    "Kernel Tuner 1.5.0 genetic_algorithm": {
        "gemm_rtx3090": (0.753, 0.796, 0.845, 0.946),
        "conv_a100": (0.599, 0.644, 0.843, 1.000),
        "dedisp_a100": (0.991, 0.995, 0.996, 0.997),
        "conv_rtx3090_fail": (0.808, 0.894, 0.974, 0.992),
    },
    "Optuna 5.0.0 TPE": {
        "gemm_rtx3090": (0.784, 0.827, 0.841, 0.926),
        "conv_a100": (0.641, 0.656, 0.665, 0.931),
        "dedisp_a100": (0.994, 0.995, 0.997, 0.997),
        "conv_rtx3090_fail": (0.912, 0.991, 0.991, 0.995),
    },
    "random without replacement (exact)": {
        "gemm_rtx3090": (0.752, 0.800, 0.835, 0.871),
        "conv_a100": (0.603, 0.654, 0.694, 0.766),
        "dedisp_a100": (0.990, 0.992, 0.994, 0.995),
        "conv_rtx3090_fail": (0.813, 0.882, 0.923, 0.946),
    },
}
"""Medians over 30 seeds at 25, 50, 100 and 200 evaluations, recorded with the tables."""


def describe(runs: Sequence[Run], setting: Setting) -> str:
    """The figures in Markdown."""
    summary = summarise(runs)
    seeds = len({run.seed for run in runs})
    lines = [
        f"{len(summary.spaces)} spaces, {seeds} seeds, {setting.lag} in flight, proposers "
        f"{', '.join(setting.proposers)}. Score: optimum / best, recorded (measured) times.",
        "",
        "| space | " + " | ".join(f"n={mark}" for mark in summary.marks) + " |",
        "| --- |" + " --- |" * len(summary.marks),
    ]
    rows = {**summary.spaces, "worst space": summary.worst, "**mean**": summary.mean}
    lines += [f"| {name} | " + " | ".join(f"{v:.3f}" for v in values) + " |" for name, values in rows.items()]
    lines.append("| 95 % interval | " + " | ".join(f"{lo:.3f}–{hi:.3f}" for lo, hi in summary.interval) + " |")
    lines.append("| goal | " + " | ".join(f"{GOALS[mark]:.3f}" for mark in summary.marks) + " |")
    lines += _peer_rows(summary)
    lines += [
        "",
        f"Runs within 5 % of the optimum at n={len(runs[0].curve)}: {summary.arrived:.1%} (goal {ARRIVED_GOAL:.0%}).",
    ]
    cpu = np.mean([run.cpu_seconds for run in runs])
    lines.append(f"CPU time of one run, proposals and models included: {cpu:.1f} s (measured).")
    if setting.noise:
        lines += ["", *_noise_lines(runs, setting)]
    return "\n".join(lines) + "\n"


def _peer_rows(summary: Summary) -> list[str]:
    rows = []
    for peer, figures in PEERS.items():
        if not set(summary.spaces) <= set(figures):
            continue
        means = [np.mean([figures[s][MARKS.index(mark)] for s in summary.spaces]) for mark in summary.marks]
        rows.append(f"| {peer} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    return rows


def _noise_lines(runs: Sequence[Run], setting: Setting) -> list[str]:
    best = np.array([run.curve[-1] for run in runs])
    handed = np.array([run.handed for run in runs])
    return [
        f"Noise {setting.noise:.0%} on every reading. True score of the best configuration evaluated: mean "
        f"{best.mean():.4f}; of the best reading, which is what a user is handed: {handed.mean():.4f}."
    ]


def write_report(path: Path, runs: Sequence[Run], setting: Setting, command: str) -> None:
    """Write PATH.md and PATH.csv (one row per run)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "scipy"))
    page = [
        "# Search efficiency on recorded spaces",
        "",
        f"`{command}`",
        f"{datetime.date.today().isoformat()}, Python {platform.python_version()}, {libraries}.",
        "",
        describe(runs, setting),
        "Peers: medians recorded with the tables, same rules (unique legal configurations, failures included).",
    ]
    path.with_suffix(".md").write_text("\n".join(page) + "\n")
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        marks = [mark for mark in MARKS if mark <= len(runs[0].curve)]
        writer.writerow(["space", "seed", *(f"n{mark}" for mark in marks), "handed", "sequence"])
        for run in runs:
            scores = [f"{run.curve[mark - 1]:.5f}" for mark in marks]
            tail = [f"{run.handed:.5f}", digest(run)]
            writer.writerow([run.space, run.seed, *scores, *tail])
