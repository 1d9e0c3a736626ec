"""What ``h200.fp8_grouped`` tries and on which layers; and compiling it ahead, without the GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.studies.h200.mx_points import grid
from testkit.compile_ahead import Point, Task, compiled_ahead, described
from tilewright.evolve.space.space import Space
from tilewright.seeds.gemm_fp8_blockwise.grouped import DepthGroups, RowGroups
from tilewright.seeds.gemm_fp8_blockwise.operator import operators
from tilewright.seeds.operator import TensorSpec, Workload

LAYERS = {
    "DeepSeek-V3 gate, up": (4096, 7168),
    "DeepSeek-V3 down": (7168, 2048),
    "Qwen3-235B gate, up": (3072, 4096),
    "Qwen3-235B down": (4096, 1536),
}
"""N, K of experts."""

GROUPED = ((8, 4096, ""), (32, 1024, ""), (128, 256, ""), (8, 4096, "skewed"))
"""Groups, expected rows, distribution."""

MASKED = ((6, 1024, ""), (32, 192, ""), (32, 50, ""), (128, 16, ""))

POINTS = [
    *grid(block_m=(128,), block_n=(256,), stages=(4,), slots=(2,), group_m=(2, 8, 16)),
    *grid(block_m=(128,), block_n=(128,), stages=(6,), slots=(1,), group_m=(8,)),
]
FEW = [
    *grid(block_m=(64,), block_n=(256,), stages=(5,), slots=(1,), group_m=(1, 8)),
    *grid(block_m=(64,), block_n=(128,), stages=(8,), slots=(1,), group_m=(1,)),
]

STEPS = ((8, 4096, ""), (32, 1024, ""), (8, 4096, "skewed"))
"""Groups, expected rows and distribution of whole steps, and of weight gradients."""

QUANTISERS = {
    "quant_1x128": "quant_rows",
    "quant_128x128": "quant_blocks",
    "quant_dual": "quant_dual_tma",
    "quant_mixed_dual": "quant_mixed_dual",
    "quant_128x128_dual": "quant_blocks_dual",
}
"""Quantisers by recipe that operands and steps take."""

DEEP = [
    *grid(stages=(4,), slots=(1,), group_m=(2, 8, 16)),
    *grid(stages=(4,), slots=(1,), group_m=(2, 8, 16), column_scales=("early",)),
]
"""Points of ``k_grouped``."""


def points(masked: bool, expected: int) -> list[Point]:
    """Points tried where a group has so many rows."""
    space = Space.from_source(source(), [{"M": 128, "N": 128, "K": 128, "groups": 1, "masked": 0}])
    tried = FEW + POINTS[:3] if expected <= 192 else POINTS + FEW[:1] if masked else POINTS
    full = [{**space.defaults, **change} for change in tried]
    return [point for point in full if not space.violations(point)]


def source(kernel: str = "grouped") -> str:
    """A seed kernel's text."""
    return operators()["kgrouped4x8192" if kernel == "k_grouped" else "grouped4x8192"].kernels[kernel].source


def deep_points() -> list[Point]:
    """Points of ``k_grouped`` in full."""
    space = Space.from_source(source("k_grouped"), [{"M": 128, "N": 128, "K": 128, "groups": 1}])
    return [{**space.defaults, **change} for change in DEEP]


def counts(groups: int, expected: int, how: str, step: int, seed: int) -> torch.Tensor:
    """Rows by group, int32 on the host: about the expected ones, or a few with most of them and some with none."""
    rng = torch.Generator("cpu").manual_seed(seed)
    share = torch.rand(groups, generator=rng, device="cpu")
    rows = expected * (0.7 + 0.6 * share)
    if how == "skewed":
        weights = share.pow(4)
        weights[share < 0.2] = 0
        rows = weights / weights.sum() * groups * expected
    return (rows / step).round().mul(step).to(torch.int32)


def room(count: torch.Tensor, masked: bool) -> int:
    """Rows of A: of each group with a mask, of all without."""
    return -(-int(count.max()) // 128) * 128 if masked else int(count.sum())


def gate_points() -> list[Point]:
    """Points the gates look at: every tile."""
    return [points(True, 50)[0], points(True, 50)[2], *points(False, 4096)[2:4]]


def ahead(whats: Sequence[str], processes: int) -> dict[str, Any]:
    """Compile what is going to run into the cache this process reads."""
    tasks: dict[str, Task] = {}
    for operator in operators().values():
        if "experts" in operator.suites and "gates" in whats:
            for workload in operator.suites["experts"].check:
                specs = operator.inputs(workload), operator.outputs(workload), workload.id
                if "k_grouped" in operator.kernels:
                    add(tasks, deep_points()[::3], *specs, kernel="k_grouped")
                else:
                    add(tasks, gate_points(), *specs)
    shaped = operators()
    for recipe, kernel in QUANTISERS.items():
        seed = shaped[recipe].kernels[kernel]
        point = {**Space.from_source(seed.source, [{"M": 4096, "K": 4096}]).defaults, **seed.overrides}
        workload = Workload("w", {"M": 4096, "K": 7168})
        tensors = {
            "inputs": described(shaped[recipe].inputs(workload)),
            "outputs": described(shaped[recipe].outputs(workload)),
        }
        tasks[kernel] = (seed.source, point, [{"id": "w", **tensors}])
    if {"kgrouped", "step"} & set(whats):
        for groups, expected, how in STEPS:
            count = counts(groups, expected, how, 128, 7)
            for n, k in LAYERS.values():
                rows = int(count.sum())
                workload = Workload("w", {"M": n, "N": k, "K": rows})
                for mixed in (False, True):
                    deep = DepthGroups("w/w", groups, expected, {}, {}, mixed=mixed)
                    add(tasks, deep_points(), deep.inputs(workload), deep.outputs(workload), "w", "k_grouped")
                if "step" in whats:
                    add_products(tasks, groups, expected, (rows, n, k))
    for what in set(whats) & {"grouped", "masked"}:
        for groups, expected, how in GROUPED if what == "grouped" else MASKED:
            like = shaped["grouped4x8192" if what == "grouped" else "masked6x1024"]
            for n, k in LAYERS.values():
                count = counts(groups, expected, how, 1 if what == "masked" else 128, 7)
                workload = Workload("w", {"M": room(count, what == "masked"), "N": n, "K": k})
                sized = type(like)(like.name, groups, expected, like.masked, like.suites, like.kernels)
                add(
                    tasks,
                    points(what == "masked", expected),
                    sized.inputs(workload),
                    sized.outputs(workload),
                    "w",
                )
    cache = os.environ.setdefault("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))
    return compiled_ahead(list(tasks.values()), cache, processes, 280.0)


def add_products(tasks: dict[str, Task], groups: int, expected: int, sizes: tuple[int, int, int]) -> None:
    """A step's products of groups of rows: forward, and the gradient with weights beside one another."""
    rows, n, k = sizes
    like = RowGroups("w/w", groups, expected, False, {}, {})
    forward, backward = (Workload("w", dict(zip("MNK", (rows, *nk), strict=True))) for nk in ((n, k), (k, n)))
    add(tasks, points(False, expected)[:3], like.inputs(forward), like.outputs(forward), "w")
    beside = {
        "b_q": TensorSpec("b_q", (k, groups * n), "float8_e4m3fn"),
        "b_s": TensorSpec("b_s", (-(-k // 128), groups * (n // 128)), "float32"),
    }
    specs = [beside.get(spec.name, spec) for spec in like.inputs(backward)]
    add(tasks, points(False, expected)[:3], specs, like.outputs(backward), "w")


def add(
    tasks: dict[str, Task],
    chosen: Sequence[Point],
    inputs: Any,
    outputs: Any,
    name: str,
    kernel: str = "grouped",
) -> None:
    """One more shape for every point."""
    specs = {"id": name, "inputs": described(inputs), "outputs": described(outputs)}
    for point in chosen:
        tasks.setdefault(f"{kernel} {sorted(point.items())}", (source(kernel), point, []))[2].append(specs)
