"""Time tilings of the grouped products: ``python -m experiments.gmm_phases --out FILE.jsonl [--seconds N]``.

Every line of the output is one kernel on one suite: phase recipe, kernel, parameters, verdict, and its figures
(modelled, one TensorCore). Kernels are timed, not checked: the gates are the campaigns' and the tests'.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from scipy.stats import spearmanr

from evolve.space import Space
from fitness.targets import load_target
from seeds.catalogue import load_operator
from seeds.operator import SeedKernel
from workers.cascade import Cascade

QUICK, WHOLE = "quick", "gmm-antpretrain"
WIDE = {"sub_n": 512, "sub_k": 2048}
PARTIAL = {"dequant": "partial", "placement": "per_use", "narrow": 0, "sub_k": 512, "sub_n": 512}
TILINGS: tuple[tuple[str, str, tuple[dict, ...]], ...] = (
    ("fwd-g512", "bf16", ({"bodies": "shared"},)),
    ("dlhs-g512", "bf16", ({"bodies": "split"},)),
    ("tgmm-g512", "bf16", (WIDE, {"sub_k": 256}, {"sub_n": 256, "sub_k": 512})),
    ("fwd-g512", "once", ({}, {"sub_m": 128}, {"dequant": "operands"}, {"block_k": 1024}, {"block_n": 256})),
    ("dlhs-g512", "once", ({}, {"scaling": "chained"}, {"bodies": "shared"})),
    ("tgmm-g512", "once", ({"sub_k": 256, "sub_n": 512}, PARTIAL)),
    ("fwd-g128", "once", ({"dequant": "operands"}, {})),
    ("dlhs-g128", "once", ({}, {"scaling": "chained"})),
    ("tgmm-g128", "once", ({}, {"placement": "per_use"})),
    ("fwd-g512", "naive", ({},)),
    ("dlhs-g512", "naive", ({},)),
    ("tgmm-g512", "naive", ({},)),
)
"""Recipe, kernel, and what its parameters change: hand-picked, the named tilings last."""


def main() -> int:
    """Time what the budget of seconds allows, the first tiling of every recipe first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("--target", default="tpu7x")
    parser.add_argument("--report", action="store_true", help="print what the file holds, time nothing")
    arguments = parser.parse_args()
    if arguments.report:
        sys.stdout.write("\n".join(report(arguments.out)) + "\n")
        return 0
    began = time.monotonic()
    rounds = max(len(changes) for *_, changes in TILINGS)
    known = set(arguments.out.read_text(encoding="utf-8").splitlines()) if arguments.out.exists() else set()
    done = {json.dumps(json.loads(line)["key"]) for line in known}
    with arguments.out.open("a", encoding="utf-8") as out:
        for number in range(rounds):
            for recipe, kernel, changes in TILINGS:
                if number >= len(changes):
                    continue
                for suite in (QUICK, WHOLE):
                    key = [recipe, kernel, changes[number], suite, arguments.target]
                    if json.dumps(key) in done:
                        continue
                    if time.monotonic() - began > arguments.seconds:
                        return 0
                    out.write(json.dumps({"key": key, **_timed(*key)}) + "\n")
                    out.flush()
    return 0


def _timed(recipe: str, kernel: str, change: dict, suite: str, target: str) -> dict:
    """Verdict and figures by workload of one kernel."""
    operator = load_operator(f"gmm_fp8/{recipe}")
    seed, chosen = operator.kernels[kernel], operator.suites[suite]
    constants = [{**operator.constants, **w.dims} for w in chosen.workloads]
    params = {**Space.from_source(seed.source, constants).defaults, **seed.overrides, **change}
    timed = SeedKernel(seed.name, seed.source, baseline=True, inputs=seed.inputs)
    found = Cascade(operator, load_target(target), chosen).evaluate(
        "timed", seed.source, params, seed=0, baseline=timed
    )
    return {
        "verdict": found.verdict.value,
        "reason": found.reason,
        "params": params,
        "workloads": [f.model_dump(mode="json") for f in found.workloads],
    }


def report(path: Path) -> list[str]:
    """Markdown: every kernel, the phases together against bf16, and how a quarter of the rows ranks kernels."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["verdict"] == "ok"]
    lines = [
        "| recipe | kernel | change | suite | gate_up, down, us | TFLOP/s | cycles | hbm us | bound |",
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
    for suite in (QUICK, WHOLE):
        lines += ["", *_together(rows, suite)]
    return [*lines, "", *_agreement(rows)]


def _shown(rows: list[dict], key: str, factor: float, digits: int = 1) -> str:
    return ", ".join(f"{row[key] * factor:.{digits}f}" for row in rows)


def _seconds(row: dict) -> float:
    return sum(w["seconds"] for w in row["workloads"])


def _together(rows: list[dict], suite: str) -> list[str]:
    """Best of each phase, both projections: total FLOP over total time."""
    here = [row for row in rows if row["key"][3] == suite]
    lines, reference = [], None
    for mix in ("bf16", "g512", "g128"):
        best = []
        for phase in ("fwd", "dlhs", "tgmm"):
            fits = [
                row
                for row in here
                if (row["key"][1] == "bf16" if mix == "bf16" else row["key"][1] != "bf16")
                and row["key"][0].startswith(phase)
                and (mix == "bf16" or row["key"][0].endswith(mix))
            ]
            best += [min(fits, key=_seconds)] if fits else []
        if len(best) < 3:
            continue
        flops = sum(w["tflops"] * w["seconds"] for row in best for w in row["workloads"])
        total = sum(_seconds(row) for row in best)
        roof = sum(w["roofline_fraction"] * w["seconds"] for row in best for w in row["workloads"]) / total
        reference = total if mix == "bf16" else reference
        against = f"{reference / total:.2f} x bf16" if reference else "no bf16 time of all phases"
        phases = ", ".join(f"{row['key'][0]} {_seconds(row) * 1e6:.1f}" for row in best)
        lines.append(
            f"* {suite}, {mix}: {flops / total:.0f} TFLOP/s, {against}, "
            f"{100 * roof:.0f} % of the roofline (us of both projections: {phases})"
        )
    return lines


def _agreement(rows: list[dict]) -> list[str]:
    """Spearman rank correlation of quick and whole times, over kernels of one phase and over all."""
    pairs: dict[str, dict[str, float]] = {}
    for row in rows:
        pairs.setdefault(json.dumps(row["key"][:3]), {})[row["key"][3]] = _seconds(row)
    both = {key: value for key, value in pairs.items() if len(value) == 2}
    lines = []
    for phase in ("fwd", "dlhs", "tgmm", ""):
        chosen = [value for key, value in both.items() if key.startswith(f'["{phase}')]
        if len(chosen) > 2:
            rank = spearmanr([v[QUICK] for v in chosen], [v[WHOLE] for v in chosen]).statistic
            lines.append(
                f"* Spearman, {QUICK} against {WHOLE}, {phase or 'all phases'}: {rank:.3f} ({len(chosen)} kernels)"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
