"""Operators as ``tune`` writes them: a softmax over rows, and an attention of few queries over many keys."""

from __future__ import annotations

from pathlib import Path

from testkit.exploits import taken_kernels
from tilewright.seeds.operator import SeedKernel, Suite, Workload
from tilewright.workers.intake.operator import Operand, Result, TakenOperator

HERE = Path(taken_kernels.__file__)
KINDS = ("randn", "far", "shifted", "signed-rows", "faint-118", "huge-125", "infinite-rows", "nan")
"""Those that a softmax bears. An attention does not bear ``far``: products far from zero are scores of thousands, and
what their last place is worth is more than a weight's; nor scores beyond float32."""


def softmax() -> TakenOperator:
    """Float32 rows [M, N]."""
    shapes = _shapes([(7, 70), (16, 128), (4, 200)], "MN")
    operands = (Operand("x", "float32", ("M", "N"), edge="-inf"),)
    return _taken("softmax", "torch.softmax", "x, dim=1", operands, shapes, KINDS)


def attention() -> TakenOperator:
    """Queries [M, N], keys and values [K, N], float32."""
    shapes = _shapes([(12, 16, 75), (12, 16, 80), (7, 16, 37)], "MNK")
    operands = tuple(Operand(n, "float32", (rows, "N")) for n, rows in (("q", "M"), ("k", "K"), ("v", "K")))
    kinds = (*(kind.replace("125", "40") for kind in KINDS if kind != "far"), "lone-100")
    return _taken("attention", f"{HERE}:plain_attention", "q, k, v", operands, shapes, kinds)


def _shapes(sizes: list[tuple[int, ...]], names: str) -> tuple[Workload, ...]:
    return tuple(Workload("x".join(map(str, s)), dict(zip(names, s, strict=True))) for s in sizes)


def _taken(
    name: str, reference: str, call: str, operands: tuple[Operand, ...], shapes: tuple[Workload, ...],
    kinds: tuple[str, ...],
) -> TakenOperator:  # fmt: skip
    return TakenOperator(
        f"{name}_tuned/taken", reference, call, operands, (Result("o0", "float32", ("M", "N"), min_db=90.0),),
        {"small": Suite("small", workloads=shapes[-1:], check=shapes)},
        {"seed": SeedKernel("seed", taken_kernels.SOURCES[name])}, independent=("M",), kinds=kinds,
    )  # fmt: skip
