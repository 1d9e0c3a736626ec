"""Facts that compiled GPU code tells about a kernel without running it: registers, spills, matrix instructions, stores.

Everything is read from the assembler's text. Counts are *static*: an instruction inside a loop counts once.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.fitness.architectures import Architecture


class UnreadableCode(ValueError):
    """Text that is not what the assembler writes. The message is one line."""


@dataclass(frozen=True)
class KernelIsa:
    """One compiled kernel.

    ``registers`` 32-bit vector registers per lane (AMD: VGPRs and AGPRs together), ``accumulators`` AGPRs among them;
    ``spilled`` registers (AMD) or 4-byte words of local stores (NVIDIA); ``stack_bytes`` private memory per lane;
    ``shared`` bytes per program; ``resident`` warps of one multiprocessor, at most, of ``most_resident``, limited by
    ``limit``. ``matrix``, ``stores``, ``loads``: instruction to its static count (global memory; TMA included).
    """

    name: str
    warps: int
    registers: int
    accumulators: int
    spilled: int
    stack_bytes: int
    shared: int
    resident: int
    most_resident: int
    limit: str
    instructions: int
    matrix: Mapping[str, int]
    stores: Mapping[str, int]
    loads: Mapping[str, int]

    @property
    def occupancy(self) -> float:
        """Resident warps over what the multiprocessor holds: an upper bound, 0 to 1."""
        return self.resident / self.most_resident

    @property
    def store_bytes(self) -> float:
        """Mean bytes a lane writes per global store, over the static count; 0 without plain stores."""
        widths = {name: store_width(name) for name in self.stores}
        known = {name: width for name, width in widths.items() if width}
        count = sum(self.stores[name] for name in known)
        return sum(self.stores[name] * width for name, width in known.items()) / count if count else 0.0

    def data(self) -> dict[str, Any]:
        """For an evaluation; keys as the fields, plus ``occupancy`` and ``store_bytes``."""
        return {**asdict(self), "occupancy": self.occupancy, "store_bytes": self.store_bytes}


def read_isa(text: str, usage: str, architecture: Architecture, name: str, warps: int, shared: int) -> KernelIsa:
    """From assembler text: ``amdgcn`` for AMD, SASS for NVIDIA with ``usage`` of ``cuobjdump``.

    ``shared`` is what the compiler's metadata says: AMD's LDS is dynamic and not in the text. Raises UnreadableCode.
    """
    if warps < 1:
        raise UnreadableCode(f"a kernel of {warps} warps")
    reader = _read_amd if architecture.backend == "hip" else _read_nvidia
    found = reader(text, usage)
    resident, limit = architecture.resident_warps(warps, found["registers"], shared)
    return KernelIsa(
        name=name, warps=warps, shared=shared, resident=resident, most_resident=architecture.warps, limit=limit, **found
    )


_AMD_FIELD = r"^\s*-?\s*\.{}:\s+(\d+)"
_AMD_LINE = re.compile(r"^\s+([a-z][a-z0-9_]+)(?:\s|$)", re.M)


def _read_amd(text: str, usage: str) -> dict[str, Any]:
    def field(name: str) -> int:
        found = re.search(_AMD_FIELD.format(name), text, re.M)
        if found is None:
            raise UnreadableCode(f"the assembler's text has no .{name}")
        return int(found[1])

    counts = Counter(_AMD_LINE.findall(text.split(".section", 1)[0]))
    if not counts:
        counts = Counter(_AMD_LINE.findall(text))
    return {
        "registers": field("vgpr_count"),
        "accumulators": field("agpr_count"),
        "spilled": field("vgpr_spill_count"),
        "stack_bytes": field("private_segment_fixed_size"),
        "instructions": sum(counts.values()),
        "matrix": _chosen(counts, r"v_(mfma|smfmac|s?wmmac?)_"),
        "stores": _chosen(counts, r"(global|buffer|flat)_store_"),
        "loads": _chosen(counts, r"(global|buffer|flat)_load_"),
    }


_SASS_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)", re.M)
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


def _read_nvidia(text: str, usage: str) -> dict[str, Any]:
    used = _USAGE.search(usage)
    if used is None:
        raise UnreadableCode("cuobjdump names no registers")
    counts = Counter(_SASS_LINE.findall(text))
    if not counts:
        raise UnreadableCode("the disassembler's text has no instructions")
    spills = _chosen(counts, r"STL(\.|$)")
    return {
        "registers": int(used[1]),
        "accumulators": 0,
        "spilled": sum(n * store_width(name) // 4 for name, n in spills.items()),
        "stack_bytes": int(used[2]),
        "instructions": sum(counts.values()),
        "matrix": _chosen(counts, r"(UTC[QHIO]?\w*MMA|[QHI]G?MMA|OMMA)(\.|$)"),
        "stores": _chosen(counts, r"(STG|UTMASTG|UBLKS)(\.|$)"),
        "loads": _chosen(counts, r"(LDG|LDGSTS|UTMALDG|UBLKL)(\.|$)"),
    }


def _chosen(counts: Mapping[str, int], pattern: str) -> dict[str, int]:
    wanted = re.compile(pattern)
    return {name: n for name, n in sorted(counts.items()) if wanted.match(name)}


def store_width(name: str) -> int:
    """Bytes per lane of a store: AMD's ``buffer_store_dwordx4`` 16, NVIDIA's ``STG.E.128`` 16; 0 for a bulk copy."""
    if name.startswith("UTMA") or name.startswith("UBLK"):
        return 0
    if name.startswith(("STG", "STL")):
        parts = name.split(".")
        sizes = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
        return next((sizes[part] for part in parts if part in sizes), 4)
    tail = name.rsplit("store_", 1)[-1]
    if tail.startswith("dword"):
        return 4 * int(tail.removeprefix("dwordx") if "x" in tail else 1)
    if tail.startswith("b") and tail[1:].isdigit():
        return int(tail[1:]) // 8
    return 1 if tail.startswith("byte") else 2
