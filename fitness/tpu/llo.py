"""Readers of the text libtpu dumps about a compiled kernel. Text in, values out; ParseError for anything else.

Three kinds of file, all written by libtpu 0.0.51 under the flags of ``workers.toolchains.libtpu_simulator``:

* ``*_static_llo_profile.textproto``: the simulator's cycles of one HLO operation, all grid steps;
* ``*_bundles.txt``: every bundle the simulator executed, loops unrolled, predicated-off DMAs absent;
* ``*original.txt``: the low-level program before scheduling, with its memory allocations.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

GRANULE_BYTES = 32
"""Unit of a DMA's ``size_in_granules`` on tpu7x, v6e and v5e."""

_EUP = ("vrcp", "vrsqrt", "vpow2", "vlog2", "vtanh", "verf", "vexp", "vsin", "vcos", "vsigmoid")
_XLU = ("vrot", "vperm", "vtrn", "vxpose", "vbcast.lane")
_QUIET = ("vsync", "vnop", "vdelay", "vfence", "inlined_call", "spseudo", "shalt", "strace")

_OPCODE = re.compile(rb"\n  %\S+(?:, %\S+)* = (?:\([^)\n]*\) )?([a-z][\w.]*)")
_DMA = re.compile(rb"\n  %\S+(?:, %\S+)* = (?:\([^)\n]*\) )?(dma\.[\w.]+)([^\n]*)")
_GRANULES = re.compile(rb"size_in_granules=\*/(\d{1,15})(?!\d)")
_STORE_SPILL = re.compile(rb" = (?:\([^)\n]*\) )?vst\S* \[[^\]\n]*_spill\]")
_LOAD_FILL = re.compile(rb" = (?:\([^)\n]*\) )?vld\S* \[[^\]\n]*_spill\]")
_VMEM = re.compile(r"#allocation\d+ \[shape = [^\n]*?space=vmem, size = (0x[0-9a-f]{1,12})\b")


class ParseError(ValueError):
    """A dump that does not read as expected. One line."""


@dataclass(frozen=True)
class OperationCycles:
    """The simulator's answer for one HLO operation; ``count`` identical ones were merged into it."""

    name: str
    cycles: int
    count: int


@dataclass
class ExecutedWork:
    """Work that a run of bundles did. ``opcodes`` counts instructions, ``dma_bytes`` and ``dmas`` (their number) are by
    direction, ``bundles`` issued.
    """

    opcodes: Counter[str] = field(default_factory=Counter)
    dma_bytes: Counter[str] = field(default_factory=Counter)
    dmas: Counter[str] = field(default_factory=Counter)
    spills: int = 0
    fills: int = 0
    bundles: int = 0

    def __add__(self, other: "ExecutedWork") -> "ExecutedWork":
        return ExecutedWork(*(getattr(self, name) + getattr(other, name) for name in vars(self)))

    @property
    def hbm_bytes(self) -> int:
        """Bytes of every DMA with HBM at one end, a ``dma.general`` taken for one of them."""
        return sum(size for kind, size in self.dma_bytes.items() if _touches_hbm(kind))

    @property
    def hbm_dmas(self) -> int:
        """How many DMAs those were."""
        return sum(number for kind, number in self.dmas.items() if _touches_hbm(kind))

    def units(self) -> Counter[str]:
        """Instructions by functional unit."""
        counts: Counter[str] = Counter()
        for opcode, number in self.opcodes.items():
            counts[unit_of(opcode)] += number
        return counts

    def matmuls(self) -> Counter[str]:
        """Matrix-unit passes by operand type."""
        counts: Counter[str] = Counter()
        for opcode, number in self.opcodes.items():
            if opcode.startswith("vmatmul"):
                counts[matmul_type(opcode)] += number
        return counts


def _touches_hbm(direction: str) -> bool:
    return "hbm" in direction or direction == "dma.general"


def read_profile(text: str) -> OperationCycles:
    """One ``static_llo_profile.textproto``. Raises ParseError."""
    name = re.search(r'op_name: "([^"\n]*)"', text)
    cycles = re.search(r"estimated_cycles: ([0-9]{1,18})\b", text)
    count = re.search(r"num_equivalent_hlos: ([0-9]{1,9})\b", text)
    if name is None or cycles is None:
        raise ParseError("a simulator profile without an operation's name or cycles")
    return OperationCycles(name[1], int(cycles[1]), int(count[1]) if count else 1)


def opcodes_of(bundles: bytes) -> list[bytes]:
    """The opcode of every executed instruction of one ``_bundles.txt``, in order."""
    return _OPCODE.findall(bundles)


def scan_bundles(text: bytes, opcodes: Sequence[bytes] | None = None) -> ExecutedWork:
    """Counts over one ``_bundles.txt``; ``opcodes`` is what ``opcodes_of`` finds in it, where known.

    Raises ParseError for text without bundles or a DMA of unknown size.
    """
    bundles = text.count(b": bundle slots:")
    if not bundles:
        raise ParseError("an unrolled bundle dump without bundles")
    result = ExecutedWork(bundles=bundles)
    counts = Counter(opcodes_of(text) if opcodes is None else opcodes)
    for code, number in counts.items():
        result.opcodes[code.decode("ascii", "replace")] += number
    for direction, operands in _DMA.findall(text):
        if b"wait" in direction or b"done" in direction:
            continue
        granules = _GRANULES.search(operands)
        if granules is None:
            raise ParseError("a DMA whose size is not known before the run")
        kind = direction.decode("ascii", "replace")
        result.dma_bytes[kind] += GRANULE_BYTES * int(granules[1])
        result.dmas[kind] += 1
    if b"_spill]" in text:
        result.spills = len(_STORE_SPILL.findall(text))
        result.fills = len(_LOAD_FILL.findall(text))
    return result


def vmem_bytes(texts: Iterable[str]) -> int:
    """VMEM that one ``original.txt`` allocates, double buffers included."""
    return max((sum(int(size, 16) for size in _VMEM.findall(text)) for text in texts), default=0)


def matmul_type(opcode: str) -> str:
    """``bf16``, ``f8``, ``s8`` or ``f32``: the operand type of a vmatmul."""
    if any(mark in opcode for mark in (".s8", ".u8", ".s4", ".u4")):
        return "s8"
    if ".f8" in opcode or "eXmY" in opcode:
        return "f8"
    return "bf16" if ".bf16" in opcode else "f32"


def unit_of(opcode: str) -> str:
    """The functional unit an instruction occupies."""
    if opcode.startswith(("vmatmul", "vmatprep.mubr")):
        return "matmul"
    if opcode.startswith(("vmatpush", "vmatprep.subr", "vdwg")):
        return "matpush"
    if opcode.startswith("vpop"):
        return "vpop"
    if ".xlane" in opcode or ".xlu" in opcode or opcode.startswith(_XLU):
        return "xlu"
    if opcode.startswith(_EUP):
        return "eup"
    if opcode.startswith("vld"):
        return "vload"
    if opcode.startswith("vst"):
        return "vstore"
    if opcode.startswith(_QUIET):
        return "other"
    if opcode.startswith("dma"):
        return "dma_wait" if "wait" in opcode else "dma"
    return "valu" if opcode.startswith("v") else "salu"
