"""Readers of a simulator's dumps: what each kind of instruction occupies, what a copy moves, what is refused."""

from collections import Counter

import pytest

from tilewright.fitness.tpu.llo import (
    ExecutedWork,
    OperationCycles,
    ParseError,
    matmul_type,
    opcodes_of,
    read_profile,
    scan_bundles,
    unit_of,
    vmem_bytes,
)

UNITS = {
    "matmul": ["vmatmul.mubr.bf16", "vmatprep.mubr.f32"],
    "matpush": ["vmatpush.bf16", "vmatprep.subr.f32", "vdwg.f32"],
    "vpop": ["vpop.f32.mrb", "vpop.eup"],
    "xlu": ["vadd.xlane.f32", "vmul.xlu", "vrot.slane", "vperm.xlu1", "vtrn", "vxpose.xlu0", "vbcast.lane.b32"],
    "eup": ["vrcp.f32", "vrsqrt", "vpow2.f32", "vlog2", "vtanh", "verf", "vexp", "vsin", "vcos", "vsigmoid"],
    "vload": ["vld", "vld.sshfl"],
    "vstore": ["vst", "vst.msk"],
    "other": ["vsync.add", "vnop", "vdelay", "vfence", "inlined_call", "spseudo", "shalt.err", "strace"],
    "dma": ["dma.hbm_to_vmem", "dma.general"],
    "dma_wait": ["dma.done.wait", "dma.wait"],
    "valu": ["vadd.f32", "vmul.f32", "vbcast.sublane", "vsel"],
    "salu": ["sadd.s32", "scalar_lea.sflag", "sld"],
}


@pytest.mark.parametrize(("unit", "opcode"), [(u, o) for u, opcodes in UNITS.items() for o in opcodes])
def test_an_instruction_occupies_its_unit(unit, opcode):
    assert unit_of(opcode) == unit
    text = f"0x0: bundle slots:\n  %0 = {opcode}  /*size_in_granules=*/1\n".encode()
    assert scan_bundles(text).units() == {unit: 1}


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("vmatmul.mubr.s8.gmra", "s8"),
        ("vmatmul.u8", "s8"),
        ("vmatmul.s4", "s8"),
        ("vmatmul.u4", "s8"),
        ("vmatmul.f8e4m3fn", "f8"),
        ("vmatmul.eXmY", "f8"),
        ("vmatmul.mubr.bf16", "bf16"),
        ("vmatmul", "f32"),
        ("vmatmul.f32", "f32"),
        ("vmatmul.f8.bf16", "f8"),
    ],
)
def test_a_product_has_the_type_of_its_operands(opcode, kind):
    assert matmul_type(opcode) == kind
    assert ExecutedWork(opcodes=Counter({opcode: 3, "vmatpush.bf16": 9})).matmuls() == {kind: 3}


TEXT = b"""0x0: bundle slots:
  %0 = dma.hbm_to_vmem [x] /*size_in_granules=*/10
  %1 = (pred) dma.vmem_to_hbm [x] /*size_in_granules=*/20
  %2 = dma.vmem_to_vmem [x] /*size_in_granules=*/40
0x1: bundle slots:
  %3 = dma.general [x] /*size_in_granules=*/80
  %4 = dma.done.wait [x], 10
  %11 = dma.wait [x], 10
  %5 = dma.hbm_to_vmem [x] /*size_in_granules=*/160
  %6, %7 = vst.msk [vmem:[#allocation42_spill] sm:$0xff] %v
  %8 = vst [vmem:[#allocation42] sm:$0xff] %v
  %9 = (p) vld [vmem:[#allocation42_spill] sm:$0xff]
  %10 = vld [vmem:[#allocation42_spill] sm:$0xff]
"""


def test_copies_and_spills_are_counted():
    found = scan_bundles(TEXT)
    assert found.dma_bytes == {
        "dma.hbm_to_vmem": 170 * 32,
        "dma.vmem_to_hbm": 640,
        "dma.vmem_to_vmem": 1280,
        "dma.general": 2560,
    }
    assert found.dmas == {"dma.hbm_to_vmem": 2, "dma.vmem_to_hbm": 1, "dma.vmem_to_vmem": 1, "dma.general": 1}
    assert found.hbm_bytes == 270 * 32 and found.hbm_dmas == 4, "what stays within the core does not count"
    assert (found.spills, found.fills, found.bundles) == (1, 2, 2)
    assert found.opcodes["vst"] == 1 and found.opcodes["dma.hbm_to_vmem"] == 2
    assert scan_bundles(TEXT, opcodes_of(TEXT)) == found
    assert scan_bundles(TEXT, [b"vadd"]).opcodes == {"vadd": 1}


def test_what_runs_one_after_another_adds_up():
    one = scan_bundles(TEXT)
    two = one + one
    assert two == ExecutedWork(
        *(Counter({name: 2 * n for name, n in counts.items()}) for counts in (one.opcodes, one.dma_bytes, one.dmas)),
        spills=2,
        fills=4,
        bundles=4,
    )
    assert one + ExecutedWork() == one and ExecutedWork() == ExecutedWork(Counter(), Counter(), Counter(), 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "an unrolled bundle dump without bundles"),
        (b"0x0: bundle slots:\n  %1 = dma.hbm_to_vmem [x]\n", "a DMA whose size is not known before the run"),
        (
            b"0x0: bundle slots:\n  %1 = dma.hbm_to_vmem /*size_in_granules=*/%s1\n",
            "a DMA whose size is not known before the run",
        ),
        (
            b"0x0: bundle slots:\n  %1 = dma.hbm_to_vmem /*size_in_granules=*/1234567890123456\n",
            "a DMA whose size is not known before the run",
        ),
    ],
)
def test_a_dump_that_does_not_say_is_refused(text, why):
    with pytest.raises(ParseError, match=f"^{why}$"):
        scan_bundles(text)


def test_a_profile_without_a_count_is_of_one():
    text = 'hlo_op_name: "k.1"\nestimated_cycles: 34252\nnum_equivalent_hlos: 2\n'
    assert read_profile(text) == OperationCycles("k.1", 34252, 2)
    assert read_profile(text.replace("num_eq", "x")) == OperationCycles("k.1", 34252, 1)
    for gone in ("op_name", "estimated_cycles"):
        with pytest.raises(ParseError, match=r"^a simulator profile without an operation's name or cycles$"):
            read_profile(text.replace(gone, "x"))


def test_vmem_is_that_of_the_largest_program():
    line = "  #allocation{} [shape = 'f32[8,128]', space={}, size = {}, scoped, tag = 'x']\n"
    small, large = (line.format(1, "vmem", "0x10"), line.format(2, "vmem", "0x1f") + line.format(3, "vmem", "0x1"))
    assert vmem_bytes([large, small]) == vmem_bytes([small, large]) == 0x20
    assert vmem_bytes([]) == 0 and vmem_bytes([line.format(4, "smem", "0x40")]) == 0


def test_what_was_executed_adds_up():
    one, other = ExecutedWork(spills=2, fills=3, bundles=4), ExecutedWork(spills=5, fills=7, bundles=11)
    assert one + other == ExecutedWork(spills=7, fills=10, bundles=15)
