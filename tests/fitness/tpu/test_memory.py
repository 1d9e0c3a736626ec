"""Copies and work of a simulated run, timed again under one shared memory."""

import math

import numpy as np
import pytest

from tilewright.fitness.tpu.events import Events, Kind, read_events
from tilewright.fitness.tpu.llo import ParseError
from tilewright.fitness.tpu.memory import Rules, replay
from tilewright.fitness.tpu.timeline import read_critical_path

RULES = Rules(clock=1e9, read=1e12, write=5e11, latency=1e-6)

BUNDLES = b"""0x0: bundle slots:
  %s0_s1 = scalar_lea.sflag [#allocation4], %s9_s1
  %1 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s8_s1, /*size_in_granules=*/100, /*vmem=*/%s7_s0, /*dst_syncflagno=*/%s0_s1
0x1: bundle slots:
  %s2_s1 = scalar_lea.sflag [#allocation7], %s9_s1
  %3 = dma.general /*size_in_granules=*/200, /*dst_syncflagno=*/%s2_s1, /*o=*/0 /* hbm-to-vmem */
0x2: bundle slots:
  %4 = dma.done.wait %s0_s1, 100
0x3: bundle slots:
  %5 = vadd.f32 %v1_v1, %v2_v1
0x4: bundle slots:
  %6 = dma.done.wait [#allocation7 + $0x1], 200
0x5: bundle slots:
  %7 = dma.vmem_to_hbm [thread:$0]  /*size_in_granules=*/50, /*hbm=*/%s0_s1, /*dst_syncflagno=*/[#allocation9]
"""

CRITICAL = b"""Length to end: 100, %s0_s1 = scalar_lea.sflag [#allocation4], %s9_s1
Length to end: 99, %3 = dma.general /*src=*/%s8_s1
Length to end: 59, %4 = dma.done.wait %s0_s1, 100
Length to end: 49, %5 = vadd.f32 %v1_v1, %v2_v1
Length to end: 20, %6 = dma.done.wait [#allocation7 + $0x1], 200
Length to end: 1, %7 = dma.vmem_to_hbm
"""


def test_events_say_what_is_copied_what_is_waited_for_and_how_long_the_core_works():
    found = read_events(BUNDLES, read_critical_path(CRITICAL, 100), 100)
    assert found.kinds.tolist() == [Kind.READ, Kind.READ, Kind.WAIT, Kind.WAIT, Kind.WRITE]
    assert found.sizes.tolist() == [3200, 6400, 3200, 6400, 1600]
    assert found.ready.tolist() == [-1, -1, 0, 1, -1]
    # what the core spends on copies' account is one cycle each; the vector operation took 29
    assert found.work.sum() == 1 + 1 + 1 + 29 + 1 + 1


def test_a_flag_that_is_a_constant_is_the_flag_it_is():
    """A copy by hand names its flag by a number; taken for another's, its first wait would be for a later copy."""
    constant = BUNDLES.replace(
        b"scalar_lea.sflag [#allocation7], %s9_s1", b"smov.u32 [#allocation7] /* materialized constant */"
    )
    both = constant.replace(b"granules=*/100", b"granules=*/200").replace(b"wait %s0_s1, 100", b"wait %s0_s1, 200")
    swapped = both.replace(b"wait %s0_s1, 200", b"wait [#allocation7 + $0x1], 200", 1)
    assert constant != BUNDLES and read_events(swapped, read_critical_path(CRITICAL, 100), 100).ready.tolist()[2] == 1


SPILLED = b"""0x0: bundle slots:
  %s0_s1 = scalar_lea.sflag [#allocation4], %s9_s1
  %1 = sst [smem:[#allocation9_spill]] %s0_s1
0x1: bundle slots:
  %s2_s3 = sld [smem:[#allocation9_spill]] /* copy for cssa */
  %s3_s4 = smov.u32 %s2_s3
  %4 = dma.hbm_to_vmem /*hbm=*/%s8_s1, /*size_in_granules=*/100, /*dst_syncflagno=*/%s3_s4
0x2: bundle slots:
  %s5_s1 = scalar_lea.sflag [#allocation7], %s9_s1
  %6 = sst [smem:[#allocation9_spill]] %s5_s1
  %7 = dma.hbm_to_vmem /*hbm=*/%s8_s1, /*size_in_granules=*/100, /*dst_syncflagno=*/%s5_s1
0x3: bundle slots:
  %s8_s1 = sld [smem:[#allocation9_spill]]
  %9 = dma.done.wait %s8_s1, 100
  %10 = dma.done.wait [#allocation4], 100
"""


def test_a_flag_is_followed_through_a_spill_slot_as_it_was_when_it_was_loaded():
    critical = b"Length to end: 90, %1 = sst\nLength to end: 40, %9 = dma.done.wait %s8_s1, 100\n"
    assert list(read_events(SPILLED, read_critical_path(critical, 100), 100).ready) == [-1, -1, 1, 0]


def test_a_dump_without_bundles_is_refused():
    with pytest.raises(ParseError):
        read_events(b"", read_critical_path(CRITICAL, 100), 100)


def events(*steps):
    """(cycles of work before, kind, bytes, number of the start that is waited for)."""
    work, kinds, sizes, ready = zip(*steps, strict=True)
    return Events(np.array([*work, 0]), np.array(kinds), np.array(sizes), np.array(ready))


def test_a_copy_that_is_waited_for_takes_its_bytes_and_the_latency():
    found = replay(events((0, Kind.READ, 1_000_000, -1), (0, Kind.WAIT, 1_000_000, 0)), RULES)
    assert found.seconds == pytest.approx(1e-6 + 1e-6)
    assert found.waited == pytest.approx(2e-6)


def test_work_hides_a_copy_and_a_copy_hides_nothing():
    steps = [(0, Kind.READ, 1_000_000, -1), (5000, Kind.WAIT, 1_000_000, 0)]
    assert replay(events(*steps), RULES).seconds == pytest.approx(5e-6)
    assert replay(events(*steps, (0, Kind.WRITE, 1_000_000, -1)), RULES).seconds == pytest.approx(7e-6)


def test_copies_share_one_memory():
    both = [(0, Kind.READ, 1_000_000, -1), (0, Kind.READ, 1_000_000, -1)]
    last = replay(events(*both, (0, Kind.WAIT, 1_000_000, 1)), RULES)
    first = replay(events(*both, (0, Kind.WAIT, 1_000_000, 0)), RULES)
    assert last.seconds == pytest.approx(3e-6)
    assert first.waited == pytest.approx(2e-6), "the first is ready before the second has had its turn"


def test_an_operation_without_copies_is_its_cycles():
    assert replay(Events.idle(3000), RULES).seconds == pytest.approx(3e-6)


def test_a_long_write_at_the_end_is_waited_for():
    found = replay(events((100, Kind.WRITE, 5_000_000, -1)), RULES)
    assert found.seconds == pytest.approx(10.1e-6) and found.waited == pytest.approx(10e-6)
    assert (found.core, found.write, found.read) == (pytest.approx(1e-7), pytest.approx(1e-5), 0.0)
    assert found.memory == found.write and found.waits == 0 and found.step == math.inf


def test_steps_are_from_wait_to_wait_ready_or_not():
    steps = [(0, Kind.READ, 1000, -1), (4000, Kind.WAIT, 1000, 0), (4000, Kind.WAIT, 1000, -1)]
    found = replay(events(*steps), RULES)
    assert found.waits == 2 and found.step == pytest.approx(found.seconds / 2) and found.waited == 0.0
    assert found.core == pytest.approx(8e-6) and found.read == pytest.approx(1e-9)
    local = replay(events((10, Kind.LOCAL, 9999, -1), (10, Kind.WAIT, 9999, 0)), RULES)
    assert (local.seconds, local.waited, local.memory) == (pytest.approx(20e-9), 0.0, 0.0)
