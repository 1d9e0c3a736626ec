"""Time tilings of the grouped products: ``python -m experiments.studies.tpu.gmm_phases --out FILE.jsonl
[--seconds N]``.

Every line of the output is one kernel on one suite: phase recipe, kernel, parameters, verdict, and its figures
(modelled, one TensorCore). Kernels are timed, not checked: the gates are the campaigns' and the tests'.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from experiments.studies.tpu.gmm_report import evolved, report
from tilewright.evolve.space.space import Space
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import SeedKernel
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.request import Limits

LIMITS = Limits(ChildLimits(600.0), ChildLimits(600.0))
"""Wall clocks that only a hung child reaches, even on a busy machine."""

QUICK, WHOLE, LARGE = "quick", "gmm-antpretrain", "gmm-large-slice"
WIDE = {"sub_n": 512, "sub_k": 2048}
PARTIAL = {"dequant": "partial", "placement": "per_use", "narrow": 0, "sub_k": 512, "sub_n": 512}
NARROW = {"arithmetic": "bf16"}
TILINGS: tuple[tuple[str, str, tuple[dict, ...]], ...] = (
    ("fwd-g128", "once", ({"dequant": "operands"} | NARROW,)),
    ("dlhs-g128", "once", ({"dequant": "operands"} | NARROW,)),
    ("tgmm-g128", "once", (NARROW, NARROW | {"sub_k": 256})),
    ("fwd-g512", "bf16", ({"bodies": "shared"},)),
    ("dlhs-g512", "bf16", ({"bodies": "split"},)),
    (
        "tgmm-g512",
        "bf16",
        (WIDE, {"sub_k": 256}, {"sub_n": 256, "sub_k": 512}, {"sub_n": 2048, "sub_k": 512}),
    ),
    ("fwd-g512", "once", ({}, {"sub_m": 128}, {"dequant": "operands"}, {"block_k": 1024}, {"block_n": 256})),
    ("dlhs-g512", "once", ({}, {"scaling": "chained"}, {"bodies": "shared"})),
    ("tgmm-g512", "once", ({"sub_k": 256, "sub_n": 512}, PARTIAL)),
    ("fwd-g128", "once", ({"dequant": "operands"}, {})),
    ("dlhs-g128", "once", ({}, {"scaling": "chained"})),
    ("tgmm-g128", "once", ({}, {"placement": "cached", "sub_n": 512, "sub_k": 256})),
    ("fwd-g512", "naive", ({},)),
    ("dlhs-g512", "naive", ({},)),
    ("tgmm-g512", "naive", ({},)),
)
"""Recipe, kernel, and what its parameters change: hand-picked, the named tilings last."""

WHOLE_MATRIX = {"block_k": 8192, "block_n": 8192, "order": "visits"}
ROWS_512 = WHOLE_MATRIX | {"block_m": 512, "sub_m": 512}
HALF_MATRIX = {"block_m": 1024, "block_k": 4096, "block_n": 1024, "sub_k": 512, "sub_n": 512}
QUARTER = {
    "block_k": 2048, "sub_k": 256, "sub_n": 1024, "placement": "per_use", "dequant": "partial", "narrow": 0,
}  # fmt: skip
ON_LARGE: tuple[tuple[str, str, tuple[dict, ...]], ...] = (
    ("fwd-g512", "bf16", (ROWS_512, WHOLE_MATRIX)),
    ("fwd-g512", "once", (WHOLE_MATRIX, WHOLE_MATRIX | {"scaling": "chained"})),
    ("fwd-g512", "once", (WHOLE_MATRIX | {"scaling": "chained"} | NARROW,)),
    ("dlhs-g512", "bf16", (ROWS_512, WHOLE_MATRIX)),
    ("dlhs-g512", "once", (WHOLE_MATRIX, WHOLE_MATRIX | {"scaling": "chained"})),
    ("tgmm-g512", "bf16", (HALF_MATRIX, HALF_MATRIX | {"sub_n": 1024})),
    ("tgmm-g512", "once", (HALF_MATRIX | {"placement": "cached", "narrow": 0},)),
    ("tgmm-g512", "once", (HALF_MATRIX | {"sub_n": 1024, "placement": "per_use", "narrow": 0} | NARROW,)),
    ("tgmm-g512", "once", (HALF_MATRIX | QUARTER | NARROW,)),
    (
        "fwd-g128",
        "once",
        (
            ROWS_512 | {"dequant": "operands"} | NARROW,
            WHOLE_MATRIX | {"dequant": "operands"} | NARROW,
            WHOLE_MATRIX | {"dequant": "operands"},
        ),
    ),
    (
        "dlhs-g128",
        "once",
        (ROWS_512 | {"dequant": "operands"} | NARROW, WHOLE_MATRIX | {"dequant": "operands"} | NARROW),
    ),
    ("tgmm-g128", "once", (HALF_MATRIX | {"sub_n": 1024, "placement": "per_use", "narrow": 0} | NARROW,)),
)
"""The same on one part in 64 of ``gmm-large``."""


def main() -> int:
    """Time what the budget of seconds allows, the first tiling of every recipe first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("--target", default="tpu7x")
    parser.add_argument(
        "--large", action="store_true", help="one part of gmm-large instead of gmm-antpretrain"
    )
    parser.add_argument("--report", action="store_true", help="print what the file holds, time nothing")
    parser.add_argument(
        "--home", type=Path, help="with --report: a home whose campaigns' winners are shown as well"
    )
    arguments = parser.parse_args()
    if arguments.report:
        rows = [json.loads(line) for line in arguments.out.read_text(encoding="utf-8").splitlines()]
        rows += evolved(arguments.home) if arguments.home else []
        sys.stdout.write("\n".join(report(rows, (QUICK, WHOLE, LARGE), QUICK)) + "\n")
        return 0
    began = time.monotonic()
    table, suites = (ON_LARGE, (LARGE,)) if arguments.large else (TILINGS, (QUICK, WHOLE))
    rounds = max(len(changes) for *_, changes in table)
    known = set(arguments.out.read_text(encoding="utf-8").splitlines()) if arguments.out.exists() else set()
    done = {json.dumps(json.loads(line)["key"]) for line in known}
    with arguments.out.open("a", encoding="utf-8") as out:
        for number in range(rounds):
            for recipe, kernel, changes in table:
                if number >= len(changes):
                    continue
                for suite in suites:
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
    found = ModelledCascade(operator, load_target(target), chosen, LIMITS).evaluate(
        "timed", seed.source, params, seed=0, baseline=timed
    )
    return {
        "verdict": found.verdict.value,
        "reason": found.reason,
        "params": params,
        "workloads": [f.model_dump(mode="json") for f in found.workloads],
    }


if __name__ == "__main__":
    sys.exit(main())
