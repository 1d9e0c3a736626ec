"""When each unit was busy, and which one the kernel waited for: the diagnosis of a simulated run.

The critical-path dump gives the issue cycle of the instructions on the critical path ("Length to end"); bundles
issue in order and at most one a cycle, which places the rest between them. Instructions are numbered from 0 in
the order in which they issue.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.fitness.chips import Chip
from tilewright.fitness.tpu.llo import ParseError, matmul_type, opcodes_of, unit_of

MAX_CYCLES = 1 << 24
"""Occupancy is held for every cycle: some 40 bytes each."""

WAITS = ("mxu", "valu", "eup", "xlu", "load", "store", "spill", "dma", "scalar")
"""What a critical path may wait for; an instruction of any other unit counts as ``scalar``."""

_LANE_OF_UNIT = {
    "matmul": "mxu",
    "matpush": "mxu",
    "vpop": "mxu",
    "valu": "valu",
    "eup": "eup",
    "xlu": "xlu",
    "vload": "load",
    "vstore": "store",
    "dma": "dma",
    "dma_wait": "dma",
}

_BUNDLE = re.compile(rb": bundle slots:\n  %[a-z]*([0-9]{1,15})(?![0-9])")
_LAST = re.compile(rb"\n  %[a-z]*([0-9]{1,15})(?![0-9])")
_SPILL = re.compile(rb"\n  %[a-z]*([0-9]{1,15})(?![0-9])[^\n=]* = (?:\([^)\n]*\) )?v(?:st|ld)\S* \[[^\]\n]*_spill\]")
_MATMUL = re.compile(rb"\n  %[a-z]*([0-9]{1,15})(?![0-9])[^\n=]* = (?:\([^)\n]*\) )?(vmatmul[^\n]{0,160})")
_CRITICAL = re.compile(
    rb"(?:^|\n)Length to end: ([0-9]{1,15}), %[a-z]*([0-9]{1,15})(?![0-9])[^\n=]* = (?:\([^)\n]*\) )?"
    rb"([a-z][\w.]*)([^\n]{0,160})"
)
_MXU = re.compile(rb"mxu([0-9])")


def read_diagnosis(
    bundles: bytes, path: "CriticalPath", cycles: int, chip: Chip, *, opcodes: Sequence[bytes] | None = None
) -> dict[str, Any]:
    """``overlap`` and ``critical_path`` of one operation.

    ``bundles`` is the dump; ``opcodes`` what ``opcodes_of`` finds in it, where known.

    ``overlap``: {"mxu_with_valu": part of the matrix units' busy cycles in which a vector operation issues,
    "valu_with_mxu": the reverse}. ``critical_path``: cycles by what was waited for, most first (see WAITS).
    Raises ParseError.
    """
    if cycles <= 0 or cycles > MAX_CYCLES:
        raise ParseError(f"a run of {cycles} cycles cannot be read; 1 to {MAX_CYCLES} can")
    run = _Run.read(bundles, opcodes_of(bundles) if opcodes is None else opcodes, path, cycles)
    held = run.held(chip)
    vector = run.count("valu")
    return {"overlap": _overlap(held, vector), "critical_path": path.by_wait()}


@dataclass(frozen=True)
class CriticalPath:
    """The critical path: instruction numbers, issue cycles, indices into WAITS, and cycles until the next one."""

    numbers: np.ndarray
    issued: np.ndarray
    waits: np.ndarray
    spans: np.ndarray

    def by_wait(self) -> dict[str, int]:
        spent = np.bincount(self.waits, weights=self.spans, minlength=len(WAITS))
        named = [(name, int(value)) for name, value in zip(WAITS, spent, strict=True) if value > 0]
        return dict(sorted(named, key=lambda item: -item[1]))


def read_critical_path(text: bytes, cycles: int) -> CriticalPath:
    """A ``_critical_path.txt`` of a run of that many cycles. Raises ParseError."""
    rows = _CRITICAL.findall(text)
    if not rows:
        raise ParseError("an empty critical path")
    lengths_text, numbers_text, opcodes, operands = zip(*rows, strict=True)
    lengths = np.fromiter(map(int, lengths_text), np.int64, len(rows))
    numbers = np.fromiter(map(int, numbers_text), np.int64, len(rows))
    if np.any(np.diff(lengths) > 0) or lengths[0] > cycles:
        raise ParseError("a critical path that goes back in time")
    spilled: Iterable[bool] = itertools.repeat(False)
    if b"_spill]" in text:
        spilled = (b"_spill]" in each and b"_spill]" in each.split(b"/*")[0] for each in operands)
    keys = list(zip(opcodes, spilled, strict=False))
    known = {key: _lane(*key) for key in set(keys)}
    waits = np.fromiter(map(known.__getitem__, keys), np.int64, len(rows))
    return CriticalPath(numbers, cycles - lengths, waits, lengths - np.append(lengths[1:], 0))


def _lane(opcode: bytes, spilled: bool = False) -> int:
    """The index into WAITS of what an instruction occupies."""
    unit = unit_of(opcode.decode("ascii", "replace"))
    if spilled and unit in ("vload", "vstore"):
        return WAITS.index("spill")
    return WAITS.index(_LANE_OF_UNIT.get(unit, "scalar"))


@dataclass(frozen=True)
class _Run:
    """Every executed instruction, by number: its index into WAITS and its issue cycle; ``total`` cycles in all."""

    text: bytes
    total: int
    lanes: np.ndarray
    issued: np.ndarray

    @classmethod
    def read(cls, text: bytes, opcodes: Sequence[bytes], path: CriticalPath, cycles: int) -> "_Run":
        firsts = first_instructions(text)
        last = _last_instruction(text)
        if not len(firsts) or np.any(np.diff(firsts) <= 0) or last != len(opcodes) - 1:
            raise ParseError("a bundle dump whose instructions are not numbered in order")
        lane_of = {code: _lane(code) for code in set(opcodes)}
        lanes = np.fromiter(map(lane_of.__getitem__, opcodes), np.int8, len(opcodes))
        if b"_spill]" in text:
            spilled = np.array([int(number) for number in _SPILL.findall(text)], np.int64)
            lanes[spilled[spilled < len(lanes)]] = WAITS.index("spill")
        issued = issue_cycles(firsts, path, cycles)[_bundle_of(firsts, np.arange(len(lanes)))]
        return cls(text, cycles, lanes, issued)

    def count(self, lane: str) -> np.ndarray:
        """Instructions of a lane by cycle."""
        return np.bincount(self.issued[self.lanes == WAITS.index(lane)], minlength=self.total)

    def held(self, chip: Chip) -> np.ndarray:
        """Matrix units in use by cycle: each holds on to a pass for its time, in order."""
        total = self.total
        found = _MATMUL.findall(self.text)
        issued = self.at(np.array([int(number) for number, _ in found], np.int64))
        named = [_MXU.search(text) for _, text in found]
        units = np.array([int(m[1]) if m else n for n, m in enumerate(named)], np.int64) % chip.mxus
        usual = chip.mxu_cycles["bf16"]
        opcodes = [text.split(b" ", 1)[0] for _, text in found]
        kinds = {opcode: matmul_type(opcode.decode("ascii", "replace")) for opcode in set(opcodes)}
        holds = np.array([chip.mxu_cycles.get(kinds[opcode], usual) for opcode in opcodes], np.int64)
        marks = np.zeros(total + 1, np.int64)
        for unit in range(chip.mxus):
            chosen = units == unit
            before = np.cumsum(holds[chosen]) - holds[chosen]
            begins = np.maximum.accumulate(issued[chosen] - before) + before
            np.add.at(marks, np.minimum(begins, total), 1)
            np.add.at(marks, np.minimum(begins + holds[chosen], total), -1)
        return np.cumsum(marks[:-1])

    def at(self, numbers: np.ndarray) -> np.ndarray:
        """Issue cycles of instructions by number."""
        return self.issued[np.minimum(numbers, len(self.issued) - 1)]


def first_instructions(bundles: bytes) -> np.ndarray:
    """The number of the first instruction of every bundle of a ``_bundles.txt``."""
    return np.fromiter(map(int, _BUNDLE.findall(bundles)), np.int64)


def _last_instruction(text: bytes) -> int | None:
    """The number of the last instruction of a dump, whose last bundles may be empty."""
    end = len(text)
    while (begin := text.rfind(b": bundle slots:", 0, end)) >= 0:
        if found := _LAST.findall(text, begin, end):
            return int(found[-1])
        end = begin
    return None


def _bundle_of(firsts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return np.maximum(np.searchsorted(firsts, numbers, side="right") - 1, 0)


def issue_cycles(firsts: np.ndarray, path: CriticalPath, cycles: int) -> np.ndarray:
    """The cycle of every bundle: that of its first instruction on the path, else the next after the last one."""
    earliest = np.full(len(firsts), cycles, np.int64)
    np.minimum.at(earliest, _bundle_of(firsts, path.numbers), path.issued)
    earliest[earliest == cycles] = 0
    place = np.arange(len(firsts))
    return np.minimum(np.maximum.accumulate(earliest - place) + place, cycles - 1)


def _overlap(held: np.ndarray, vector: np.ndarray) -> dict[str, float]:
    matrix, vectors = held > 0, vector > 0
    both = int(np.sum(matrix & vectors))
    return {
        "mxu_with_valu": round(both / max(1, int(matrix.sum())), 4),
        "valu_with_mxu": round(both / max(1, int(vectors.sum())), 4),
    }
