"""A whole product from small ones: what each kind of step costs, repeated over the whole grid.

A grid of thousands of steps takes the simulator minutes, a block of 1,024 rows takes the compiler eight seconds, and a
set has hundreds of settings. What a step of these kernels does depends on where it stands: first, middle or last along
the depth, first or later column block. So small products are simulated and their steps told apart by the waits for
their operands. A step's cycles are linear in each side of its blocks, so that a setting's follow from those of a few
``anchors``, which all settings and rows of a table share. The whole is laid out step by step, with the copies that
each block's change brings, and replayed as any kernel's events are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from experiments.studies.tpu.choices.tables import Blocks, Row
from experiments.studies.tpu.truth.grouped import pipeline
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.memory import Rules, replay

SHORT = 128
"""Core cycles between two waits of one step."""
SQUARE = 256
"""Side of a matrix unit."""
TALL = 1024
"""Rows of a block of x up to which blocks are compiled; a step's cycles are linear in the rows beyond."""
RESIDENT = {"v6e": 256, "tpu7x": 16}
"""Rows of x from which XLA has operands in VMEM before the kernel runs, while it works out x's largest values."""
LIMITS = {"v6e": 96 << 20, "tpu7x": 48 << 20}
"""Bytes of VMEM that these kernels ask for at most."""
LEFT = {"v6e": 4 << 20, "tpu7x": 12 << 20}
"""Bytes of VMEM that XLA leaves free."""


class Grid(NamedTuple):
    """Counts of blocks along rows, columns and depth."""

    rows: int
    columns: int
    depth: int

    @classmethod
    def of(cls, shape: Blocks, blocks: Blocks) -> Grid:
        return cls(*(math.ceil(side / block) for side, block in zip(shape, blocks, strict=False)))

    def small(self, block: int) -> Grid:
        """What is simulated in its place: every kind of step of it occurs, and its program is the same.

        With scales in blocks a step is the same for every column block.
        """
        if self.depth > 1:
            return Grid(1, 2, 3)
        return Grid(1, 2, 1) if self.columns > 1 or block else Grid(min(self.rows, 2), 1, 1)

    def steps(self) -> list[Blocks]:
        return list(np.ndindex(*self))

    def place(self, step: Blocks) -> tuple[bool, int]:
        """A step's kind: whether its column block is the first, and -1, 0, 1: first, middle, last along the depth."""
        return step[1] == 0, (step[2] == self.depth - 1) - (step[2] == 0 and self.depth > 1)


@dataclass(frozen=True)
class Simulated:
    """A small product: core cycles of its steps by kind (at work, then until the next step waits), bytes of a copy of
    each operand and of the result, cycles before the first step and after the last."""

    steps: Mapping[tuple[bool, int], Sequence[float]]
    reads: Sequence[int]
    write: int
    ends: tuple[float, float]

    @classmethod
    def of(cls, events: Events, grid: Grid) -> Simulated:
        """Raises ValueError where the events are not those of such a product; bytes of reads are not told."""
        last: list[int] = []
        for place in np.flatnonzero(events.kinds == Kind.WAIT).tolist():
            if events.ready[place] >= 0 and events.kinds[events.ready[place]] == Kind.READ:
                if last and place == last[-1] + 1 and events.work[place] < SHORT:
                    last.pop()  # a step waits for its operands without a break, then works
                last.append(place)
        walk, (write, *_) = grid.steps(), np.flatnonzero(events.kinds == Kind.WRITE).tolist()
        whole = 0.0
        if len(walk) == 1:  # it may work between its waits
            whole, last = float(events.work[last[0] + 1 : write + 1].sum()), last[-1:]
        if len(last) != len(walk):
            raise ValueError(f"{len(last)} waits for operands in {len(walk)} steps")
        found: dict[tuple[bool, int], list[tuple[float, float]]] = defaultdict(list)
        for step, begin, end in zip(walk, last, [*last[1:], last[-1] + 1], strict=True):
            found[grid.place(step)].append((events.work[begin + 1], events.work[begin + 2 : end + 1].sum()))
        steps = {
            kind: [float(median(part)) for part in zip(*each, strict=True)] for kind, each in found.items()
        }
        ends = (events.work[: last[0] + 1].sum(), events.work[last[-1] + 2 :].sum())
        if whole:
            steps = {kind: [whole, between] for kind, (_, between) in steps.items()}
        return cls(steps, (), int(events.sizes[write]), ends)

    @classmethod
    def between(cls, anchors: Mapping[Blocks, Simulated], row: Row, blocks: Blocks) -> Simulated:
        """Of a setting from those of its ``anchors``: a step's cycles are linear in each side, counted in squares."""
        terms = np.array([_terms(anchor, len(anchors)) for anchor in anchors])
        wanted = np.array(_terms(blocks, len(anchors)))

        def at(values: Sequence[float]) -> float:
            return float(wanted @ np.linalg.solve(terms, np.array(values)))

        of = list(anchors.values())
        steps = {kind: [at([sum(each.steps[kind]) for each in of])] for kind in of[0].steps}
        return cls(steps, _reads(row, blocks), 2 * blocks[0] * blocks[1], of[0].ends)

    def whole(self, grid: Grid) -> Events:
        """The events of a product of so many blocks."""
        walk = grid.steps()
        scales = [(column, depth if len(self.reads) == 3 else 0) for _, column, depth in walk]
        blocks: list[Any] = [
            [s[1:] for s in walk],
            [s[::2] for s in walk],
            scales,
            [s[0] for s in walk],
        ][: len(self.reads)]
        cycles = [sum(self.steps[grid.place(step)]) for step in walk]
        outputs = [step[:2] for step in walk]
        events = pipeline(blocks, self.reads, outputs, self.write, [2] * 4, cycles, in_turn=True)
        events.work[[0, -1]] += self.ends
        return events

    def seconds(self, grid: Grid, rules: Rules) -> float:
        """Of the kernel of a product of so many blocks: beyond a few of an axis each takes as long as the last two
        differ."""
        for axis, few in (("rows", 2), ("columns", max(4, 24 // grid.depth))):
            if (size := getattr(grid, axis)) > few:
                last, before = (self.seconds(grid._replace(**{axis: n}), rules) for n in (few, few - 1))
                return last + (size - few) * (last - before)
        return replay(self.whole(grid), rules).seconds


def anchors(blocks: Blocks) -> list[Blocks]:
    """The settings that are compiled for one: two sizes of each side; of x its own rows up to ``TALL``."""
    rows, _, _, *more = blocks
    square = SQUARE * (more[0] if more else 1)
    tall = (rows,) if rows <= TALL else (TALL // 2, TALL)
    return [
        (each, wide * square, 2 * deep * SQUARE, *more) for each in tall for wide in (2, 4) for deep in (2, 4)
    ]


def _terms(blocks: Blocks, number: int) -> list[float]:
    """Few rows wait for the squares that are loaded, which half of one does half of; many for those multiplied by."""
    rows, *sides = blocks[:3]
    part = SQUARE if rows >= SQUARE else SQUARE // 2
    wide, deep = (math.ceil(side / part) for side in sides)
    flat = [1.0, wide, deep, wide * deep]
    return flat if number == len(flat) else [*flat, *(rows * each for each in flat)]


def _reads(row: Row, blocks: Blocks) -> list[int]:
    """Bytes of a copy of each operand: w, x, the scales, and the largest values of x where the kernel is told them."""
    rows, columns, depth = (1 if row.shape[0] == 1 else blocks[0], *blocks[1:3])
    block, there = row.table.block, resident(row, blocks)
    w, x = (0 if there == name else size for name, size in (("w", columns * depth), ("x", 2 * rows * depth)))
    scales = 4 * columns * (depth // block if block else 1)
    return [w, x, scales] if block else [w, x, scales, 4 * rows]


def resident(row: Row, blocks: Blocks) -> str:
    """What is in VMEM before the kernel runs: x if it fits beside what the kernel asks for, else w if that does.

    Of 56 products XLA's compiled modules say the same of 42. Of the others 9 are small ones of ``tpu7x``, where XLA
    moves w beside x; the compiler of the tables did not, by what was chosen on the chip.
    """
    if row.table.block or row.shape[0] < RESIDENT[row.chip]:
        return ""
    rows, columns, depth = blocks[:3]
    asked = _held(row, blocks, (2, 3))
    if row.table.generous:
        asked = 16 * rows * depth + 8 * columns * depth + 32 * rows * columns
    asked = min(LIMITS[row.chip], asked)
    left = CHIPS[row.chip].vmem_bytes - LEFT[row.chip] - asked
    rows, columns, depth = row.shape
    return "x" if 2 * rows * depth <= left else "w" if columns * depth <= left else ""


def fits(row: Row, blocks: Blocks) -> bool:
    """Whether a setting's blocks, two of each that changes, fit into what the kernel may ask for."""
    return _held(row, blocks, (1, 2)) <= LIMITS[row.chip]


def _held(row: Row, blocks: Blocks, copies: tuple[int, int]) -> int:
    """Bytes of all blocks: so many copies of one that stays and of one that changes; and of what the kernel keeps."""
    grid, (rows, columns, depth) = Grid.of(row.shape, blocks), blocks[:3]
    x = copies[grid.rows * grid.depth > 1] * 2 * rows * depth
    w = copies[grid.columns * grid.depth > 1] * columns * depth
    out = copies[grid.rows * grid.columns > 1] * 2 * rows * columns
    kept = 4 * rows * columns if grid.depth > 1 else rows * depth if grid.columns > 1 else 0
    return x + w + out + (copies[1] - 1) * kept
