"""Does a cheap proxy rank schedules like the time model? Spearman's rank correlation on recorded schedules.

    python -m experiments.benchmarks.tpu7x_proxy --minutes 15

The schedules, with the simulator's cycles, are those of ``experiments/results/tpu7x_fused_schedules.jsonl`` at
2048 x 2048 x 4096. The proxy (``fitness.fallback``) reads the compiled code of one grid step and simulates nothing.
Points are appended to ``experiments/results/tpu7x_proxy.jsonl`` and a later call goes on, the table is
``tpu7x_proxy.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from evolve.space import Space
from fitness import fallback
from fitness.chips import CHIPS
from fitness.structure import ModuleFacts
from fitness.targets import load_target
from seeds.catalogue import load_operator
from seeds.operator import Workload
from workers import recipe
from workers.cascade import pallas_template
from workers.frames import Frame
from workers.processes import Launcher
from workers.sandbox import ChildLimits, run_child, temporary_folder

RESULTS = Path(__file__).resolve().parent.parent / "results"
SHAPE = {"M": 2048, "N": 2048, "K": 4096}
CHIP = CHIPS["tpu7x"]
LIMITS = ChildLimits(200.0, 12 << 30)


def schedules() -> list[dict[str, Any]]:
    """The recorded ones of the shape, one for each time, recipes in turn."""
    lines = (RESULTS / "tpu7x_fused_schedules.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if all(row[name] == size for name, size in SHAPE.items())]
    once = {(row["recipe"], row["cycles"]): row for row in rows}.values()
    by_recipe: dict[str, list[dict[str, Any]]] = {}
    for row in once:
        by_recipe.setdefault(row["recipe"], []).append(row)
    # every k-th of the sorted times, so that an early end still spans them
    spread = {name: sorted(found, key=lambda r: r["cycles"]) for name, found in by_recipe.items()}
    order = [row for found in spread.values() for row in (*found[::3], *found[1::3], *found[2::3])]
    return sorted(order, key=lambda row: spread[row["recipe"]].index(row) % 3)


def proxy_cycles(row: dict[str, Any], launcher: Launcher) -> int:
    """The estimate of one recorded schedule, in cycles. Raises RuntimeError when it does not compile any more."""
    operator, workload = load_operator(f"gemm_fp8_fused/{row['recipe']}"), Workload("w", SHAPE)
    kernel = operator.kernels[row["kernel"]]
    constants = {**operator.constants, **load_target("tpu7x").constants, **SHAPE}
    space = Space.from_source(kernel.source, [constants])
    params = {**space.defaults, **kernel.overrides, **row["changed"]}
    if reasons := space.violations(params):
        raise RuntimeError(reasons[0])
    tensors = {
        "inputs": operator.inputs(workload, kernel.inputs if kernel.baseline else None),
        "outputs": operator.outputs(workload),
    }
    described: dict[str, Any] = {
        side: [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in specs]
        for side, specs in tensors.items()
    }
    described["id"] = "w"
    job = {
        "source": kernel.source, "params": params, "workloads": [described], "check": [],
        "chip": {"kind": CHIP.device_kind, "cores": CHIP.cores},
    }  # fmt: skip
    with temporary_folder() as folder:
        outcome = run_child(
            Frame("pallas.trace", job), LIMITS, folder,
            extra_environment=recipe.trace_environment(), launcher=launcher,
        )  # fmt: skip
    traced = outcome.first("traced")
    if traced is None:
        raise RuntimeError(outcome.detail or str(outcome.frames[-1].data.get("message")))
    described["calling_convention"] = traced.data["calling_convention"]
    with temporary_folder() as folder:
        job = {"topology": CHIP.topology, "workloads": [described], "facts_only": []}
        outcome = run_child(
            Frame("pallas.compile", job, blobs={"w": traced.blobs["module"]}), LIMITS, folder,
            extra_environment=recipe.compile_environment(folder, simulate=False), launcher=launcher,
        )  # fmt: skip
        facts, compiled = outcome.first("facts"), outcome.first("compiled")
        if facts is None or compiled is None:
            raise RuntimeError(outcome.detail or "the compiler failed")
        flops = ModuleFacts.from_data(facts.data).matmul_flops or 0
        codes = (folder / compiled.data["folder"] / "llo").glob("*final_bundles.txt")
        texts = [path.read_text(errors="replace") for path in codes if fallback.is_kernel(path.name)]
    return fallback.estimate_cycles(texts, flops, CHIP)


def report(points: Sequence[dict[str, Any]]) -> str:
    """The table."""
    versions = ", ".join(f"{name} {version}" for name, version in recipe.toolchain().items())
    lines = [
        "# A proxy without the simulator (tpu7x, modelled)",
        "",
        f"`python -m experiments.benchmarks.tpu7x_proxy`, {time.strftime('%Y-%m-%d', time.gmtime())}, {versions}. "
        "Recorded schedules of the fused FP8 GEMM and its baselines at 2048 x 2048 x 4096 "
        "(`tpu7x_fused_schedules.jsonl`): cycles of libtpu's simulator against the estimate from the compiled code of "
        "one grid step (`fitness/fallback.py`). All figures are modelled.",
        "",
        "| schedules | number | Spearman | estimate / simulator |",
        "| --- | --- | --- | --- |",
    ]
    for recipe_name in (None, *sorted({p["recipe"] for p in points})):
        chosen = [p for p in points if recipe_name in (None, p["recipe"])]
        if len(chosen) < 5:
            continue
        rank = spearmanr([p["cycles"] for p in chosen], [p["proxy"] for p in chosen]).statistic
        ratios = sorted(p["proxy"] / p["cycles"] for p in chosen)
        lines.append(
            f"| {recipe_name or 'all'} | {len(chosen)} | {rank:.3f} | {ratios[0]:.2f} to {ratios[-1]:.2f} |"
        )
    best = sorted(points, key=lambda p: p["cycles"])[: max(1, len(points) // 10)]
    leaders = sorted(points, key=lambda p: p["proxy"])[: len(best)]
    kept = sum(p in leaders for p in best)
    seconds = [p["seconds"] for p in points]
    lines += [
        "",
        "What it ranks wrongly are schedules that do part of their work in some steps only (`cached` and `ahead` with "
        "operands dequantised at use): it counts code that a step may skip in every step, or not at all.",
        "",
        f"Of the fastest tenth by the simulator ({len(best)} schedules) the proxy's fastest tenth holds {kept}. "
        f"The fastest by the proxy takes {leaders[0]['cycles'] / best[0]['cycles']:.3f} times the cycles of the "
        f"fastest. A proxy evaluation took {sorted(seconds)[len(seconds) // 2]:.1f} s (median; trace and compile, on a "
        "machine shared with other work).",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rank agreement of a fast proxy with the time model.")
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=15.0)
    told = parser.parse_args(arguments)
    path = RESULTS / "tpu7x_proxy.jsonl"
    points = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    known = {(p["recipe"], p["cycles"]) for p in points}
    launcher, began = pallas_template(), time.monotonic()
    for row in schedules():
        if len(points) >= told.points or time.monotonic() - began > 60 * told.minutes:
            break
        if (row["recipe"], row["cycles"]) in known:
            continue
        begun = time.monotonic()
        try:
            proxy = proxy_cycles(row, launcher)
        except RuntimeError as error:
            sys.stderr.write(f"left out: {row['recipe']} {row['changed']}: {error}\n")
            continue
        seconds = time.monotonic() - begun
        kept = {name: row[name] for name in ("recipe", "kernel", "changed", "cycles")}
        points.append({**kept, "proxy": proxy, "seconds": round(seconds, 2)})
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(points[-1]) + "\n")
        sys.stderr.write(f"{len(points)} {row['recipe']} {row['cycles']} {proxy} {seconds:.1f} s\n")
    (RESULTS / "tpu7x_proxy.md").write_text(report(points), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
