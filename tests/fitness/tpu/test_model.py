"""The time model: readers of libtpu's dumps, seconds, plausibility."""

import pytest

from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu.llo import ParseError
from tilewright.fitness.tpu.timeline import read_critical_path, read_diagnosis

CHIP = CHIPS["tpu7x"]
BUNDLES = b"""0x0: bundle slots:
  %s0_s0 = inlined_call_operand.hbm [shape: bf16[1024,2048], index: 0] /* dma.fake size_in_granules=*/9 */
  %1 = sst [smem:[#allocation247_spill]] %s0_s0

0x1: bundle slots:
  %2 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s8_s1, /*size_in_granules=*/8192, /*vmem=*/%s7_s0
  %3 = dma.done.wait [#allocation4], 8192
0x2: bundle slots:
  %4 = vst [vmem:[#allocation42_spill] sm:$0xff] /*vst_source=*/%v8_v14
  %v5_v1 = vld [vmem:[#allocation42_spill] sm:$0xff]
  %v6_v1 = vld [vmem:[%s3_s1] sm:$0xff]
  %v7_v1, %v7_v2 = vmul.f32 %v5_v1, %v6_v1
  %8 = vmatmul.mubr.f8e4m3fn.gmra.mrb[0].mxu0 %v14_v1
  %9 = vmatmul.mubr.bf16.gmra.mrb[0].mxu1 %v14_v1
  %10 = dma.vmem_to_hbm [thread:$0]  /*vmem=*/%s1_s1, /*size_in_granules=*/16, /*hbm=*/%s0_s1
"""


def test_full_matrix_units_read_as_the_public_peak():
    for chip in CHIPS.values():
        for kind, peak in chip.peaks.items():
            flops = 2 * chip.mxu_rows[kind] * chip.mxu_size**2 * chip.mxus
            rate = flops / chip.mxu_cycles[kind] * chip.clock
            assert rate == pytest.approx(peak, rel=0.005), (chip.name, kind)


CRITICAL = b"""Length to end: 1000, %2 = dma.hbm_to_vmem [x] /*size_in_granules=*/8192
Length to end: 600, %8 = vmatmul.mubr.f8e4m3fn.gmra.mrb[0].mxu0 %v14_v1
Length to end: 100, %11 = vst [vmem:[#allocation42_spill] sm:$0xff] /*vst_source=*/%v8_v14
"""


def test_the_critical_path_says_what_was_waited_for():
    last = b"0x3: bundle slots:\n  %11 = vst [vmem:[#allocation42_spill] sm:$0xff] /*vst_source=*/%v8_v14\n"
    found = read_diagnosis(BUNDLES + last, read_critical_path(CRITICAL, 1000), 1000, CHIP)
    assert found["critical_path"] == {"mxu": 500, "dma": 400, "spill": 100}
    assert found["overlap"] == {"mxu_with_valu": 0.125, "valu_with_mxu": 1.0}
    assert read_diagnosis(BUNDLES + b"0x3: bundle slots:\n\n\n", read_critical_path(CRITICAL, 1000), 1000, CHIP)


@pytest.mark.parametrize(
    ("bundles", "critical", "cycles"),
    [
        (BUNDLES, b"", 1000),
        (BUNDLES, CRITICAL, 500),
        (BUNDLES, CRITICAL, 1 << 40),
        (BUNDLES, CRITICAL[60:] + CRITICAL, 1000),
        (BUNDLES + BUNDLES, CRITICAL, 1000),
        (b"", CRITICAL, 1000),
    ],
)
def test_a_schedule_that_does_not_read_is_a_parse_error(bundles, critical, cycles):
    with pytest.raises(ParseError):
        read_diagnosis(bundles, read_critical_path(critical, cycles), cycles, CHIP)
