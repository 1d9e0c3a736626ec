"""What bounds g128 beside bf16 on tpu7x: the units' shares of the simulator's cycles, as a table and a picture.

    python -m experiments.studies.tpu.bound [--facts FILE] [--point NAME ...]

Simulates points of ``gemm_fp8_fused/g128`` at 4096 x 4096 x 4096 that FILE lacks (one to two minutes of one core each;
no gate runs: the points are those of the record, which passed), keeps what the simulator said there, and writes
``experiments/records/tpu/tpu7x_g128_bound.svg``. Prints the table, in Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu.time_model import VERSION
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Suite
from tilewright.seeds.shaped import gemm
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.request import Limits

OUT = Path(__file__).resolve().parents[2] / "records" / "tpu"
SIDE = 4096
_BEST = {
    "block_m": 1024, "block_k": 4096, "sub_m": 128, "sub_n": 512, "placement": "ahead", "dequant": "operands_bf16",
    "row_scale": "absmax",
}  # fmt: skip
POINTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bf16": ("bf16", {}),
    "naive": ("naive", {"block_m": 1024, "block_n": 256, "block_k": 2048}),
    "fused, grid": ("fused", _BEST),
    "fused, copies": ("streamed", {**_BEST, "copies": "kernel", "first_rows": 256}),
}
"""Kernel and parameters: the baseline; e4m3 dots of one group; scaled to bf16 by the grid, and with copies written
out."""

UNITS = {
    "mxu_busy": "matrix",
    "valu_busy": "vector",
    "load_busy": "loads",
    "store_busy": "stores",
    "xlu_busy": "lanes",
}
COLOURS = {
    "matrix": "#3b6ea8",
    "vector": "#d08a2e",
    "loads": "#7a9e5f",
    "stores": "#a36aa5",
    "lanes": "#999999",
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--facts", type=Path, default=Path("g128_bound.json"))
    parser.add_argument("--point", choices=list(POINTS), action="append")
    told = parser.parse_args(arguments)
    facts = json.loads(told.facts.read_text()) if told.facts.exists() else {}
    for name in told.point or POINTS:
        if name not in facts:
            facts[name] = simulated(*POINTS[name])
            told.facts.write_text(json.dumps(facts, indent=1))
    known = {name: facts[name] for name in POINTS if name in facts}
    (OUT / "tpu7x_g128_bound.svg").write_text(picture(known))
    sys.stdout.write(table(known))


def simulated(kernel: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Microseconds and diagnosis of one point. Raises ValueError where it has no time."""
    operator = load_operator("gemm_fp8_fused/g128")
    seed = operator.kernels[kernel]
    params = {**read_declarations(seed.source).defaults, **seed.overrides, **changed}
    whole = gemm(SIDE, SIDE, SIDE)
    limits = Limits(ChildLimits(600.0, 8 << 30), ChildLimits(1800.0, 12 << 30))
    suite = Suite("bound", (whole,), check=(gemm(256, 512, SIDE),))
    cascade = ModelledCascade(operator, load_target("tpu7x"), suite, limits)
    baseline = seed if seed.baseline else None
    found = cascade.evaluate(kernel, seed.source, params, seed=0, baseline=baseline, only=[whole.id])
    if not found.workloads:
        raise ValueError(f"{kernel}: {found.verdict}: {found.reason}")
    (figure,) = found.workloads
    return {"us": 1e6 * figure.seconds, "params": params, **figure.diagnosis}


def table(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each point: time, interval, and each unit's share of the cycles at its full rate."""
    head = ["point", "us", "90 %", "core, us", "waited, us", *UNITS.values(), "bound"]
    lines = [f"Time model {VERSION}.", "", f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name, fact in facts.items():
        low, high, core, waited = (
            f"{1e6 * fact[key]:.1f}"
            for key in ("seconds_low", "seconds_high", "core_seconds", "waited_seconds")
        )
        shares = [f"{fact[key]:.0%}" for key in UNITS]
        cells = [name, f"{fact['us']:.1f}", f"{low} to {high}", core, waited, *shares, fact["bound"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Bars in SVG: for each point the microseconds that each unit must be busy for, and the whole time as a frame."""
    scale, bar, gap, left = 560 / max(fact["us"] for fact in facts.values()), 13, 26, 110
    parts, top = [], 34
    for name, fact in facts.items():
        core = 1e6 * fact["core_seconds"]
        parts.append(f'<text x="8" y="{top + 38}">{name}</text>')
        height = bar * len(UNITS)
        parts.append(
            f'<rect x="{left}" y="{top}" width="{scale * fact["us"]:.1f}" height="{height}" fill="none" stroke="#444"/>'
            f'<text x="{left + scale * fact["us"] + 5:.1f}" y="{top + 38}">{fact["us"]:.1f}</text>'
        )
        for row, (key, unit) in enumerate(UNITS.items()):
            parts.append(
                f'<rect x="{left}" y="{top + row * bar + 1}" width="{scale * core * fact[key]:.1f}" '
                f'height="{bar - 2}" fill="{COLOURS[unit]}"><title>{unit}: {fact[key]:.1%} of the core</title></rect>'
            )
        top += height + gap
    key = "".join(
        f'<rect x="{left + 95 * n}" y="8" width="11" height="11" fill="{colour}"/>'
        f'<text x="{left + 95 * n + 16}" y="18">{unit}</text>'
        for n, (unit, colour) in enumerate(COLOURS.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{top + 10}" font-family="sans-serif" '
        f'font-size="13"><rect width="760" height="{top + 10}" fill="white"/>{key}{"".join(parts)}'
        f'<text x="{left}" y="{top}">us of one call at {SIDE}³, tpu7x, modelled: '
        f"the whole, and each unit at full rate</text></svg>\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
