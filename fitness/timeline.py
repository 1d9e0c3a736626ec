"""When each unit was busy: a kernel's simulated run as binned fractions, for diagnosis and for drawing.

The critical-path dump gives the issue cycle of the instructions on the critical path ("Length to end"); bundles
issue in order and at most one a cycle, which places the rest between them.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fitness.chips import HBM_EFFICIENCY, Chip
from fitness.llo import GRANULE_BYTES, ParseError, matmul_type, unit_of

BINS = 200
MAX_CYCLES = 1 << 26
"""Occupancy is held for every cycle: 24 bytes each."""

LANES = ("mxu", "valu", "load", "store", "spill", "dma")
_INSTRUCTION = re.compile(r"  %[a-z]*([0-9]{1,15})(?![0-9])[^=]*? = (?:\([^)]*\) )?([a-z][\w.]*)(.*)")
_CRITICAL = re.compile(
    r"Length to end: ([0-9]{1,15}), %[a-z]*([0-9]{1,15})(?![0-9])[^=]*? = (?:\([^)]*\) )?([a-z][\w.]*)(.*)"
)
_GRANULES = re.compile(r"size_in_granules=\*/([0-9]{1,15})(?![0-9])")
_MXU = re.compile(r"mxu([0-9])")


def read_timeline(bundles: Path, critical: Path, cycles: int, chip: Chip) -> dict[str, Any]:
    """``overlap``, ``critical_path`` and ``timeline`` of one operation.

    ``overlap``: {"mxu_with_valu": part of the matrix units' busy cycles in which a vector operation issues,
    "valu_with_mxu": the reverse}. ``critical_path``: cycles by the unit that was waited for.
    ``timeline``: {"unit": "cycles", "bins": end of each bin, "lanes": {name: busy fraction per bin}} with lanes
    ``mxu``, ``valu``, ``load``, ``store``, ``spill``, ``dma``. Raises ParseError.
    """
    path = _critical_path(critical)
    if not path or cycles <= 0:
        raise ParseError("an empty critical path")
    if cycles > MAX_CYCLES:
        raise ParseError(f"a run of {cycles} cycles is too long to draw, at most {MAX_CYCLES} are")
    issue_of = {identity: cycles - length for length, identity, _ in path}
    work = _Work(cycles, chip)
    last = -1
    bundle: list[tuple[int, str, str]] = []
    with bundles.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("0x"):
                if bundle:
                    last = work.issue(bundle, last, issue_of)
                bundle = []
            elif match := _INSTRUCTION.match(line):
                bundle.append((int(match[1]), match[2], match[3]))
    if bundle:
        work.issue(bundle, last, issue_of)
    return {
        "overlap": work.overlap(),
        "critical_path": _by_unit(path),
        "timeline": {"unit": "cycles", "bins": work.bin_ends(), "lanes": work.lanes()},
    }


def _critical_path(path: Path) -> list[tuple[int, int, str]]:
    rows = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if match := _CRITICAL.match(line):
                rows.append((int(match[1]), int(match[2]), _unit(match[3], match[4])))
    return rows


def _unit(opcode: str, operands: str) -> str:
    unit = unit_of(opcode)
    if unit in ("vload", "vstore") and "_spill]" in operands.split("/*")[0]:
        return "spill"
    return unit


def _by_unit(path: list[tuple[int, int, str]]) -> dict[str, int]:
    spent: Counter[str] = Counter()
    ends = [length for length, _, _ in path[1:]] + [0]
    for (length, _, unit), end in zip(path, ends, strict=True):
        spent[unit] += max(0, length - end)
    return dict(spent.most_common(8))


class _Work:
    """Per-cycle occupancy of the lanes while bundles are issued in order."""

    def __init__(self, cycles: int, chip: Chip) -> None:
        self._cycles = cycles
        self._chip = chip
        self._held = np.zeros(cycles + 1, np.int32)  # +1/-1 marks: matrix units in use, by prefix sum
        self._free = [0] * chip.mxus
        self._count = {lane: np.zeros(cycles, np.float32) for lane in LANES if lane != "mxu"}
        self._dma_free = 0.0

    def issue(self, bundle: list[tuple[int, str, str]], last: int, issue_of: dict[int, int]) -> int:
        """Place one bundle; returns its cycle."""
        known = [issue_of[identity] for identity, _, _ in bundle if identity in issue_of]
        now = min(self._cycles - 1, max(last + 1, min(known) if known else 0))
        for _, opcode, operands in bundle:
            unit = _unit(opcode, operands)
            if opcode.startswith("vmatmul"):
                self._multiply(opcode, operands, now)
            elif unit == "valu":
                self._count["valu"][now] += 1
            elif unit in ("vload", "vstore"):
                self._count[unit[1:]][now] += 1
            elif unit == "spill":
                self._count["spill"][now] += 1
            elif (
                unit == "dma"
                and ("hbm" in opcode or opcode == "dma.general")
                and (size := _GRANULES.search(operands))
            ):
                self._move(GRANULE_BYTES * int(size[1]), now)
        return now

    def _multiply(self, opcode: str, operands: str, now: int) -> None:
        found = _MXU.search(opcode + operands[:160])
        unit = int(found[1]) % self._chip.mxus if found else int(np.argmin(self._free))
        start = max(now, self._free[unit])
        hold = self._chip.mxu_cycles.get(matmul_type(opcode), self._chip.mxu_cycles["bf16"])
        self._free[unit] = start + hold
        self._held[min(start, self._cycles)] += 1
        self._held[min(start + hold, self._cycles)] -= 1

    def _move(self, size: int, now: int) -> None:
        """Spread a DMA over the time it needs at the usable bandwidth, after those before it."""
        rate = HBM_EFFICIENCY * self._chip.hbm / self._chip.clock
        start = max(float(now), self._dma_free)
        self._dma_free = start + size / rate
        begin, end = min(int(start), self._cycles), min(int(self._dma_free) + 1, self._cycles)
        self._count["dma"][begin:end] = 1.0

    def overlap(self) -> dict[str, float]:
        """How much of either unit's busy time the other shares."""
        mxu = np.cumsum(self._held[:-1]) > 0
        valu = self._count["valu"] > 0
        both = float(np.sum(mxu & valu))
        return {
            "mxu_with_valu": round(both / max(1, int(mxu.sum())), 4),
            "valu_with_mxu": round(both / max(1, int(valu.sum())), 4),
        }

    def bin_ends(self) -> list[int]:
        """Cycle at which each bin ends."""
        return [int(edge) for edge in self._edges()[1:]]

    def _edges(self) -> np.ndarray:
        return np.linspace(0, self._cycles, BINS + 1).astype(int)

    def lanes(self) -> dict[str, list[float]]:
        """Busy fraction of each lane per bin, 0 to 1."""
        slots = self._chip.slots
        full = {
            "valu": slots["valu"],
            "load": slots["vload"],
            "store": slots["vstore"],
            "spill": slots["vload"] + slots["vstore"],
            "dma": 1,
        }
        edges = self._edges()
        width = np.maximum(1, np.diff(edges))
        busy = {"mxu": np.cumsum(self._held[:-1]) / self._chip.mxus}
        busy |= {lane: counts / full[lane] for lane, counts in self._count.items()}
        result = {}
        for lane in LANES:
            sums = np.concatenate([[0.0], np.cumsum(busy[lane], dtype=np.float64)])
            fractions = (sums[edges[1:]] - sums[edges[:-1]]) / width
            result[lane] = [round(float(min(1.0, value)), 3) for value in fractions]
        return result
