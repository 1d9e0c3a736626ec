"""What writing a kernel's copies by hand costs in the time model: the same kernel by the grid and rewritten.

    python -m experiments.studies.tpu.transfers [--targets v6e tpu7x]

Rewrite rules turn the grid's own pipeline into copies in the kernel, double-buffered copies or ``emit_pipeline``; all
are simulated on one shape each. Writes ``experiments/records/tpu/transfers.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported
from tilewright.evolve.proposers.rewrite.registry import pallas_rules
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import WorkloadFigures
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu import time_model
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import SeedKernel, Suite, Workload
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.request import GIB, Limits
from tilewright.workers.toolchains.libtpu_simulator import toolchain

OUT = Path(__file__).resolve().parents[2] / "records" / "tpu" / "transfers.md"
RULES = ("pallas_emit_pipeline", "pallas_double_buffered_copy", "pallas_manual_copy")
LIMITS = Limits(trace=ChildLimits(600.0, 8 * GIB), compile=ChildLimits(900.0, 12 * GIB))


@dataclass(frozen=True)
class Case:
    """One kernel on one shape."""

    operator: str
    kernel: str
    dims: Mapping[str, int]
    params: Mapping[str, object]


CASES = (
    Case("gemm_fp8_fused/g512", "naive", {"M": 1024, "N": 2048, "K": 2048}, {}),
    Case("gemm_fp8_fused/g512", "naive", {"M": 512, "N": 1024, "K": 4096}, {"block_m": 256, "block_n": 512}),
    Case("testkit/fixtures/small_gemm/good", "tiled", {"M": 1024, "N": 1024, "K": 2048}, {"block_m": 256}),
    Case(
        "flash_attention/full",
        "plain",
        {"H": 4, "KV": 4, "S": 1024, "T": 1024, "D": 128},
        {"block_q": 512, "block_k": 512},
    ),
    Case(
        "flash_attention/causal",
        "plain",
        {"H": 2, "KV": 1, "S": 2048, "T": 2048, "D": 256},
        {"block_q": 256, "block_k": 1024},
    ),
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", nargs="+", default=["v6e", "tpu7x"])
    options = parser.parse_args(arguments)
    versions = toolchain()
    lines = [
        "# Copies by hand and by the grid",
        "",
        f"Modelled by time model {time_model.VERSION} (jax {versions['jax']}, libtpu {versions['libtpu']}), in us",
        "a call. Made by `python -m experiments.studies.tpu.transfers`. *Over the grid*: the time of the kernel whose",
        "copies the rule wrote, over that of the kernel it was made of. `manual_copy` starts a copy and waits for",
        "it: no pipeline, and slower on a TPU as well.",
        "",
        "| target | kernel | shape | copies | time, us | over the grid |",
        "| --- | --- | --- | --- | --: | --: |",
    ]
    for target in options.targets:
        for case in CASES:
            lines += _rows(case, target)
    OUT.write_text("\n".join(lines) + "\n")
    sys.stdout.write(OUT.read_text())


def _rows(case: Case, target: str) -> list[str]:
    operator = load_operator(case.operator)
    kernel = operator.kernels[case.kernel]
    workload = Workload("case", dict(case.dims))
    suite = Suite("case", (workload,), (workload,))
    cascade = ModelledCascade(operator, load_target(target), suite, LIMITS)

    def timed(source: str) -> WorkloadFigures | str:
        space = Space.from_source(source, [{**operator.constants, **workload.dims}])
        params = {**space.defaults, **kernel.overrides, **case.params}
        seed = SeedKernel("timed", source, baseline=True, inputs=kernel.inputs)
        found = cascade.evaluate("case", source, params, seed=1, baseline=seed)
        return found.workloads[0] if found.workloads else found.reason

    shape = " x ".join(f"{name} {size}" for name, size in case.dims.items())
    grid = timed(kernel.source)
    if isinstance(grid, str):
        return [
            f"| {target} | {case.operator} {case.kernel} | {shape} | grid | {grid[:90].replace('|', '/')} | |"
        ]
    rows = [f"| {target} | {case.operator} {case.kernel} | {shape} | grid | {grid.seconds * 1e6:.2f} | |"]
    for name in RULES:
        source = _rewritten(kernel.source, name)
        if source is None:
            continue
        found = timed(source)
        label = name.removeprefix("pallas_")
        if isinstance(found, str):
            rows.append(f"| | | | {label} | {found[:90].replace('|', '/')} | |")
        else:
            rows.append(f"| | | | {label} | {found.seconds * 1e6:.2f} | {found.seconds / grid.seconds:.3f} |")
    return rows


def _rewritten(source: str, name: str) -> str | None:
    """The source with the rule applied to every input in turn, None where it applies nowhere."""
    rule = next(rule for rule in pallas_rules() if rule.name == name)
    made = None
    for _ in range(4):
        kernel = KernelSource(source if made is None else made)
        try:
            sites = rule.sites(kernel)
        except Unsupported:
            break
        if not sites:
            break
        child = rule.apply(kernel, sites[0], np.random.default_rng(0))
        if child is None:
            break
        made = child.source
    return made


if __name__ == "__main__":
    main(sys.argv[1:])
