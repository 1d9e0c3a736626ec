"""The rough cost of a kernel from its scheduled code."""

import pytest

from tilewright.fitness import static_tpu
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.fallback import estimate_cycles
from tilewright.fitness.llo import ParseError

CHIP = CHIPS["tpu7x"]
MATMUL = "%5 = vmatmul.mubr.bf16.gmra.mrb[0].mxu0 %v1  ;;  %6 = vmatmul.mubr.bf16.gmra.mrb[0].mxu1 %v1"
PASS = 2 * 16 * 256 * 256
"""FLOP of one pass of a matrix unit over bf16 rows."""


def code(steps, *, plain=0, products=0, inner=0):
    """One kernel: 4 bundles around a grid of ``steps``, whose step has these bundles, ``inner`` of them in a loop."""
    body = ["   0x10 LB: > { %1 = vadd.f32 %v0, %v1 }"] + ["  0x11   : > { %2 = vadd.f32 %v0 }"] * (plain - 1)
    body += [f"  0x20   : > {{ {MATMUL} }}"] * products
    body += [f"  0x30   : > > {{ {MATMUL}  ;;  %7 = vadd.f32 %v2 }}"] * inner
    around = ["     0   :  { %s0 = smov.u32 0 }"] + ["   0x1   :  { %s1 = smov.u32 0 }"] * 3
    return "\n".join([*around, f"iteration_bounds: ({steps}, 2)", *body, ""])


def test_a_step_costs_its_bundles_its_products_or_a_dma():
    around = 4 + 2 * CHIP.dma_latency
    assert estimate_cycles([code(8, plain=1000)], 0, CHIP) == around + 16 * 1000
    # 100 bundles hold each of two matrix units for 8 cycles
    assert estimate_cycles([code(8, plain=1, products=100)], 0, CHIP) == around + 16 * 800
    assert estimate_cycles([code(8, plain=1)], 0, CHIP) == around + 16 * CHIP.dma_latency


def test_loops_inside_a_step_run_as_often_as_the_products_need():
    flops = 16 * 50 * 2 * 10 * PASS
    assert estimate_cycles([code(8, plain=1, inner=10)], flops, CHIP) == pytest.approx(16 * 50 * 80, rel=0.05)


def test_the_memory_term_and_damaged_text():
    assert static_tpu.seconds(2200, 0, CHIP) == pytest.approx(1e-6)
    assert static_tpu.seconds(2200, int(3.69e12 * 0.8 * 5e-6), CHIP) == pytest.approx(5e-6)
    with pytest.raises(ParseError):
        estimate_cycles(["no code"], 1, CHIP)
