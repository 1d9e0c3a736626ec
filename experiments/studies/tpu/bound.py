"""What bounds g128 beside bf16 on tpu7x: the units' shares of the simulator's cycles, as a table and a picture.

    python -m experiments.studies.tpu.bound FACTS [--point NAME ...]

Simulates points of ``gemm_fp8_fused/g128`` at 4096 x 4096 x 4096 that the file FACTS lacks (up to two minutes of one
core each; no gate runs), keeps what the simulator said there, prints the table in Markdown, and writes the picture,
``experiments/records/tpu/tpu7x_g128_bound.svg``.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu.time_model import CALIBRATIONS
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Suite
from tilewright.seeds.shaped import gemm
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.request import Limits

PICTURE = Path(__file__).resolve().parents[2] / "records" / "tpu" / "tpu7x_g128_bound.svg"
SIDE = 4096
_BEST = {
    "block_m": 1024, "block_k": 4096, "sub_m": 128, "sub_n": 512, "placement": "ahead", "dequant": "operands_bf16",
    "row_scale": "absmax",
}  # fmt: skip
POINTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bf16": ("bf16", {}),
    "naive": ("naive", {"block_m": 1024, "block_n": 256, "block_k": 2048}),
    "fused": ("fused", _BEST),
    "streamed": ("streamed", {**_BEST, "copies": "kernel", "first_rows": 256}),
}
"""By name kernel and parameters: the baseline; e4m3 dots of one group; operands scaled to bf16, twice."""

UNITS = {
    "mxu_busy": ("matrix", "#3b6ea8"), "valu_busy": ("vector", "#d08a2e"), "load_busy": ("loads", "#7a9e5f"),
    "store_busy": ("stores", "#a36aa5"), "xlu_busy": ("lanes", "#999999"),
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("facts", type=Path)
    parser.add_argument("--point", choices=list(POINTS), action="append")
    told = parser.parse_args(arguments)
    facts = json.loads(told.facts.read_text()) if told.facts.exists() else {}
    for name in told.point or POINTS:
        if name not in facts:
            facts[name] = simulated(*POINTS[name])
            told.facts.write_text(json.dumps(facts, indent=1))
    known = {name: facts[name] for name in POINTS if name in facts}
    PICTURE.write_text(picture(known))
    sys.stdout.write(table(known))


def simulated(kernel: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Microseconds and diagnosis of one point. Raises ValueError where it has no time."""
    operator, whole = load_operator("gemm_fp8_fused/g128"), gemm(SIDE, SIDE, SIDE)
    seed = operator.kernels[kernel]
    params = {**read_declarations(seed.source).defaults, **seed.overrides, **changed}
    limits = Limits(ChildLimits(600.0, 8 << 30), ChildLimits(1800.0, 12 << 30))
    suite = Suite("bound", (whole,), check=(gemm(256, 512, SIDE),))
    cascade = ModelledCascade(operator, load_target("tpu7x"), suite, limits)
    baseline = seed if seed.baseline else None
    found = cascade.evaluate(kernel, seed.source, params, seed=0, baseline=baseline, only=[whole.id])
    if not found.workloads:
        raise ValueError(f"{kernel}: {found.verdict}: {found.reason}")
    return {"us": 1e6 * found.workloads[0].seconds, "params": params, **found.workloads[0].diagnosis}


def busy(fact: Mapping[str, Any], unit: str) -> float:
    """Microseconds that a unit must be busy for at its full rate, on what was executed."""
    return 1e6 * float(fact[unit]) * int(fact["cycles"]) / CALIBRATIONS["tpu7x"].rules.clock


def table(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each point, in microseconds: time, interval, core, waiting, and what each unit must be busy for."""
    units = [unit for unit, _ in UNITS.values()]
    lines = [f"| point | us | 90 % | core | waited | {' | '.join(units)} | bound |", "|" + " --- |" * 11]
    for name, fact in facts.items():
        ends = ("seconds_low", "seconds_high", "core_seconds", "waited_seconds")
        low, high, *parts = (f"{1e6 * fact[key]:.1f}" for key in ends)
        cells = [
            name,
            f"{fact['us']:.1f}",
            f"{low} to {high}",
            *parts,
            *(f"{busy(fact, key):.1f}" for key in UNITS),
        ]
        lines.append(f"| {' | '.join([*cells, fact['bound']])} |")
    return "\n".join(lines) + "\n"


def picture(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """In SVG: for each point a frame of the time's length, in it a bar for each unit, how long it must be busy."""
    scale, bar, left, top = 560 / max(fact["us"] for fact in facts.values()), 13, 110, 34
    parts = [
        f'<text x="{left + 95 * n}" y="18" fill="{colour}">■ {unit}</text>'
        for n, (unit, colour) in enumerate(UNITS.values())
    ]
    for name, fact in facts.items():
        wide = scale * fact["us"]
        parts.append(
            f'<text x="8" y="{top + 38}">{name}</text><text x="{left + wide + 5:.0f}" y="{top + 38}">{fact["us"]:.1f}'
            f'</text><rect x="{left}" y="{top}" width="{wide:.1f}" height="{5 * bar}" fill="none" stroke="#444"/>'
        )
        for row, (key, (_, colour)) in enumerate(UNITS.items()):
            size = f'width="{scale * busy(fact, key):.1f}" height="{bar - 2}"'
            parts.append(f'<rect x="{left}" y="{top + row * bar}" {size} fill="{colour}"/>')
        top += 5 * bar + 26
    parts.append(f'<text x="{left}" y="{top}">us of one call at {SIDE} cubed, tpu7x, modelled</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{top + 12}" font-family="sans-serif">'
    )
    return f'{head}<rect width="760" height="{top + 12}" fill="white"/>{"".join(parts)}</svg>\n'


if __name__ == "__main__":
    main(sys.argv[1:])
