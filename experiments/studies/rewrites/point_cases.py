"""What ``points`` measures: naive kernels, rewrites of them, points of each, shapes, and what they must compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.studies.rewrites.structures import CALLS, KERNELS, SHAPES
from testkit import ROOT
from tilewright.evolve.intake.tune import Request, take, target_named
from tilewright.seeds.catalogue import load_operator

Json = dict[str, Any]
Variant = tuple[Sequence[str], Sequence[Json]]
"""Rules in order (``rule@text of the site``), and points to try, over the defaults."""


@dataclass(frozen=True)
class Case:
    """``shapes``: id to tensors {name: (shape, dtype)} of inputs and outputs; ``work`` of each: operations or bytes."""

    name: str
    kind: str
    source: Callable[[], str]
    shapes: Mapping[str, tuple[Mapping[str, tuple], Mapping[str, tuple]]]
    work: Mapping[str, float]
    unit: str
    variants: Mapping[str, Variant]

    def workloads(self) -> list[Json]:
        def listed(tensors: Mapping[str, tuple]) -> list[Json]:
            return [{"name": n, "shape": list(s), "dtype": d} for n, (s, d) in tensors.items()]

        return [
            {"id": name, "inputs": listed(given), "outputs": listed(made)}
            for name, (given, made) in self.shapes.items()
        ]


def grid(**axes: Iterable[Any]) -> list[Json]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def taken(case: str) -> Callable[[], str]:
    """The kernel module that taking a user's function in makes."""

    def make() -> str:
        function, reference, calls = CALLS[case]
        return str(take(Request(KERNELS, function, reference, tuple(calls)), target_named("h200"))["source"])

    return make


def seed(name: str) -> Callable[[], str]:
    return lambda: (ROOT / "seeds" / name).read_text()


BF16 = "bfloat16"
LOWER = "triton_lower_to_gluon"
DESCRIPTORS = ["triton_descriptor_load", "triton_descriptor_load", "triton_descriptor_store"]

PLAIN_TILES = [
    {"TILE_M": m, "TILE_N": n, "TILE_K": k, "num_warps": w, "num_stages": s}
    for m, n, k, w, s in (
        (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4),
        (128, 128, 64, 8, 4), (64, 256, 64, 4, 3), (64, 256, 64, 4, 4), (256, 128, 64, 8, 3), (64, 128, 64, 4, 4),
        (128, 256, 32, 8, 4), (128, 128, 128, 8, 3), (256, 64, 64, 8, 4), (64, 128, 128, 4, 3),
    )
]  # fmt: skip


def lowered_tiles() -> list[Json]:
    """Points of the lowered bf16 products."""
    shapes = [
        # rows of a group, columns, depth, groups, pieces, stages
        (64, 256, 64, 2, 1, 4), (64, 256, 64, 2, 1, 3), (128, 128, 64, 2, 1, 4), (128, 128, 64, 2, 1, 3),
        (64, 128, 64, 2, 2, 4), (64, 128, 64, 2, 2, 3), (64, 128, 64, 3, 1, 5),
        (64, 128, 64, 2, 1, 6), (64, 256, 64, 1, 1, 5),
        (128, 128, 64, 1, 1, 6), (64, 128, 128, 2, 1, 3),
    ]  # fmt: skip
    names = ("TILE_M", "TILE_N", "TILE_K", "consumers", "pieces", "stages")
    found = [dict(zip(names, s, strict=True)) for s in shapes]
    wide = {**found[0], "parts": 4, "slots": 2}
    found += [wide, {**found[0], "parts": 4, "slots": 4, "stages": 3}, {**found[4], "parts": 2, "slots": 2}]
    found += [{**wide, "walk_rows": w, "programs": p} for w in (4, 16) for p in (132, 1048576)]
    found += [
        {**found[2], "parts": 2, "slots": 2},
        {**found[4], "walk_rows": 16},
        {**found[4], "walk_rows": 4},
    ]
    for base in (found[0], found[2]):
        found += [{**base, **more} for more in (
            {"walk_rows": 4}, {"walk_rows": 16}, {"walk_rows": 1}, {"programs": 1048576}, {"in_flight": False},
            {"walk_rows": 32},
        )]  # fmt: skip
    return found


MATMUL = {
    f"{m}x{n}x{k}": (
        {"a": ((m, k), BF16), "b": ((k, n), BF16)},
        {"t1": ((m, n), BF16)},
    )
    for m, n, k in SHAPES
}

FP8_POINTS = [
    {
        "block_m": 64, "block_n": 128, "skew": False, "consumers": c, "pieces": p, "stages": s, "parts": parts,
        "slots": slots, "walk_rows": walk, "pin": True, "ahead": ahead, "ring": ring,
    }
    for c, p, s, parts, slots, walk, ahead, ring in (
        (2, 2, 4, 1, 1, 16, False, False), (2, 2, 4, 1, 1, 16, True, False), (2, 2, 4, 2, 2, 16, True, False),
        (2, 2, 4, 1, 1, 16, True, True), (2, 2, 4, 2, 2, 16, False, True), (2, 2, 4, 2, 2, 16, True, True),
        (2, 2, 4, 4, 2, 16, True, True), (2, 2, 4, 4, 4, 16, True, True), (2, 2, 4, 2, 2, 8, True, True),
        (2, 2, 4, 2, 2, 32, True, True), (2, 2, 3, 2, 2, 16, True, True), (3, 1, 5, 1, 1, 16, True, True),
        (3, 1, 5, 2, 1, 16, True, True), (3, 1, 5, 2, 2, 8, True, True), (2, 1, 6, 2, 2, 16, True, True),
        (3, 1, 4, 1, 1, 16, True, True), (3, 1, 5, 1, 1, 16, True, False),
    )
]  # fmt: skip
"""Groups, pieces, stages, parts, slots, rows of the walk, other loads a step ahead, rows' scales through the ring."""

EVOLVED = {
    "block_m": 64, "block_n": 128, "skew": False, "consumers": 2, "pieces": 2, "stages": 3, "parts": 4, "slots": 4,
    "walk_rows": 32, "programs": 1048576, "producer_registers": 40, "pin": True, "ahead": False, "ring": True,
}  # fmt: skip
"""What a campaign from the naive kernel alone ended with (``experiments/records/rewrites/structures_h200.json``)."""

_OPERATOR = load_operator("gemm_fp8_blockwise/gemm_nt")


def _fp8() -> Mapping[str, tuple[Mapping[str, tuple], Mapping[str, tuple]]]:
    found = {}
    for workload in _OPERATOR.suites["primus-core"].workloads:
        given = {s.name: (s.shape, s.dtype) for s in _OPERATOR.inputs(workload)}
        made = {s.name: (s.shape, s.dtype) for s in _OPERATOR.outputs(workload)}
        found[workload.id.replace("/", "-")] = (given, made)
    return found


def _rows(inputs: Mapping[str, tuple], m: int, n: int) -> dict[str, tuple]:
    return {f"{m}x{n}": (inputs, {"t1": ((m, n), BF16)})}


ROWS = [
    {"num_warps": w, "rows": r} for w, r in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8))
]  # fmt: skip
ROW_VARIANTS: Mapping[str, Variant] = {
    "seed": ([], [{}]),
    "parameters": ([], grid(num_warps=[1, 2, 4, 8, 16])),
    "rows": (["triton_rows_per_program"], ROWS),
}
ATTENTION_TILES = [
    {"TILE_Q": q, "TILE_K": k, "num_warps": w, "num_stages": st}
    for q, k, w, st in (
        (128, 64, 8, 3), (128, 64, 4, 2), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3), (64, 128, 4, 2),
        (128, 64, 8, 2), (128, 64, 8, 4), (64, 64, 4, 2),
    )
]  # fmt: skip
_FP8 = _fp8()
_M, _N, _K = 8192, 14336, 4096
_FEW = {name: _FP8[name] for name in ("llama2-7b-4", "llama3.1-8b-25", "qwen2.5-7b-50", "qwen2.5-7b-52")}
"""Shapes of the FP8 product that take the least time, for the ablation."""

CASES = (
    Case(
        "pointer_few", "fp8", seed("gemm_fp8_blockwise/kernels/pointer.py"), _FEW,
        {name: 2.0 * g["a_q"][0][0] * g["a_q"][0][1] * g["b_q"][0][0] for name, (g, _) in _FEW.items()}, "TFLOP/s",
        {"seed": ([], [{}])},
    ),
    Case(
        "pointer", "fp8", seed("gemm_fp8_blockwise/kernels/pointer.py"), _FP8,
        {name: 2.0 * g["a_q"][0][0] * g["a_q"][0][1] * g["b_q"][0][0] for name, (g, _) in _FP8.items()}, "TFLOP/s",
        {
            "seed": ([], [{}]),
            "parameters": (
                [], grid(block_m=[64, 128], num_warps=[4, 8], num_stages=[3, 4], skew=[True, False]),
            ),
            "lowered": ([LOWER], FP8_POINTS),
            "evolved": ([LOWER], [EVOLVED]),
        },
    ),
    Case(
        "gluon_ws", "fp8", seed("gemm_fp8_blockwise/kernels/gluon_ws.py"), _FP8,
        {name: 2.0 * g["a_q"][0][0] * g["a_q"][0][1] * g["b_q"][0][0] for name, (g, _) in _FP8.items()}, "TFLOP/s",
        {"expert": ([], [{}, {"group_m": 12}])},
    ),
    Case(
        "matmul", "matmul", taken("matmul"), MATMUL,
        {f"{m}x{n}x{k}": 2.0 * m * n * k for m, n, k in SHAPES}, "TFLOP/s",
        {
            "seed": ([], [{}]),
            "parameters": ([], PLAIN_TILES),
            "descriptors": (DESCRIPTORS, PLAIN_TILES),
            "lowered": ([LOWER], lowered_tiles()),
        },
    ),
    Case(
        "linear_gelu", "linear_gelu", taken("linear_gelu"),
        {f"{_M}x{_N}x{_K}": (
            {"x": ((_M, _K), BF16), "w": ((_K, _N), BF16), "bias": ((_N,), BF16)}, {"t1": ((_M, _N), BF16)},
        )},
        {f"{_M}x{_N}x{_K}": 2.0 * _M * _N * _K}, "TFLOP/s",
        {
            "seed": ([], [{}]),
            "parameters": ([], PLAIN_TILES[:10]),
            "lowered": ([LOWER], lowered_tiles()),
        },
    ),
    Case(
        "softmax", "softmax", taken("softmax"), _rows({"x": ((16384, 4096), BF16)}, 16384, 4096),
        {"16384x4096": 4.0 * 16384 * 4096}, "GB/s",
        ROW_VARIANTS,
    ),
    Case(
        "rms_norm", "rms_norm", taken("rms_norm"),
        _rows({"x": ((16384, 4096), BF16), "w": ((4096,), BF16)}, 16384, 4096),
        {"16384x4096": 4.0 * 16384 * 4096}, "GB/s",
        ROW_VARIANTS,
    ),
    Case(
        "rms_norm_quantise", "rms_norm_quantise", taken("rms_norm_quantise"),
        {"16384x4096": (
            {"x": ((16384, 4096), BF16), "w": ((4096,), BF16)},
            {"t1": ((16384, 4096), "float8_e4m3fn"), "t2": ((16384,), "float32")},
        )},
        {"16384x4096": 3.0 * 16384 * 4096}, "GB/s", ROW_VARIANTS,
    ),
    Case(
        "attention", "attention", taken("attention"),
        {"64x4096x128": (
            dict.fromkeys("qkv", ((64, 4096, 128), BF16)), {"t1": ((64, 4096, 128), BF16)},
        )},
        {"64x4096x128": 2.0 * 64 * 4096 * 4096 * 128}, "TFLOP/s",
        {
            "seed": ([], [{}]),
            "parameters": ([], ATTENTION_TILES),
            "descriptors": (["triton_descriptor_load@k_ptr", "triton_descriptor_load@v_ptr"], ATTENTION_TILES),
        },
    ),
    Case(
        "int4_matmul", "int4_matmul", taken("int4_matmul"),
        {"4096x4096x4096": (
            {"x": ((4096, 4096), BF16), "w": ((4096, 2048), "uint8"), "s": ((2048, 2), BF16)},
            {"t1": ((4096, 4096), BF16)},
        )},
        {"4096x4096x4096": 2.0 * 4096**3}, "TFLOP/s",
        {"seed": ([], [{}]), "parameters": ([], PLAIN_TILES)},
    ),
    Case(
        "grouped_matmul", "grouped_matmul", taken("grouped_matmul"),
        {"16384x4096x2048x8": (
            {"x": ((16384, 2048), BF16), "w": ((8, 2048, 4096), BF16), "sizes": ((8,), "int32")},
            {"t1": ((16384, 4096), BF16)},
        )},
        {"16384x4096x2048x8": 2.0 * 16384 * 4096 * 2048}, "TFLOP/s",
        {"seed": ([], [{}]), "parameters": ([], PLAIN_TILES)},
    ),
)  # fmt: skip
