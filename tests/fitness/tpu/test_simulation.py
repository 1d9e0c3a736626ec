"""What a simulator's dumps come to: read whole or not at all, floors by unit, figures that cannot be."""

import dataclasses

import pytest

from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu import simulation
from tilewright.fitness.tpu.events import Events
from tilewright.fitness.tpu.llo import OperationCycles, ParseError, scan_bundles
from tilewright.fitness.tpu.time_model import ModelledTime

CHIP = dataclasses.replace(
    CHIPS["tpu7x"],
    mxus=2,
    mxu_size=10,
    mxu_cycles={"bf16": 8, "f8": 4},
    mxu_rows={"bf16": 16, "f8": 32},
    slots={"valu": 4, "vload": 2, "vstore": 1, "xlu": 1},
    peaks={"bf16": 1e9, "f8": 2e9},
    hbm=1e6,
)
BUNDLES = b"""0x0: bundle slots:
  %0 = dma.hbm_to_vmem [x] /*size_in_granules=*/10
0x1: bundle slots:
  %1 = vmatmul.mubr.f8e4m3fn.gmra.mrb[0].mxu0 %v14_v1
  %2 = vmatmul.mubr.bf16.gmra.mrb[0].mxu1 %v14_v1
  %3 = vld [vmem:[%s3_s1] sm:$0xff]
  %4 = vst [vmem:[#allocation42_spill] sm:$0xff] /*vst_source=*/%v8_v14
"""
CRITICAL = b"""Length to end: 100, %0 = dma.hbm_to_vmem [x] /*size_in_granules=*/10
Length to end: 60, %1 = vmatmul.mubr.f8e4m3fn.gmra.mrb[0].mxu0 %v14_v1
"""


def profile(name, cycles, count):
    return f'hlo_op_name: "{name}"\n estimated_cycles: {cycles}\n num_equivalent_hlos: {count}\n'


def dumps(folder, **operations):
    """A simulator's folder with these operations: cycles and count."""
    (folder / "prof").mkdir(parents=True)
    (folder / "llo").mkdir()
    for name, (cycles, count) in operations.items():
        (folder / "prof" / f"{name}_static_llo_profile.textproto").write_text(profile(name, cycles, count))
        (folder / "prof" / f"{name}_bundles.txt").write_bytes(BUNDLES)
        (folder / "prof" / f"{name}_critical_path.txt").write_bytes(CRITICAL)
    line = "  #allocation1 [shape = 'f32[8]', space=vmem, size = 0x{}, scoped]\n"
    (folder / "llo" / "a-original.txt").write_text(line.format("100"))
    (folder / "llo" / "b-original.txt").write_text(line.format("200"))
    (folder / "llo" / "other.txt").write_text(line.format("900"))
    return folder


def test_dumps_are_counted_as_often_as_they_run(tmp_path):
    once = scan_bundles(BUNDLES)
    run = simulation.read_dumps(dumps(tmp_path / "two", k1=(100, 3), k2=(100, 1)), CHIP)
    assert run.operations == (OperationCycles("k1", 100, 3), OperationCycles("k2", 100, 1))
    assert run.cycles == 400 and run.executed == once + once + once + once and run.vmem == 0x200
    assert [count for _, count in run.events] == [3, 1]
    assert run.schedule is not None
    assert all(0 < events.work.sum() <= 100 for events, _ in run.events)


def test_the_schedule_is_that_of_the_longest_operation(tmp_path):
    for name in ("k1", "k2"):
        folder = dumps(tmp_path / name, **{"k1": (100, 1), "k2": (100, 1), name: (200, 1)})
        critical = CRITICAL.replace(b"end: 100,", b"end: 200,")
        (folder / "prof" / f"{name}_critical_path.txt").write_bytes(critical)
        found = simulation.read_dumps(folder, CHIP)
        assert sum(found.schedule["critical_path"].values()) == 200 and found.cycles == 300


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("k_static_llo_profile.textproto", "the simulator wrote no profile"),
        ("k_bundles.txt", "the simulator wrote no profile"),
        ("k_critical_path.txt", "no critical path of k"),
    ],
)
def test_a_dump_that_lacks_a_part_is_refused(tmp_path, missing, why):
    folder = dumps(tmp_path / "w", k=(100, 1))
    (folder / "prof" / missing).unlink()
    with pytest.raises(ParseError, match=f"^{why}$"):
        simulation.read_dumps(folder, CHIP)


def test_an_operation_of_no_cycles_or_no_profile_is_refused(tmp_path):
    for name, operations in (("zero", {"k": (0, 1)}), ("other", {"k": (100, 1)})):
        folder = dumps(tmp_path / name, **operations)
        if name == "other":
            for kind in ("bundles", "critical_path"):
                (folder / "prof" / f"k_{kind}.txt").rename(folder / "prof" / f"j_{kind}.txt")
        with pytest.raises(ParseError, match="no critical path of"):
            simulation.read_dumps(folder, CHIP)


def run_of(text=BUNDLES, cycles=100, events=None):
    operations = (OperationCycles("k", cycles, 1),)
    return simulation.StaticRun(operations, scan_bundles(text), 0x200, None, events or ((Events.idle(100), 1),))


def test_work_is_counted_by_unit():
    run = run_of()
    assert simulation.mxu_flops(run.executed, CHIP) == 2 * 100 * (32 + 16)
    assert simulation.lower_bounds(run.executed, CHIP) == {
        "mxu": (4 + 8) / 2,
        "valu": 0.0,
        "vload": 0.5,
        "vstore": 1.0,
        "xlu": 0.0,
    }
    int8 = scan_bundles(b"0x1: bundle slots:\n  %3 = vmatmul.mubr.s8.gmra.mrb[0].mxu1 %v1\n")
    assert simulation.lower_bounds(int8, CHIP)["mxu"] == 4.0, "as bf16, where a chip does not say"


def time(kind="matrix", seconds=1e-3, **changes):
    return dataclasses.replace(ModelledTime(seconds, 0.9e-3, 1.2e-3, 5e-4, 4e-4, 3e-4, kind), **changes)


def test_a_diagnosis_is_worked_out_by_hand():
    found = simulation.diagnosis(run_of(), CHIP, time())
    assert found == {
        "cycles": 100,
        "mxu_busy": 0.06,
        "valu_busy": 0.0,
        "load_busy": 0.005,
        "store_busy": 0.01,
        "xlu_busy": 0.0,
        "spill_stores": 1,
        "spill_loads": 0,
        "vmem_bytes": 0x200,
        "dma_bytes": 320,
        "core_seconds": 5e-4,
        "hbm_seconds": 4e-4,
        "waited_seconds": 3e-4,
        "seconds_low": 0.9e-3,
        "seconds_high": 1.2e-3,
        "error_class": "matrix",
        "bound": "mxu",
        "unexplained": 0.94,
        "dma_latency": 0.0013,
    }
    assert simulation.diagnosis(run_of(), CHIP, time("memory"))["bound"] == "hbm"
    rounded = simulation.diagnosis(run_of(cycles=70_000), CHIP, time())
    assert (rounded["mxu_busy"], rounded["unexplained"]) == (0.0001, 0.9999)
    more = BUNDLES + b"  %5 = vadd.f32 %v1_v1, %v2_v1\n  %6 = vrot.slane %v1_v1, 1\n"
    faint = simulation.diagnosis(run_of(more, cycles=30_000), CHIP, time())
    assert [faint[f"{name}_busy"] for name in ("valu", "load", "store", "xlu")] == [0.0] * 4
    busy = simulation.diagnosis(run_of(more, cycles=150), CHIP, time())
    assert [busy[f"{name}_busy"] for name in ("valu", "load", "store", "xlu")] == [0.0017, 0.0033, 0.0067, 0.0067]
    over = simulation.diagnosis(run_of(cycles=4), CHIP, time())
    assert (over["mxu_busy"], over["unexplained"], over["store_busy"]) == (1.5, 0.0, 0.25)
    none = simulation.diagnosis(run_of(cycles=0), CHIP, time())
    assert none["cycles"] == 0 and none["mxu_busy"] == 6.0
    scheduled = dataclasses.replace(run_of(), schedule={"overlap": {"x": 1}, "cycles": 7})
    assert simulation.diagnosis(scheduled, CHIP, time())["overlap"] == {"x": 1}


@pytest.mark.parametrize(
    ("seconds", "waited", "flagged"),
    [
        (2.68e-6, 3e-4, False),
        (2.67e-6, 3e-4, True),
        (1e-6, 3e-4, True),
        (1e-3, 3e-4, False),
        (1e-6, 0.51e-6, True),
        (1e-6, 0.49e-6, False),
    ],
)
def test_a_time_that_is_half_latency_is_flagged(seconds, waited, flagged):
    """One copy's latency on this chip is 1.34 us."""
    found = simulation.diagnosis(run_of(), CHIP, time(seconds=seconds, waited=waited))
    assert ("caution" in found) is flagged
    assert found.get("caution", simulation.SMALL_BLOCKS) == simulation.SMALL_BLOCKS


DONE = 2 * 100 * 48


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"products": DONE + 1}, "the matrix units do 1.000 of the operator's FLOP (modelled, tpu7x)"),
        ({"products": 2 * DONE}, "the matrix units do 0.500 of the operator's FLOP (modelled, tpu7x)"),
        ({"products": 0}, None),
        ({"compulsory_bytes": 337}, "320 bytes move where the operator needs 337 (modelled, tpu7x)"),
        ({"compulsory_bytes": 336, "time": 336.0e-6}, None),
        ({"compulsory_bytes": 336, "time": 335.9e-6}, "335.90 us is below the roofline's 336.00 us (modelled, tpu7x)"),
        ({"flops": 2 * 10**6, "time": 1e-3}, None),
        ({"flops": 2 * 10**6, "time": 0.999e-3}, "999.00 us is below the roofline's 1000.00 us (modelled, tpu7x)"),
        ({"time": float("nan")}, "nan us is below the roofline's 320.00 us (modelled, tpu7x)"),
    ],
)
def test_figures_that_cannot_be_are_named(change, why):
    asked = {"flops": 1000, "products": DONE, "compulsory_bytes": 320, "time": 320e-6, **change}
    assert simulation.implausible(run_of(), CHIP, **asked) == why
