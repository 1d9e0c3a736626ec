"""Triton and Gluon seeds of the FP8 and MX families: they compile for Hopper, and pass their gates on an H200."""

from typing import Any

import pytest

from testkit.gpu import require_hopper
from testkit.seeds.gpu_gates import Case, gate_failures
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload

WIDE = Workload("check/whole", {"M": 512, "N": 512, "K": 1024})

SMALL_TILES = {"WGS": 1, "WAVES": "one", "WN": 192, "STAGES": 6, "CREG": 232, "PREG": 40}

FP8: list[tuple[str, str, dict[str, Any]]] = [
    ("grouped4x8192", "fp8_grouped", {}),
    ("grouped4x8192", "fp8_grouped", {"WAVES": "down"}),
    ("grouped4x8192", "fp8_grouped", SMALL_TILES),
    ("grouped128x512", "fp8_grouped", {}),  # more groups than a warp has lanes
    ("masked6x1024", "fp8_grouped", {}),
    ("masked6x1024", "fp8_grouped", SMALL_TILES),
    ("masked32x48", "fp8_grouped", {**SMALL_TILES, "WN": 160, "STAGES": 7}),
    ("kgrouped4x8192", "k_grouped", {}),
    ("kmixed8x4096", "k_grouped", {}),
    ("linear", "fp8_rows", {}),
    ("linear", "fp8_rows", {"SPLIT": 2}),
    ("linear", "fp8_rows", {"MOST": 256, "WGS": 2, "KB": 1, "CTAS": 1, "CN": 2}),
    ("linear", "fp8_small", {}),
    ("linear", "fp8_small", {"WGS": 2, "WN": 128, "STAGES": 6, "SHARE": "b"}),
    ("linear", "fp8_small", {"WGS": 2, "WAVES": "down", "WN": 128, "STAGES": 4, "SHARE": "a"}),
]

MX: list[tuple[str, str, dict[str, Any]]] = [
    ("mx_cast/mxfp8_both", "cast8_tma", {}),
    ("mx_cast/mxfp8_both", "cast8_tma", {"leave": "tma", "slots": 2, "group_m": 4}),
    ("mx_cast/mxfp8_dim1", "cast8_tma", {"leave": "tma", "group_m": 1048576}),
    ("gridquant/gemm_256", "persistent_ws", {}),
    ("gridquant/gemm_128", "persistent_ws", {"block_n": 128, "stages": 6}),
    ("gemm_mxfp8_out/normal", "fused_ws", {}),
    ("gemm_mxfp8_out/normal", "fused_ws", {"split": 2, "block_n": 128}),
    ("gemm_mxfp8_out/grouped4", "fused_ws", {}),
]

PRODUCTS = ("gemm_nt", "gemm_nt_rows")
QUANTISERS = ("quant_1x128", "quant_128x128", "quant_dual", "quant_128x128_dual")


def cases():
    """Training steps first: their modules hold several kernels each and take longest to compile."""
    found = []
    for recipe in (*PRODUCTS, *QUANTISERS):
        operator = load_operator(f"gemm_fp8_blockwise/{recipe}")
        shapes = operator.suites["primus-core"].check
        found += [Case(f"gemm_fp8_blockwise/{recipe}", kernel, shapes) for kernel in operator.kernels]
    for recipe, kernel, params in FP8:
        suite = next(iter(load_operator(f"gemm_fp8_blockwise/{recipe}").suites.values()))
        found.append(Case(f"gemm_fp8_blockwise/{recipe}", kernel, suite.check, params))
    for name, kernel, params in MX:
        suite = next(iter(load_operator(name).suites.values()))
        found.append(Case(name, kernel, (*suite.check, WIDE), params))
    return found


@pytest.mark.gpu
def test_seeds_pass_their_gates_on_the_gpu():
    hopper = require_hopper()
    assert gate_failures(cases(), hopper) == {}
