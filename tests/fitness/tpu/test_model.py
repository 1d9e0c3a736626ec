"""The time model: readers of libtpu's dumps, seconds, plausibility."""

import numpy as np
import pytest

from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu import simulation, time_model
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.llo import OperationCycles, ParseError, scan_bundles
from tilewright.fitness.tpu.memory import replay
from tilewright.fitness.tpu.timeline import read_critical_path, read_timeline

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
    found = read_timeline(BUNDLES + last, read_critical_path(CRITICAL, 1000), 1000, CHIP)
    assert found["critical_path"] == {"mxu": 500, "dma": 400, "spill": 100}
    assert found["overlap"] == {"mxu_with_valu": 0.125, "valu_with_mxu": 1.0}
    assert read_timeline(
        BUNDLES + b"0x3: bundle slots:\n\n\n", read_critical_path(CRITICAL, 1000), 1000, CHIP
    )


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
        read_timeline(bundles, read_critical_path(critical, cycles), cycles, CHIP)


def run_of(events):
    return simulation.StaticRun(
        (OperationCycles("k", 1000, 1),), scan_bundles(BUNDLES), 0, None, ((events, 1),)
    )


def test_times_made_of_copies_latencies_are_flagged():
    latency = time_model.CALIBRATIONS["tpu7x"].rules.latency
    reads_and_waits = np.array([Kind.READ, Kind.WAIT], np.int64)
    sizes, ready = np.array([64, 64], np.int64), np.array([-1, 0], np.int64)

    def found(events):
        run = run_of(events)
        time = simulation.modelled(run, CHIP)
        diagnosed = simulation.diagnosis(run, CHIP, time)
        assert diagnosed["dma_latency"] == pytest.approx(2 * latency / time.seconds, abs=1e-4)
        return diagnosed.get("caution", "")

    def copied(cycles):
        return Events(np.array([cycles, 0, 0], np.int64), reads_and_waits, sizes, ready)

    assert found(copied(10)).startswith("small blocks")
    assert not found(copied(10_000))
    assert not found(Events.idle(1000))  # as many latencies, but nothing waits for them


@pytest.mark.parametrize("cycles", [500, 20_000])
def test_kernels_of_short_steps_have_an_error_of_their_own(cycles):
    steps = 64
    kinds = np.tile([Kind.READ, Kind.WAIT], steps)
    ready = np.where(kinds == Kind.WAIT, np.arange(2 * steps) - 1, -1)
    work = np.append(np.where(kinds == Kind.WAIT, cycles, 0), 0)
    time = simulation.modelled(run_of(Events(work, kinds, np.full(2 * steps, 1024), ready)), CHIP)
    # a latency of 1.34 us and what the core works, 64 times: 1.8 GHz
    assert time.seconds == pytest.approx(steps * max(cycles / 1.8e9, 1.34e-6) + 1e-6, rel=0.05)
    rules = time_model.CALIBRATIONS["tpu7x"].rules
    calm = replay(Events(work, kinds, np.full(2 * steps, 1024), np.full(2 * steps, -1)), rules)
    assert calm.waits == steps and calm.step == pytest.approx(cycles / 1.8e9, rel=0.01)
    kind = time_model.kind_of("valu", calm.core, calm.memory, calm.step)
    assert kind == ("steps" if cycles == 500 else "vector")
