"""Seeds of mx_cast, gridquant and gemm_mxfp8_out in Triton's interpreter: right ones pass, wrong twins are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.seeds.triton_station import interpreter, objection
from tilewright.seeds.gemm_mxfp8_out.operator import operators as mxfp8_out
from tilewright.seeds.gridquant.operator import operators as gridquant
from tilewright.seeds.mx_cast.operator import operators as mx_cast
from tilewright.seeds.operator import Workload
from tilewright.workers.device.station import LocalStation

pytest.importorskip("triton")

EVERY, GRIDS, FUSED = mx_cast(), gridquant(), mxfp8_out()
CASTS = {name: operator for name, operator in EVERY.items() if not name.startswith("gemm")}
MATRIX = Workload("w", {"M": 136, "K": 144})
PRODUCT = Workload("w", {"M": 40, "N": 136, "K": 384})
ONE = Workload("w", {"M": 40, "N": 160, "K": 256})
MANY = Workload("w", {"M": 384, "N": 128, "K": 256})
ROOM = Workload("w", {"M": 72, "N": 160, "K": 256})
DEEP = Workload("w", {"M": 72, "N": 160, "K": 768})
RAGGED = {"rows": Workload("w", {"M": 37, "K": 96}), "columns": Workload("w", {"M": 96, "K": 96})}


def shape_of(recipe: str) -> Workload:
    return RAGGED["columns" if CASTS[recipe].constants["by_columns"] else "rows"]


@pytest.fixture(scope="module")
def station() -> Iterator[LocalStation]:
    made = interpreter()
    yield made
    made.close()


@pytest.mark.parametrize("recipe", CASTS)
def test_casts_are_bit_exact_on_edges(recipe: str, station: LocalStation) -> None:
    assert objection(station, CASTS[recipe], shape_of(recipe), "edges") is None


@pytest.mark.parametrize(
    ("recipe", "old", "new"),
    [
        ("mxfp8_both", ",\n            mask=held_t,\n", ",\n"),  # scales past the last block of rows
        ("mxfp8_even", "(top + 0x80000) >> 23", "top >> 23"),
        ("mxfp8_rceil", "(part != 0)", "(part > 0x400000)"),
        ("mxfp8_floor", "tl.where(top >= 0x7F800000, 255, e)", "e"),
        ("mxfp8_swizzled", "(row % 128 // 32) * 4", "(row % 128 // 32)"),
        ("mxfp4", "(scaled >= 0.75)", "(scaled > 0.75)"),
        ("nvfp4", "tl.div_rn(tl.div_rn(amax, 6.0), tensor_scale)", "tl.div_rn(amax, 6.0)"),
    ],
)
def test_wrong_casts_are_refused(recipe: str, old: str, new: str, station: LocalStation) -> None:
    operator = CASTS[recipe]
    seed = next(iter(operator.kernels.values()))
    assert old in seed.source
    twin = seed.source.replace(old, new)
    assert objection(station, operator, shape_of(recipe), "edges", source=twin) is not None


@pytest.mark.parametrize("kernel", ["two_pass", "held", "whole"])
def test_quantisers_are_bit_exact(kernel: str, station: LocalStation) -> None:
    operator = GRIDS["quant_128"]
    assert objection(station, operator, MATRIX, "spread", kernel=kernel, params={"sub_m": 64}) is None
    seed = operator.kernels[kernel].source
    twin = seed.replace("pm * wide + pk, scale)", "pm * wide + pk, 1.0 / scale)")
    assert twin != seed
    assert objection(station, operator, MATRIX, "spread", kernel=kernel, source=twin) is not None


@pytest.mark.parametrize(
    "params",
    [
        {"scaling": "step"},
        {"scaling": "ratio"},
        {"scaling": "ratio", "block_k": 256, "block_m": 16, "block_n": 64, "swap": True},
        {"scaling": "step", "block_k": 256, "block_m": 32, "block_n": 64, "swap": True},
    ],
)
def test_every_way_of_scaling_is_right(params: dict, station: LocalStation) -> None:
    assert objection(station, GRIDS["gemm_256"], PRODUCT, "spread", params=params) is None


def test_split_k_is_right(station: LocalStation) -> None:
    params = {"block_m": 64, "block_n": 128, "split": 2}
    assert objection(station, GRIDS["gemm_256"], PRODUCT, "spread", kernel="splitk", params=params) is None


def test_rescaling_the_whole_accumulator_each_step_is_refused(station: LocalStation) -> None:
    """The published draft: right only when all scales are equal."""
    operator = GRIDS["gemm_256"]
    source = operator.kernels["persistent"].source
    right = "acc += part * tl.div_rn(1.0, scale)"
    draft = "acc = (acc + part) * tl.div_rn(1.0, scale)"
    assert right in source
    twin = source.replace(right, draft)
    found = objection(station, operator, PRODUCT, "randn", source=twin, params={"scaling": "step"})
    assert found is not None and "gate" in found


@pytest.mark.parametrize(
    ("recipe", "workload", "kind"),
    [("normal", ONE, "edges"), ("normal", ONE, "spread"), ("grouped4", MANY, "randn")],
)
def test_the_fused_seed_keeps_its_rule(
    recipe: str, workload: Workload, kind: str, station: LocalStation
) -> None:
    assert objection(station, FUSED[recipe], workload, kind, kernel="fused") is None


@pytest.mark.parametrize(
    ("recipe", "kind", "old", "new"),
    [
        (
            "normal",
            "edges",
            "e = tl.where(bits >> 23 == 0, (part > 0x400000).to(tl.int32), (bits >> 23) + (part != 0).to(tl.int32))",
            "e = tl.ceil(tl.log2(tl.maximum(top.to(tl.float32, bitcast=True), 1e-30) / 448.0)).to(tl.int32) + 127",
        ),
        (
            "normal",
            "randn",
            "blocks = tl.reshape(acc, ",
            "blocks = tl.reshape(acc.to(tl.bfloat16).to(tl.float32), ",
        ),
        ("grouped4", "randn", "b_at += group * N * K", "b_at += 0"),
    ],
)
def test_wrong_epilogues_are_refused(
    recipe: str, kind: str, old: str, new: str, station: LocalStation
) -> None:
    operator = FUSED[recipe]
    source = operator.kernels["fused"].source
    assert old in source
    workload = MANY if operator.groups else ONE
    found = objection(station, operator, workload, kind, kernel="fused", source=source.replace(old, new))
    assert found is not None and "gate accumulator" in found


def test_the_baseline_is_what_the_gate_refuses(station: LocalStation) -> None:
    operator = FUSED["normal"]
    assert operator.kernels["unfused"].baseline
    found = objection(station, operator, ONE, "randn", kernel="unfused")
    assert found is not None and "of the elements agree" in found


@pytest.mark.parametrize(
    ("recipe", "kernel", "workload", "kind"),
    [
        ("masked6x20", "masked", ROOM, "spread"),
        ("masked6x20", "masked", ROOM, "edges"),
        ("kgrouped4", "k_grouped", DEEP, "spread"),
        ("kgrouped4", "k_grouped", DEEP, "edges"),
    ],
)
def test_ragged_groups_and_empty_ones_are_right(
    recipe: str, kernel: str, workload: Workload, kind: str, station: LocalStation
) -> None:
    params = {"programs": 3} if kernel == "masked" else {}
    assert objection(station, FUSED[recipe], workload, kind, kernel=kernel, params=params) is None


@pytest.mark.parametrize(
    ("recipe", "kind", "workload", "old", "new"),
    [
        (
            "masked6x20",
            "spread",
            ROOM,
            "count = tl.load(count_ptr + g)\n        tall",
            "count = M // 2\n        tall",
        ),
        ("masked6x20", "spread", ROOM, "b_ptr + (g * N + safe_n)", "b_ptr + safe_n"),
        ("kgrouped4", "randn", DEEP, "begin += tl.load(count_ptr + before)", "begin += 1"),
        ("kgrouped4", "spread", DEEP, "* b_scale[None, :]", "* tl.min(b_scale, axis=0)"),
    ],
)
def test_wrong_bounds_of_groups_are_refused(
    recipe: str, kind: str, workload: Workload, old: str, new: str, station: LocalStation
) -> None:
    operator = FUSED[recipe]
    source = next(iter(operator.kernels.values())).source
    assert old in source
    found = objection(
        station, operator, workload, kind, source=source.replace(old, new), params={"programs": 3}
    )
    assert found is not None and "gate" in found


SCALED = Workload("w", {"M": 40, "N": 72, "K": 256})


@pytest.mark.parametrize("recipe", ["gemm_mxfp8", "gemm_mxfp4", "gemm_nvfp4"])
def test_products_of_cast_operands_are_right(recipe: str, station: LocalStation) -> None:
    params = {"block_m": 64, "block_n": 64}
    assert objection(station, EVERY[recipe], SCALED, "spread", params=params) is None


@pytest.mark.parametrize(
    ("recipe", "old", "new"),
    [
        ("gemm_mxfp8", "b_scale = tl.load(bs_at + k * (BK // EACH))", "b_scale = tl.load(bs_at)"),
        ("gemm_mxfp4", "b_at + k * (BK // PACK)", "b_at"),
        ("gemm_nvfp4", "tl.load(ta_ptr) * tl.load(tb_ptr)", "tl.load(ta_ptr)"),
        ("gemm_nvfp4", "EACH: tl.constexpr = 16 if FORM == 2 else 32", "EACH: tl.constexpr = 32"),
    ],
)
def test_products_under_wrong_scales_are_refused(
    recipe: str, old: str, new: str, station: LocalStation
) -> None:
    seed = EVERY[recipe].kernels["scaled"].source
    assert old in seed
    params = {"block_m": 64, "block_n": 64}
    found = objection(station, EVERY[recipe], SCALED, "spread", source=seed.replace(old, new), params=params)
    assert found is not None
