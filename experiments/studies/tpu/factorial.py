"""One factorial design over the fused kernel's main parameters, on several shapes: a suite for tests of transfer.

    python -m experiments.studies.tpu.factorial --points 120 --minutes 30

Appends a line for each point to ``experiments/records/tpu/tpu7x_fused_factorial.jsonl``: parameters, and modelled
microseconds by shape (null where the point failed). Points come in an order that is the same on every machine,
so a later call goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import product

import numpy as np

from testkit import RECORDS
from tilewright.evolve.space.genome import Genome, Value
from tilewright.evolve.space.space import Space
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Suite, Workload
from tilewright.workers.cascade.modelled import ModelledCascade

OUT = RECORDS / "tpu" / "tpu7x_fused_factorial.jsonl"

SHAPES = ((1024, 2048, 2048), (512, 4096, 2048), (512, 2048, 4096), (1024, 1024, 2048))

LEVELS: dict[str, tuple[Value, ...]] = {
    "block_m": (256, 512, 1024),
    "block_n": (512, 1024),
    "block_k": (1024, 2048),
    "sub_m": (128, 256),
    "placement": ("per_use", "cached", "ahead"),
    "dequant": ("partial", "operands_bf16"),
    "scaling": ("product", "chained"),
}


def workloads() -> tuple[Workload, ...]:
    return tuple(Workload(f"{m}x{n}x{k}", {"M": m, "N": n, "K": k}) for m, n, k in SHAPES)


def points(space: Space) -> list[dict[str, Value]]:
    """The legal points of the design in a fixed random order; what it leaves out has its default."""
    design = [dict(zip(LEVELS, values, strict=True)) for values in product(*LEVELS.values())]
    for point in design:
        point["sub_n"] = point["block_n"]
    legal = [point for point in design if space.legal({**space.defaults, **point})]
    order = np.random.default_rng(0).permutation(len(legal))
    return [legal[int(place)] for place in order]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record a factorial design on the tpu7x model.")
    parser.add_argument("--points", type=int, default=120)
    parser.add_argument("--minutes", type=float, default=30.0)
    told = parser.parse_args(arguments)
    operator, target = load_operator("gemm_fp8_fused/g512"), load_target("tpu7x")
    check = operator.suites["small"].check[0]
    suite = Suite("factorial", workloads(), (check,))
    source = operator.kernels["fused"].source
    constants = [{**operator.constants, **target.constants, **w.dims} for w in (*suite.workloads, check)]
    space = Space.from_source(source, constants)
    done = OUT.read_text().count("\n") if OUT.is_file() else 0
    cascade = ModelledCascade(operator, target, suite)
    began = time.monotonic()
    for number, point in enumerate(points(space)[: told.points]):
        if number < done:
            continue
        if time.monotonic() - began > told.minutes * 60:
            break
        genome = Genome(source, {**space.defaults, **point})
        evaluation = cascade.evaluate(genome.id, source, genome.params, seed=0, best=float("inf"))
        times = {figures.workload: figures.seconds * 1e6 for figures in evaluation.workloads}
        row = {
            "params": {name: point[name] for name in LEVELS},
            "modelled_us": {w.id: round(times[w.id], 3) if w.id in times else None for w in suite.workloads},
            "verdict": evaluation.verdict.value,
        }
        with OUT.open("a") as file:
            file.write(json.dumps(row) + "\n")
        sys.stdout.write(
            f"{number} {evaluation.verdict.value} {evaluation.wall_seconds:.1f} s {evaluation.reason}\n"
        )
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
