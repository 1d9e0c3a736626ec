"""Do cheap proxies rank schedules like the time model? Spearman's rank correlation on recorded schedules.

    python -m experiments.studies.tpu.proxy --minutes 15

The schedules, with the simulator's cycles, are those of ``experiments/records/tpu/tpu7x_fused_schedules.jsonl`` at
2048 x 2048 x 4096. One proxy (``step_code``) reads the compiled code of one grid step and simulates nothing,
the other simulates one row block. Points are kept in ``experiments/records/tpu/tpu7x_proxy.jsonl`` and a
later call goes on, the table is ``tpu7x_proxy.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from experiments.studies.tpu import step_code as fallback
from testkit import RECORDS
from tilewright.evolve.space.space import Space
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu.structure import ModuleFacts
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import SeedKernel, Suite, Workload
from tilewright.workers.cascade.modelled import ModelledCascade, pallas_template
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import Launcher
from tilewright.workers.child.run_once import ChildLimits, run_child, temporary_folder
from tilewright.workers.toolchains import libtpu_simulator

RESULTS = RECORDS / "tpu"
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
            extra_environment=libtpu_simulator.trace_environment(), launcher=launcher,
        )  # fmt: skip
    traced = outcome.first("traced")
    if traced is None:
        raise RuntimeError(outcome.detail or str(outcome.frames[-1].data.get("message")))
    described["calling_convention"] = traced.data["calling_convention"]
    with temporary_folder() as folder:
        job = {"topology": CHIP.topology, "workloads": [described], "facts_only": []}
        outcome = run_child(
            Frame("pallas.compile", job, blobs={"w": traced.blobs["module"]}), LIMITS, folder,
            extra_environment=libtpu_simulator.compile_environment(folder, simulate=False), launcher=launcher,
        )  # fmt: skip
        facts, compiled = outcome.first("facts"), outcome.first("compiled")
        if facts is None or compiled is None:
            raise RuntimeError(outcome.detail or "the compiler failed")
        flops = ModuleFacts.from_data(facts.data).matmul_flops or 0
        codes = (folder / compiled.data["folder"] / "llo").glob("*final_bundles.txt")
        texts = [path.read_text(errors="replace") for path in codes if fallback.is_kernel(path.name)]
    return fallback.estimate_cycles(texts, flops, CHIP)


def sliced_cycles(row: dict[str, Any]) -> float:
    """The simulator's cycles of one row block with all of its columns, times the number of row blocks.

    Raises RuntimeError when it fails.
    """
    operator, target = load_operator(f"gemm_fp8_fused/{row['recipe']}"), load_target("tpu7x")
    kernel = operator.kernels[row["kernel"]]
    constants = {**operator.constants, **target.constants, **SHAPE}
    params = {**Space.from_source(kernel.source, [constants]).defaults, **kernel.overrides, **row["changed"]}
    rows = min(SHAPE["M"], params["block_m"])
    part = Workload("slice", {**SHAPE, "M": rows})
    timed = SeedKernel(
        kernel.name, kernel.source, baseline=True, inputs=kernel.inputs if kernel.baseline else None
    )
    suite = Suite("slice", (part,), (part,))
    found = ModelledCascade(operator, target, suite).evaluate(
        "slice", kernel.source, params, seed=0, baseline=timed
    )
    if found.fitness is None:
        raise RuntimeError(found.reason)
    return float(found.workloads[0].diagnosis["cycles"] * (SHAPE["M"] // rows))


PROXIES = {"proxy": "code of one grid step", "slice": "one row block"}
"""Key of a point to what the proxy looks at; seconds of it are at ``KEY_seconds``, of the first at ``seconds``."""


def report(points: Sequence[dict[str, Any]]) -> str:
    """The table."""
    versions = ", ".join(f"{name} {version}" for name, version in libtpu_simulator.toolchain().items())
    lines = [
        "# Proxies of the time model (tpu7x, modelled)",
        "",
        f"`python -m experiments.studies.tpu.proxy`, {time.strftime('%Y-%m-%d', time.gmtime())}, {versions}. "
        "Recorded schedules of the fused FP8 GEMM and its baselines at 2048 x 2048 x 4096 "
        "(`tpu7x_fused_schedules.jsonl`): cycles of libtpu's simulator there against two estimates. *Code of one grid "
        "step* reads the compiled code and simulates nothing (`step_code.py`). *One row block* simulates the "
        "first block_m rows with all columns and all of K, and multiplies. All figures are modelled.",
        "",
        "| proxy | schedules | number | Spearman | estimate / simulator | the proxy's first takes, of the fastest | "
        "seconds (median) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, name in PROXIES.items():
        for recipe_name in (None, *sorted({p["recipe"] for p in points})):
            chosen = [p for p in points if recipe_name in (None, p["recipe"]) and key in p]
            if len(chosen) >= 5:
                lines.append(f"| {name} | {recipe_name or 'all'} | {_agreement(chosen, key)} |")
    lines += [
        "",
        "Seconds are wall clock on a machine shared with other work: trace and compile, and for a row block the "
        "simulation and the reading of its dumps. Neither proxy passes a gate. What the first ranks wrongly are "
        "schedules that do part of their work in some steps only (`cached` and `ahead` with operands dequantised at "
        "use): it counts code that a step may skip in every step, or not at all. A row block runs that code as often "
        "as it is run.",
    ]
    if not any("slice" in p for p in points):
        lines += ["", "No schedule has been timed on one row block yet."]
    return "\n".join([*lines, "", *smaller_problems()]) + "\n"


def smaller_problems() -> list[str]:
    """Table: recorded schedules on smaller problems against the same at 4096^3."""
    cycles: dict[str, dict[tuple[int, ...], int]] = {}
    for line in (RESULTS / "tpu7x_fused_schedules.jsonl").read_text().splitlines():
        row = json.loads(line)
        key = json.dumps([row["recipe"], row["kernel"], row["changed"]], sort_keys=True)
        cycles.setdefault(key, {})[row["M"], row["N"], row["K"]] = row["cycles"]
    lines = [
        "A smaller problem, simulated whole, as the proxy of 4096 x 4096 x 4096 (schedules recorded at both shapes):",
        "",
        "| shape | its part of the work | number | Spearman |",
        "| --- | --- | --- | --- |",
    ]
    whole = (4096, 4096, 4096)
    for shape in sorted({shape for found in cycles.values() for shape in found} - {whole}):
        pairs = [(found[shape], found[whole]) for found in cycles.values() if {shape, whole} <= found.keys()]
        if len(pairs) >= 8:
            rank = spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic
            part = math.prod(shape) / math.prod(whole)
            lines.append(f"| {' x '.join(map(str, shape))} | {part:.3f} | {len(pairs)} | {rank:.3f} |")
    return lines


def _agreement(points: Sequence[dict[str, Any]], key: str) -> str:
    """Cells of the table: number, rank correlation, ratios, cost of believing the proxy, seconds."""
    rank = spearmanr([p["cycles"] for p in points], [p[key] for p in points]).statistic
    ratios = sorted(p[key] / p["cycles"] for p in points)
    first = min(points, key=lambda p: p[key])["cycles"] / min(p["cycles"] for p in points)
    seconds = sorted(p["seconds" if key == "proxy" else f"{key}_seconds"] for p in points)
    return (
        f"{len(points)} | {rank:.3f} | {ratios[0]:.2f} to {ratios[-1]:.2f} | {first:.3f} | "
        f"{seconds[len(seconds) // 2]:.1f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rank agreement of fast proxies with the time model.")
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument(
        "--report", action="store_true", help="write the table of what is recorded, run nothing"
    )
    told = parser.parse_args(arguments)
    path = RESULTS / "tpu7x_proxy.jsonl"
    points = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    if not told.report:
        record(points, told.points, 60 * told.minutes, path)
    (RESULTS / "tpu7x_proxy.md").write_text(report(points), encoding="utf-8")
    return 0


def record(points: list[dict[str, Any]], most: int, seconds: float, path: Path) -> None:
    """Add what is missing to ``points`` and their file, until there are ``most`` or the time is over."""
    known = {(p["recipe"], p["cycles"]): p for p in points}
    launcher, began = pallas_template(), time.monotonic()
    for row in schedules():
        point = known.get((row["recipe"], row["cycles"]))
        if time.monotonic() - began > seconds:
            break
        if point is None and len(points) >= most:
            continue
        if point is None:
            point = {name: row[name] for name in ("recipe", "kernel", "changed", "cycles")}
        elif "slice" in point:
            continue
        else:
            points.remove(point)
        try:
            for key, measure in (
                ("proxy", partial(proxy_cycles, launcher=launcher)),
                ("slice", sliced_cycles),
            ):
                if key not in point:
                    begun = time.monotonic()
                    point[key] = measure(row)
                    taken = round(time.monotonic() - begun, 2)
                    point["seconds" if key == "proxy" else f"{key}_seconds"] = taken
        except RuntimeError as error:
            sys.stderr.write(f"left out: {row['recipe']} {row['changed']}: {error}\n")
            continue
        finally:
            if "proxy" in point:
                points.append(point)
        path.write_text("".join(json.dumps(p) + "\n" for p in points), encoding="utf-8")
        sys.stderr.write(
            f"{len(points)} {point['recipe']} {point['cycles']} {point['proxy']} {point['slice']}\n"
        )


if __name__ == "__main__":
    sys.exit(main())
