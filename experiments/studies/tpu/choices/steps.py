"""A whole product from a small one with the same blocks: what each kind of step costs, repeated over the whole grid.

A grid of thousands of steps takes the simulator minutes, and a set has hundreds of settings. What a step of these
kernels does depends on where it stands: first, middle or last along the depth, first or later column block. So a
product of at most six blocks is simulated, its steps are told apart by the waits for their operands, and the whole is
laid out step by step, with the copies that each block's change brings, and replayed as any kernel's events are.
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
WALKED = 3000
"""Steps of a grid up to which each is laid out."""
RESIDENT = 512
"""Rows of x from which XLA moves x to VMEM to work out its rows' largest values, so that the kernel finds it there."""
LIMITS = {"v6e": 96 << 20, "tpu7x": 48 << 20}
"""Bytes of VMEM that these kernels ask for at most."""


class Grid(NamedTuple):
    """Counts of blocks along rows, columns and depth."""

    rows: int
    columns: int
    depth: int

    @classmethod
    def of(cls, shape: Blocks, blocks: Blocks) -> Grid:
        return cls(*(math.ceil(side / block) for side, block in zip(shape, blocks, strict=False)))

    def small(self) -> Grid:
        """What is simulated: every kind of step occurs, and what is double-buffered in the whole is here too."""
        columns = min(self.columns, 2)
        if self.depth == 1:
            return Grid(min(self.rows, 2), columns, 1)
        return Grid(1 if columns > 1 else min(self.rows, 2), columns, min(self.depth, 3))

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
        """Of the kernel of a product of so many blocks; of very many small ones no less than this."""
        if (steps := math.prod(grid)) > WALKED:
            cycles = min(sum(parts) for parts in self.steps.values())
            return steps * max(cycles / rules.clock, self.reads[0] / rules.read + rules.latency)
        return replay(self.whole(grid), rules).seconds


def anchors(blocks: Blocks) -> list[Blocks]:
    """The settings that are compiled for one: two sizes of each side, small ones; of x rows its own up to ``TALL``."""
    rows, _, _, *more = blocks
    square = SQUARE * (more[0] if more else 1)
    tall = (rows,) if rows <= TALL else (TALL // 2, TALL)
    sides = (1, 2) if rows > SQUARE else (2, 4)
    return [
        (each, wide * square, 2 * deep * SQUARE, *more) for each in tall for wide in sides for deep in sides
    ]


def _terms(blocks: Blocks, number: int) -> list[float]:
    rows, *sides = blocks[:3]
    wide, deep = (math.ceil(side / SQUARE) for side in sides)
    flat = [1.0, wide, deep, wide * deep]
    return flat if number == len(flat) else [*flat, *(rows * each for each in flat)]


def _reads(row: Row, blocks: Blocks) -> list[int]:
    """Bytes of a copy of each operand: w, x, the scales, and the largest values of x where the kernel is told them."""
    rows, columns, depth = (1 if row.shape[0] == 1 else blocks[0], *blocks[1:3])
    block = row.table.block
    x = 0 if resident(row, blocks) else 2 * rows * depth
    scales = 4 * columns * (depth // block if block else 1)
    return [columns * depth, x, scales] if block else [columns * depth, x, scales, 4 * rows]


def resident(row: Row, blocks: Blocks) -> bool:
    """Whether x is in VMEM before the kernel runs: XLA read it there, and it fits beside what the kernel asks for."""
    if row.table.block or row.shape[0] < RESIDENT:
        return False
    rows, columns, depth = blocks[:3]
    x, w, out = 2 * rows * depth, columns * depth, 2 * rows * columns
    asked = min(LIMITS[row.chip], 3 * (x + w + out) + 2 * max(2 * out, x // 2))
    return asked + 2 * row.shape[0] * row.shape[2] <= CHIPS[row.chip].vmem_bytes
