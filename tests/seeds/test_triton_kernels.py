"""Triton seeds in Triton's interpreter: right ones pass, wrong twins are refused."""

from typing import Any

import pytest

from testkit.seeds.triton_station import objection
from tilewright.seeds.gemm_fp8_blockwise.operator import operators as blockwise
from tilewright.seeds.gemm_mxfp8_out.operator import operators as mxfp8_out
from tilewright.seeds.gridquant.operator import operators as gridquant
from tilewright.seeds.mx_cast.operator import operators as mx_cast
from tilewright.seeds.operator import Operator, Workload

pytest.importorskip("triton")

EVERY, GRIDS, FUSED, BLOCKWISE = mx_cast(), gridquant(), mxfp8_out(), blockwise()
CASTS = {name: operator for name, operator in EVERY.items() if not name.startswith("gemm")}
MATRIX = Workload("w", {"M": 136, "K": 144})
PRODUCT = Workload("w", {"M": 40, "N": 136, "K": 384})
ONE = Workload("w", {"M": 40, "N": 160, "K": 256})
MANY = Workload("w", {"M": 384, "N": 128, "K": 256})
ROOM = Workload("w", {"M": 72, "N": 160, "K": 256})
DEEP = Workload("w", {"M": 72, "N": 160, "K": 768})
SWAPPED = {"block_k": 256, "block_n": 64, "swap": True}
RAGGED = {"rows": Workload("w", {"M": 37, "K": 96}), "columns": Workload("w", {"M": 96, "K": 96})}


def shape_of(recipe):
    return RAGGED["columns" if CASTS[recipe].constants["by_columns"] else "rows"]


SCALED = Workload("w", {"M": 40, "N": 72, "K": 256})
TILES = {"block_m": 64, "block_n": 64}
TAILS = Workload("w", {"M": 200, "N": 384, "K": 640})
RAGGED_TILES = Workload("w", {"M": 37, "N": 320, "K": 384})
SMALL = {**TILES, "num_warps": 4, "num_stages": 2, "group_m": 4}

RIGHT: list[tuple[Operator, str, Workload, str, dict[str, Any]]] = [
    *((CASTS[recipe], "", shape_of(recipe), "edges", {}) for recipe in CASTS),
    *((GRIDS["quant_128"], kernel, MATRIX, "spread", {}) for kernel in ("held", "whole")),
    (GRIDS["gemm_256"], "", PRODUCT, "spread", {"scaling": "step"}),
    (GRIDS["gemm_256"], "", PRODUCT, "spread", {"scaling": "ratio"}),
    (GRIDS["gemm_256"], "", PRODUCT, "spread", {"scaling": "ratio", "block_m": 16, **SWAPPED}),
    (GRIDS["gemm_256"], "", PRODUCT, "spread", {"scaling": "step", "block_m": 32, **SWAPPED}),
    (FUSED["normal"], "fused", ONE, "edges", {}),
    (FUSED["normal"], "fused", ONE, "spread", {}),
    (FUSED["grouped4"], "fused", MANY, "randn", {}),
    *((FUSED["masked6x20"], "masked", ROOM, kind, {"programs": 3}) for kind in ("spread", "edges")),
    *((FUSED["kgrouped4"], "k_grouped", DEEP, kind, {}) for kind in ("spread", "edges")),
    (BLOCKWISE["gemm_nt"], "pointer", TAILS, "spread", {**SMALL, "skew": True}),
    (BLOCKWISE["gemm_nt"], "pointer", TAILS, "outliers", {**SMALL, "skew": False}),
    (BLOCKWISE["gemm_nt"], "pointer", RAGGED_TILES, "spread", SMALL),
    (BLOCKWISE["gemm_nt_rows"], "pointer", TAILS, "spread", {**SMALL, "skew": True}),
    (BLOCKWISE["quant_1x128"], "quant_rows", Workload("w", {"M": 200, "K": 384}), "spread", {}),
    (BLOCKWISE["quant_128x128"], "quant_blocks", Workload("w", {"M": 256, "K": 384}), "zero_blocks", {}),
    *((EVERY[f"gemm_{form}"], "", SCALED, "spread", TILES) for form in ("mxfp8", "mxfp4", "nvfp4")),
]


@pytest.mark.parametrize(
    ("operator", "kernel", "workload", "kind", "params"),
    RIGHT,
    ids=[f"{row[0].name} {row[1]} {row[3]} {row[4] or ''}" for row in RIGHT],
)
def test_seeds_are_right(operator, kernel, workload, kind, params, station):
    assert objection(station, operator, workload, kind, kernel=kernel or None, params=params) is None


LOGARITHM = "e = tl.ceil(tl.log2(tl.maximum(top.to(tl.float32, bitcast=True), 1e-30) / 448.0)).to(tl.int32) + 127"
BY_BITS = "e = tl.where(bits >> 23 == 0, (part > 0x400000).to(tl.int32), (bits >> 23) + (part != 0).to(tl.int32))"
IN_BF16 = "blocks = tl.reshape(acc.to(tl.bfloat16).to(tl.float32), "
INVERSE = ("pm * wide + pk, scale)", "pm * wide + pk, 1.0 / scale)")
DRAFT = ("acc += part * tl.div_rn(1.0, scale)", "acc = (acc + part) * tl.div_rn(1.0, scale)")
HALF = ("count = tl.load(count_ptr + g)\n        tall", "count = M // 2\n        tall")

WRONG: list[tuple[Operator, str, Workload, str, dict[str, Any], str, str, str]] = [
    # scales past the last block of rows
    (CASTS["mxfp8_both"], "", RAGGED["columns"], "edges", {}, ", mask=held_t)\n", ")\n", ""),
    (CASTS["mxfp8_even"], "", RAGGED["rows"], "edges", {}, "(top + 0x80000) >> 23", "top >> 23", ""),
    (CASTS["mxfp8_rceil"], "", RAGGED["rows"], "edges", {}, "(part != 0)", "(part > 0x400000)", ""),
    (CASTS["mxfp8_floor"], "", RAGGED["rows"], "edges", {}, "tl.where(top >= 0x7F800000, 255, e)", "e", ""),
    (CASTS["mxfp8_swizzled"], "", RAGGED["rows"], "edges", {}, "(row % 128 // 32) * 4", "(row % 128 // 32)", ""),
    (CASTS["mxfp4"], "", RAGGED["rows"], "edges", {}, "(scaled >= 0.75)", "(scaled > 0.75)", ""),
    (
        CASTS["nvfp4"],
        "",
        RAGGED["rows"],
        "edges",
        {},
        "tl.div_rn(tl.div_rn(amax, 6.0), tensor_scale)",
        "tl.div_rn(amax, 6.0)",
        "",
    ),
    *((GRIDS["quant_128"], kernel, MATRIX, "spread", {}, *INVERSE, "") for kernel in ("held", "whole")),
    # the published draft: right only when all scales are equal
    (GRIDS["gemm_256"], "persistent", PRODUCT, "randn", {"scaling": "step"}, *DRAFT, "gate"),
    (FUSED["normal"], "fused", ONE, "edges", {}, BY_BITS, LOGARITHM, "gate accumulator"),
    (FUSED["normal"], "fused", ONE, "randn", {}, "blocks = tl.reshape(acc, ", IN_BF16, "gate accumulator"),
    (FUSED["grouped4"], "fused", MANY, "randn", {}, "b_at += group * N * K", "b_at += 0", "gate accumulator"),
    # the baseline is what the gate refuses
    (FUSED["normal"], "unfused", ONE, "randn", {}, "", "", "of the elements agree"),
    (FUSED["masked6x20"], "", ROOM, "spread", {"programs": 3}, *HALF, "gate"),
    (FUSED["masked6x20"], "", ROOM, "spread", {"programs": 3}, "b_ptr + (g * N + safe_n)", "b_ptr + safe_n", "gate"),
    (FUSED["kgrouped4"], "", DEEP, "randn", {}, "begin += tl.load(count_ptr + before)", "begin += 1", "gate"),
    (FUSED["kgrouped4"], "", DEEP, "spread", {}, "* b_scale[None, :]", "* tl.min(b_scale, axis=0)", "gate"),
    (
        EVERY["gemm_mxfp8"],
        "",
        SCALED,
        "spread",
        TILES,
        "b_scale = tl.load(bs_at + k * (BK // EACH))",
        "b_scale = tl.load(bs_at)",
        "",
    ),
    (EVERY["gemm_mxfp4"], "", SCALED, "spread", TILES, "b_at + k * (BK // PACK)", "b_at", ""),
    (EVERY["gemm_nvfp4"], "", SCALED, "spread", TILES, "tl.load(ta_ptr) * tl.load(tb_ptr)", "tl.load(ta_ptr)", ""),
    (
        EVERY["gemm_nvfp4"],
        "",
        SCALED,
        "spread",
        TILES,
        "EACH: tl.constexpr = 16 if FORM == 2 else 32",
        "EACH: tl.constexpr = 32",
        "",
    ),
]


@pytest.mark.parametrize(
    ("operator", "kernel", "workload", "kind", "params", "old", "new", "why"),
    WRONG,
    ids=[f"{row[0].name} {row[1]} {row[6]}" for row in WRONG],
)
def test_wrong_twins_are_refused(operator, kernel, workload, kind, params, old, new, why, station):
    seed = operator.kernels[kernel or next(iter(operator.kernels))]
    assert old in seed.source
    twin = seed.source.replace(old, new) if old else seed.source
    found = objection(station, operator, workload, kind, kernel=seed.name, source=twin, params=params)
    assert found is not None and why in found
