"""Facts that NVIDIA machine code tells about kernels, read from a cubin without a disassembler.

An instruction of compute capability 7.0 and newer has 16 bytes. Its operation is in the lowest 9 bits; bits 9 to 11 say
where its operands are. The scheduler's hints begin at bit 105: four bits of stall, then the yield bit, which is 0 where
another warp shall go next. Counts are *static*: an instruction in a loop counts once. The opcodes were found by
comparing with ``nvdisasm`` for ``sm_90a``.
"""

import struct
from typing import Any

from tilewright.library.plans.cubin import CubinError, read_cubin, sections_of

_MATRIX = {0x03C: "HMMA", 0x037: "IMMA", 0x1F0: "HGMMA", 0x1F1: "IGMMA", 0x1F3: "QGMMA"}
_FFMA, _FENCE, _BARRIER = 0x023, 0x192, 0x11D
_LOCAL_STORE, _LOCAL_LOAD, _STORE, _LOAD, _BULK_LOAD = 0x187, 0x183, 0x186, 0x181, 0x1B4
_READS = frozenset((0x119, 0x005, 0x1C3))
"""``S2R``, ``CS2R``, ``S2UR``: read a special register, whose number is in bits 72 to 79."""

_CLOCKS = range(0x50, 0x54)
"""``SR_CLOCKLO``, ``SR_CLOCKHI``, ``SR_GLOBALTIMERLO``, ``SR_GLOBALTIMERHI``."""

_WORDS = struct.Struct("<QQ")
_TEXT = ".text."


class ReadsClock(ValueError):
    """Code that reads a clock, by which it could tell a timed call from another."""


def facts(code: bytes) -> dict[str, dict[str, Any]]:
    """By kernel: ``registers``, ``instructions``, ``matrix`` instructions by name, ``spills`` (accesses of local
    memory), ``fences``, ``barriers``, ``loads``, ``stores``, and ``yields``: the share of FFMAs with a yield.

    Raises CubinError, ReadsClock.
    """
    known = read_cubin(code)
    found = {}
    for section in sections_of(code):
        name = section.name.removeprefix(_TEXT)
        if not section.name.startswith(_TEXT):
            continue
        counts = _instruction_counts(code, section.offset, section.size, name)
        if name in known.kernels:
            found[name] = {"registers": known.registers.get(name, 0), **counts}
    if not found:
        raise CubinError("the code holds no kernel")
    return found


def _instruction_counts(code: bytes, start: int, size: int, name: str) -> dict[str, Any]:
    counts: dict[int, int] = {}
    yields = 0
    for low, high in _WORDS.iter_unpack(code[start : start + size // 16 * 16]):
        operation = low & 0x1FF
        counts[operation] = counts.get(operation, 0) + 1
        if operation in _READS and (high >> 8 & 0xFF) in _CLOCKS:
            raise ReadsClock(f"{name} reads a clock")
        yields += operation == _FFMA and not high >> 45 & 1
    fused = counts.get(_FFMA, 0)
    return {
        "instructions": sum(counts.values()),
        "matrix": {text: counts[number] for number, text in _MATRIX.items() if number in counts},
        "spills": counts.get(_LOCAL_STORE, 0) + counts.get(_LOCAL_LOAD, 0),
        "fences": counts.get(_FENCE, 0),
        "barriers": counts.get(_BARRIER, 0),
        "loads": counts.get(_LOAD, 0) + counts.get(_BULK_LOAD, 0),
        "stores": counts.get(_STORE, 0),
        "yields": round(yields / fused, 3) if fused else 0.0,
    }
