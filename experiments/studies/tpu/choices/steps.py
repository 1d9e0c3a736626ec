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
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.memory import Rules, replay

SHORT = 128
"""Core cycles between two waits of one step."""
QUANTISED = 200.0
"""Core cycles of quantising x on v6e, where the simulator runs steps with and without: 193 to 258 for 16 to 128 rows,
whatever the depth, since most of it overlaps with the product."""


class Grid(NamedTuple):
    """Counts of blocks along rows, columns and depth."""

    rows: int
    columns: int
    depth: int

    @classmethod
    def of(cls, shape: Blocks, blocks: Blocks) -> Grid:
        return cls(*(math.ceil(side / block) for side, block in zip(shape, blocks, strict=True)))

    def small(self, chip: str) -> Grid:
        """What is simulated: every kind of step occurs, and what is double-buffered in the whole is here too.

        On ``tpu7x`` one block, if one block of x is the whole of it: the simulator aborts on a step that waits for no x
        and quantises none ("No DMA issue node found"), which then costs what the first does, less ``QUANTISED``.
        """
        columns = min(self.columns, 2)
        if chip == "tpu7x" and self.depth == self.rows == 1:
            return Grid(1, 1, 1)
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
    def of(cls, events: Events, grid: Grid, row: Row, blocks: Blocks) -> Simulated:
        """Raises ValueError where the events are not those of such a product."""
        rows, columns, depth = (1 if row.shape[0] == 1 else blocks[0], *blocks[1:])
        block = row.table.block
        reads = [columns * depth, 2 * rows * depth, 4 * columns * (depth // block if block else 1)]
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
        copied = int(events.sizes[write])
        return cls(steps, reads if block else [*reads, 4 * rows], copied, ends)

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
        cycles = []
        for first, place in map(grid.place, walk):
            known = (first, place) in self.steps
            cycles.append(sum(self.steps[first or not known, place]) - (0.0 if known else QUANTISED))
        outputs = [step[:2] for step in walk]
        events = pipeline(blocks, self.reads, outputs, self.write, [2] * 4, cycles, in_turn=True)
        events.work[[0, -1]] += self.ends
        return events

    def seconds(self, grid: Grid, rules: Rules) -> float:
        """Of the kernel of a product of so many blocks."""
        return replay(self.whole(grid), rules).seconds
