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
from typing import NamedTuple

import numpy as np

from experiments.studies.tpu.choices.tables import Blocks, Row
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.memory import Rules, replay
from tilewright.fitness.tpu.time_model import Calibration

SHORT = 128
"""Core cycles between two waits of one step."""
LONG = 3000
"""Steps beyond which row blocks are repeated by the time that one more of them takes."""
X = 1
"""The operand x among w, x, w's scales and the largest values of x's rows."""


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
        and quantises none ("No DMA issue node found"), and each step is taken to cost what the first does.
        """
        columns = min(self.columns, 2)
        if chip == "tpu7x" and self.depth == self.rows == 1:
            return Grid(1, 1, 1)
        if self.depth == 1:
            return Grid(min(self.rows, 2), columns, 1)
        return Grid(1 if columns > 1 else min(self.rows, 2), columns, min(self.depth, 3))

    def steps(self) -> list[Blocks]:
        return list(np.ndindex(*self))  # type: ignore[arg-type]

    def place(self, step: Blocks) -> tuple[bool, int]:
        """A step's kind: whether its column block is the first, and -1, 0, 1: first, middle, last along the depth."""
        return step[1] == 0, (step[2] == self.depth - 1) - (step[2] == 0 and self.depth > 1)


@dataclass(frozen=True)
class Simulated:
    """A small product: core cycles of its steps by kind (at work, then until the next step waits), bytes of a copy of
    each operand and of the result, cycles before the first copy, before the first wait, and at the end."""

    steps: Mapping[tuple[bool, int], tuple[float, float]]
    reads: Sequence[int]
    write: int
    ends: tuple[float, float, float]

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
        walk = grid.steps()
        if len(last) != len(walk):
            raise ValueError(f"{len(last)} waits for operands in {len(walk)} steps")
        found: dict[tuple[bool, int], list[tuple[float, float]]] = defaultdict(list)
        for step, begin, end in zip(walk, last, [*last[1:], last[-1] + 1], strict=True):
            found[grid.place(step)].append((events.work[begin + 1], events.work[begin + 2 : end + 1].sum()))
        steps = {
            kind: tuple(float(median(part)) for part in zip(*each, strict=True))
            for kind, each in found.items()
        }
        ends = (events.work[0], events.work[1 : last[0] + 1].sum(), events.work[last[-1] + 2 :].sum())
        write = int(events.sizes[events.kinds == Kind.WRITE][0])
        return cls(steps, reads if block else [*reads, 4 * rows], write, ends)  # type: ignore[arg-type]

    def whole(self, grid: Grid, placed: bool) -> Events:
        """The events of a product of so many blocks. ``placed``: x is in VMEM before, and the kernel copies none."""
        work: list[float] = []
        told: list[tuple[Kind, int, int]] = []
        pending = self.ends[0]

        def tell(kind: Kind, size: int, ready: int = -1) -> int:
            nonlocal pending
            work.append(pending)
            pending = 0.0
            told.append((kind, size, ready))
            return len(told) - 1

        def wanted(step: Blocks) -> list[Blocks]:
            row, column, depth = step
            scales = (column, depth if len(self.reads) == 3 else 0)
            return [(column, depth), (row, depth), scales, (row, 0)][: len(self.reads)]  # type: ignore[list-item]

        def fetch(operands: Sequence[int]) -> list[tuple[int, int]]:
            kinds = [Kind.LOCAL if placed and place == X else Kind.READ for place in operands]
            return [(place, tell(k, self.reads[place])) for place, k in zip(operands, kinds, strict=True)]

        walk = grid.steps()
        due = fetch(range(len(self.reads)))
        between, sent = self.ends[1], -1
        for step, after in zip(walk, [*walk[1:], None], strict=True):
            others = zip(wanted(step), wanted(after), strict=True) if after else ()
            coming = fetch([place for place, (now, then) in enumerate(others) if now != then])
            pending += between
            for place, start in due:
                tell(Kind.WAIT, self.reads[place], start)
            due = coming
            kind = grid.place(step)
            body, between = self.steps[kind] if kind in self.steps else self.steps[not kind[0], kind[1]]
            pending += body
            written = tell(Kind.WRITE, self.write) if after is None or step[:2] != after[:2] else -1
            if sent >= 0:
                tell(Kind.WAIT, self.write, sent)
            sent = written
        tell(Kind.WAIT, self.write, sent)
        kinds, sizes, ready = (np.array(column, np.int64) for column in zip(*told, strict=True))
        return Events(np.array([*work, pending + self.ends[2]]), kinds, sizes, ready)

    def seconds(self, row: Row, blocks: Blocks, calibration: Calibration, placed: bool) -> float:
        """What the row's tuning timed: the kernel, or a call with what XLA does around the kernel, by its bytes."""
        grid, rules = Grid.of(row.shape, blocks), calibration.rules
        shown = min(grid.rows, max(3, LONG // (grid.columns * grid.depth)))
        kernel = replay(self.whole(grid._replace(rows=shown), placed), rules).seconds
        if shown < grid.rows:
            less = replay(self.whole(grid._replace(rows=shown - 1), placed), rules).seconds
            kernel += (kernel - less) * (grid.rows - shown)
        return kernel if row.table.alone else calibration.call + kernel + around(row.shape, blocks, rules)


def around(shape: Blocks, blocks: Blocks, rules: Rules) -> float:
    """Seconds of XLA's operations: sides that are no multiples of their blocks are padded, the result is cut."""
    padded = [count * block for count, block in zip(Grid.of(shape, blocks), blocks, strict=True)]
    found = 0.0
    for width, *axes in ((2, 0, 2), (1, 1, 2), (2, 0, 1)):  # x, w and the result
        exact, wide = (width * math.prod(sides[axis] for axis in axes) for sides in (shape, padded))
        if exact != wide:
            found += exact / rules.read + (exact if 1 in axes and 0 in axes else wide) / rules.write
    return found
