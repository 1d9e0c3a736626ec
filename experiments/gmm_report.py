"""Tables on the grouped products: kernels timed by hand and winners of campaigns, side by side by recipe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from evolve.home import JOURNAL, campaigns
from evolve.journal import Journal
from fitness.evaluation import Verdict

PHASES = ("fwd", "dlhs", "tgmm")
MIXES: Mapping[str, tuple[str, str, str]] = {
    "bf16": ("bf16", "bf16", "bf16"),
    "g512": ("g512", "g512", "g512"),
    "g512, tgmm in bf16": ("g512", "g512", "bf16"),
    "g128": ("g128", "g128", "g128"),
    "g128, tgmm in bf16": ("g128", "g128", "bf16"),
}
"""Name of a mix of recipes to those of the three phases. ``bf16`` is the kernel of that name, whatever the recipe."""

Row = dict[str, Any]


def evolved(home: Path) -> list[Row]:
    """Winners of the finished campaigns on grouped products in ``home``, as rows like those timed by hand."""
    rows = []
    for folder in campaigns(home):
        with Journal(folder / JOURNAL) as journal:
            meta = journal.meta("campaign", {})
            won = journal.references("final").get("winner")
            if (
                not meta.get("operator", "").startswith("gmm_fp8/")
                or won is None
                or won.verdict is not Verdict.OK
            ):
                continue
            params = next(c.genome.params for c in journal.candidates() if c.genome.id == won.genome)
            start = next(c.genome.params for c in journal.candidates() if c.index == 0)
            changed = {name: value for name, value in params.items() if start.get(name) != value}
            rows.append(
                {
                    "key": [
                        meta["operator"].split("/")[1],
                        "evolved",
                        changed,
                        "gmm-antpretrain",
                        meta["target"],
                    ],
                    "campaign": folder.name,
                    "evaluations": len(list(journal.evaluations())),
                    "verdict": "ok",
                    "params": dict(params),
                    "workloads": [f.model_dump(mode="json") for f in won.workloads],
                }
            )
    return rows


def report(rows: Sequence[Row], suites: Sequence[str], quick: str) -> list[str]:
    """Markdown: every kernel, the phases together against bf16, and how ``quick`` ranks kernels."""
    rows = [row for row in rows if row["verdict"] == "ok"]
    lines = [
        "| recipe | kernel | change | suite | us | TFLOP/s | cycles | hbm us | bound |",
        "| --- " * 9 + "|",
    ]
    for row in rows:
        recipe, kernel, change, suite, _ = row["key"]
        found = row["workloads"]
        diagnoses = [w["diagnosis"] for w in found]
        changed = ", ".join(f"{name} {value}" for name, value in change.items()) or "-"
        lines.append(
            f"| {recipe} | {kernel} | {changed} | {suite} "
            f"| {_shown(found, 'seconds', 1e6)} | {_shown(found, 'tflops', 1)} "
            f"| {_shown(diagnoses, 'cycles', 1, 0)} | {_shown(diagnoses, 'hbm_seconds', 1e6)} "
            f"| {', '.join(d['bound'] for d in diagnoses)} |"
        )
    for suite in suites:
        lines += ["", *together([row for row in rows if row["key"][3] == suite], suite)]
    return [*lines, "", *agreement(rows, quick)]


def _shown(rows: Iterable[Mapping[str, Any]], key: str, factor: float, digits: int = 1) -> str:
    return ", ".join(f"{row[key] * factor:.{digits}f}" for row in rows)


def seconds(row: Row) -> float:
    """Of all workloads of one kernel."""
    return sum(w["seconds"] for w in row["workloads"])


def _best(rows: Sequence[Row], phase: str, precision: str) -> Row | None:
    """The fastest kernel of a phase in one precision."""
    baseline = precision == "bf16"
    fits = [
        row
        for row in rows
        if row["key"][0].startswith(phase)
        and (row["key"][1] == "bf16") == baseline
        and (baseline or row["key"][0] == f"{phase}-{precision}")
    ]
    return min(fits, key=seconds) if fits else None


def together(rows: Sequence[Row], suite: str) -> list[str]:
    """Table of mixes: the best kernel of every phase, all workloads; total FLOP over total time."""
    lines = [
        f"| {suite} | fwd, us | dlhs, us | tgmm, us | total, us | TFLOP/s | of the roofline | x bf16 |",
        "| --- " * 8 + "|",
    ]
    reference = None
    for mix, precisions in MIXES.items():
        best = [_best(rows, phase, precision) for phase, precision in zip(PHASES, precisions, strict=True)]
        cells = ["-" if row is None else f"{seconds(row) * 1e6:.1f} ({row['key'][1]})" for row in best]
        whole = [row for row in best if row is not None]
        if len(whole) < len(PHASES):
            lines.append(f"| {mix} | {' | '.join(cells)} | - | - | - | - |")
            continue
        total = sum(map(seconds, whole))
        flops = sum(w["tflops"] * w["seconds"] for row in whole for w in row["workloads"])
        roof = sum(w["roofline_fraction"] * w["seconds"] for row in whole for w in row["workloads"]) / total
        reference = total if mix == "bf16" else reference
        figures = f"{total * 1e6:.1f} | {flops / total:.0f} | {100 * roof:.0f} %"
        against = f"{reference / total:.2f}" if reference else "-"
        lines.append(f"| {mix} | {' | '.join(cells)} | {figures} | {against} |")
    return lines


def agreement(rows: Sequence[Row], quick: str) -> list[str]:
    """Spearman rank correlation of times on ``quick`` and on the whole, over kernels of one phase and over all."""
    pairs: dict[str, dict[str, float]] = {}
    for row in rows:
        pairs.setdefault(json.dumps(row["key"][:3]), {})[row["key"][3]] = seconds(row)
    both = {key: value for key, value in pairs.items() if {quick, "gmm-antpretrain"} <= value.keys()}
    lines = []
    for phase in (*PHASES, ""):
        chosen = [value for key, value in both.items() if key.startswith(f'["{phase}')]
        if len(chosen) > 2:
            rank = spearmanr([v[quick] for v in chosen], [v["gmm-antpretrain"] for v in chosen]).statistic
            lines.append(
                f"* Spearman, {quick} against the whole, {phase or 'all phases'}: {rank:.3f} ({len(chosen)} kernels)"
            )
    return lines
