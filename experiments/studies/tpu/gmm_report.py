"""Tables on the grouped products: kernels timed by hand and winners of campaigns, side by side by recipe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from tilewright.evolve.record.home import JOURNAL, campaigns
from tilewright.evolve.record.journal import Journal
from tilewright.fitness.evaluation import Verdict

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
    """Final figures of the campaigns on grouped products in ``home``: winners, seeds and baselines, as rows like those
    timed by hand. A campaign that has not ended has none.
    """
    rows = []
    for folder in campaigns(home):
        with Journal(folder / JOURNAL) as journal:
            meta = journal.meta("campaign", {})
            if meta.get("operator", "").startswith("gmm_fp8/"):
                rows += _finals(journal, meta, folder.name)
    return rows


def _finals(journal: Journal, meta: Mapping[str, Any], campaign: str) -> list[Row]:
    known = {c.genome.id: dict(c.genome.params) for c in journal.candidates()}
    start = next(iter(known.values()), {})
    rows = []
    for name, found in journal.references("final").items():
        if found.verdict is not Verdict.OK or name.startswith("finalist:"):
            continue
        kernel = "evolved" if name == "winner" else name.removeprefix("seed:")
        params = known.get(found.genome, {})
        changed = {key: value for key, value in params.items() if start.get(key) != value}
        rows.append(
            {
                "key": [meta["operator"].split("/")[1], kernel, changed, "gmm-antpretrain", meta["target"]],
                "campaign": campaign,
                "verdict": "ok",
                "params": params,
                "workloads": [f.model_dump(mode="json") for f in found.workloads],
            }
        )
    return rows


def distances(rows: Sequence[Row]) -> list[str]:
    """Markdown: of every campaign, the named tiling beside what evolved from it."""
    lines = ["| recipe | named tiling, us | evolved, us | times | what changed |", "| --- " * 5 + "|"]
    by_campaign: dict[str, dict[str, Row]] = {}
    for row in rows:
        if "campaign" in row:
            by_campaign.setdefault(row["campaign"], {})[row["key"][1]] = row
    for kernels in by_campaign.values():
        if not {"naive", "evolved"} <= kernels.keys():
            continue
        named, best = kernels["naive"], kernels["evolved"]
        changed = ", ".join(f"{name} {value}" for name, value in best["key"][2].items())
        lines.append(
            f"| {best['key'][0]} | {seconds(named) * 1e6:.1f} | {seconds(best) * 1e6:.1f} "
            f"| {seconds(named) / seconds(best):.1f} | {changed} |"
        )
    return lines


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
    return [*lines, "", *distances(rows), "", *agreement(rows, quick)]


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
