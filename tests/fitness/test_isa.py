"""Compiled code as text: what is counted, how wide stores are, what is refused."""

import pytest

from tilewright.fitness.architectures import ARCHITECTURES
from tilewright.fitness.isa import KernelIsa, UnreadableCode, read_isa, store_width

AMD = """\t.text
kernel:
\tv_mfma_f32_32x32x64_f8f6f4 a[0:15], v[0:7], v[8:15], a[0:15]
\tv_mfma_f32_32x32x64_f8f6f4 a[0:15], v[0:7], v[8:15], a[0:15]
\tv_smfmac_f32_16x16x32_bf16 a[0:3], v[0:3], v[4:7], v8
\tv_wmma_f32_16x16x16_f16 v[0:7], v[0:7], v[8:15], v[0:7]
\tv_mul_f32 v0, v1, v2
\tbuffer_store_dwordx4 v[0:3], v4, s[0:3], 0
\tglobal_store_short v[0:1], v2, off
\tflat_store_byte v[0:1], v2
\tbuffer_load_dwordx2 v[0:1], v4, s[0:3], 0
\tds_read_b128 v[0:3], v4
\ts_endpgm
\t.section .rodata
\tv_mul_f32 never, counted, here
    .agpr_count:     16
    .vgpr_count:     130
    .vgpr_spill_count: 3
  - .private_segment_fixed_size: 12
"""
SASS = "".join(
    f"        /*{n:04x}*/                   {line} ;\n"
    for n, line in enumerate(
        [
            "MOV R1, c[0x0][0x28]",
            "@P0 LDG.E.128 R4, desc[UR4][R2.64]",
            "@!UP1 UTMALDG.2D [UR8], [UR6]",
            "QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24",
            "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24",
            "UTCQMMA gdesc[UR8], gdesc[UR10], tmem[UR4]",
            "HMMA.16816.F32 R4, R8, R12, R4",
            "STG.E.128 desc[UR4][R2.64], R4",
            "STG.E.U8 desc[UR4][R2.64], R4",
            "STL.64 [R1], R2",
            "STL [R1+0x8], R2",
            "STL.128 [R1+0x10], R4",
            "UTMASTG.2D [UR8], [UR6]",
            "STS [R1], R2",
            "EXIT",
        ]
    )
)


def test_amd_s_text_is_counted_up_to_its_data():
    found = read_isa(AMD, "", ARCHITECTURES["gfx950"], "kernel", 4, 1024)
    assert found == KernelIsa(
        name="kernel",
        warps=4,
        registers=130,
        accumulators=16,
        spilled=3,
        stack_bytes=12,
        shared=1024,
        resident=12,
        most_resident=32,
        limit="registers",
        instructions=11,
        matrix={"v_mfma_f32_32x32x64_f8f6f4": 2, "v_smfmac_f32_16x16x32_bf16": 1, "v_wmma_f32_16x16x16_f16": 1},
        stores={"buffer_store_dwordx4": 1, "flat_store_byte": 1, "global_store_short": 1},
        loads={"buffer_load_dwordx2": 1},
    )
    assert found.store_bytes == (16 + 1 + 2) / 3 and found.occupancy == 12 / 32
    data = found.data()
    assert data["store_bytes"] == found.store_bytes and data["occupancy"] == found.occupancy
    assert data["matrix"] == found.matrix and data["limit"] == "registers"
    turned = "\t.section .first\n" + AMD.replace(".section .rodata", ".other")
    assert read_isa(turned, "", ARCHITECTURES["gfx950"], "kernel", 4, 0).instructions == 12, "code after data"


@pytest.mark.parametrize("field", ["agpr_count", "vgpr_count", "vgpr_spill_count", "private_segment_fixed_size"])
def test_amd_s_text_must_say_what_it_uses(field):
    with pytest.raises(UnreadableCode, match=f"^the assembler's text has no .{field}$"):
        read_isa(AMD.replace(f".{field}:", ".x:"), "", ARCHITECTURES["gfx950"], "kernel", 4, 0)


def test_nvidia_s_code_is_counted_with_its_spills_in_words():
    found = read_isa(SASS, "REG:168 STACK:32 SHARED:0 LOCAL:0", ARCHITECTURES["sm_100"], "k", 4, 50_000)
    assert (found.registers, found.accumulators, found.stack_bytes) == (168, 0, 32)
    assert found.spilled == 2 + 1 + 4 and found.instructions == 15
    assert found.matrix == {
        "HGMMA.64x64x16.F32.BF16": 1,
        "HMMA.16816.F32": 1,
        "QGMMA.64x64x32.F32.E4M3.E4M3": 1,
        "UTCQMMA": 1,
    }
    assert found.stores == {"STG.E.128": 1, "STG.E.U8": 1, "UTMASTG.2D": 1}
    assert found.loads == {"LDG.E.128": 1, "UTMALDG.2D": 1}
    assert found.store_bytes == (16 + 1) / 2, "a bulk copy has no width"
    assert (found.resident, found.limit) == (12, "registers")
    none = read_isa("  /*0000*/  EXIT ;\n", "REG:1 STACK:0", ARCHITECTURES["sm_100"], "k", 1, 0)
    assert none.store_bytes == 0.0 and none.stores == {}


@pytest.mark.parametrize(
    ("text", "usage", "why"),
    [
        (SASS, "", "cuobjdump names no registers"),
        (SASS, "REG:x STACK:0", "cuobjdump names no registers"),
        ("nothing", "REG:1 STACK:0", "the disassembler's text has no instructions"),
    ],
)
def test_nvidia_s_text_that_does_not_read_is_refused(text, usage, why):
    with pytest.raises(UnreadableCode, match=f"^{why}$"):
        read_isa(text, usage, ARCHITECTURES["sm_100"], "k", 4, 0)


@pytest.mark.parametrize("warps", [0, -4])
def test_a_kernel_has_warps(warps):
    with pytest.raises(UnreadableCode, match=f"^a kernel of {warps} warps$"):
        read_isa(AMD, "", ARCHITECTURES["gfx950"], "kernel", warps, 0)
    assert read_isa(AMD, "", ARCHITECTURES["gfx950"], "kernel", 1, 0).resident == 12


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("UTMASTG.2D", 0),
        ("UBLKCP.S.G", 0),
        ("STG.E", 4),
        ("STG.E.64", 8),
        ("STG.E.128", 16),
        ("STG.E.U8", 1),
        ("STG.E.S8", 1),
        ("STG.E.U16", 2),
        ("STG.E.S16", 2),
        ("STL", 4),
        ("STL.64", 8),
        ("buffer_store_dword", 4),
        ("buffer_store_dwordx2", 8),
        ("global_store_dwordx3", 12),
        ("global_store_b128", 16),
        ("global_store_b32", 4),
        ("global_store_b8", 1),
        ("global_store_b16", 2),
        ("buffer_store_byte", 1),
        ("flat_store_short", 2),
        ("buffer_store_byte_d16_hi", 1),
        ("global_store_block", 2),
    ],
)
def test_a_store_s_width_is_in_its_name(name, width):
    assert store_width(name) == width


@pytest.mark.parametrize(
    ("target", "warps", "registers", "shared", "resident", "limit"),
    [
        ("gfx950", 1, 0, 0, 32, "warps"),
        ("gfx950", 4, 64, 0, 32, "warps"),
        ("gfx950", 4, 65, 0, 28, "registers"),
        ("gfx950", 4, 72, 0, 28, "registers"),
        ("gfx950", 4, 73, 0, 24, "registers"),
        ("gfx950", 4, 512, 160 << 10, 4, "registers"),
        ("gfx950", 4, 256, 160 << 10, 4, "shared"),
        ("gfx950", 4, 256, (160 << 10) + 1, 0, "shared"),
        ("gfx950", 1, 520, 0, 0, "registers"),
        ("sm_100", 1, 32, 0, 32, "blocks"),
        ("sm_100", 3, 32, 0, 63, "warps"),
        ("sm_100", 4, 32, 1024, 64, "warps"),
        ("sm_100", 4, 32, 113 * 1024, 8, "shared"),
        ("sm_100", 4, 32, 113 * 1024 + 1, 4, "shared"),
        ("sm_100", 4, 32, 227 * 1024, 4, "shared"),
    ],
)
def test_resident_warps_are_bounded_by_the_scarcest(target, warps, registers, shared, resident, limit):
    assert ARCHITECTURES[target].resident_warps(warps, registers, shared) == (resident, limit)
