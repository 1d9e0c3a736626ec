"""A whole product from a small one with the same blocks: what each kind of step costs, repeated over the whole grid.

A grid of thousands of steps takes the simulator minutes, and a set has hundreds of settings. What a step of these
kernels does depends on where it stands: first, middle or last along the depth, first or later column block. So a
product of at most two by three by three blocks is simulated, its steps are told apart by the waits for their operands,
and the whole is laid out step by step, with the copies that each block's change brings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import ne
from typing import Any

import numpy as np

from experiments.studies.tpu.choices.tables import Blocks, Row
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.memory import Rules, replay

LONG = 3000
"""Steps beyond which row blocks are repeated by the time that one more of them takes."""


@dataclass(frozen=True)
class Grid:
    """Counts of blocks along rows, columns and depth."""

    rows: int
    columns: int
    depth: int

    @classmethod
    def of(cls, shape: Blocks, blocks: Blocks) -> Grid:
        return cls(*(math.ceil(side / block) for side, block in zip(shape, blocks, strict=True)))

    def small(self) -> Grid:
        """What is simulated: every kind of step occurs, and what is double-buffered in the whole is here too."""
        if self.depth == 1:
            return Grid(min(self.rows, 2), min(self.columns, 2), 1)
        columns = min(self.columns, 2)
        return Grid(1 if columns > 1 else min(self.rows, 2), columns, min(self.depth, 3))

    def steps(self) -> list[Blocks]:
        return list(np.ndindex(self.rows, self.columns, self.depth))

    def place(self, step: Blocks) -> tuple[bool, int]:
        """A step's kind: whether its column block is the first, and -1, 0, 1: first, middle, last along the depth."""
        _, column, depth = step
        return column == 0, (depth == self.depth - 1) - (depth == 0 and self.depth > 1)

    def reads(self, step: Blocks, operands: int) -> list[Blocks]:
        """The block of each operand (w, x, scales of w and, where there are four, largest values of x)."""
        row, column, depth = step
        scales = (column, depth) if operands == 3 else (column,)
        return [(column, depth), (row, depth), scales, (row,)][:operands]  # type: ignore[list-item]


@dataclass(frozen=True)
class Step:
    """Core cycles of a step once its operands are there, and of the bookkeeping before."""

    body: float
    before: float


@dataclass(frozen=True)
class Simulated:
    """A small product: its grid, the steps by kind, bytes of the operands' copies and of the result's."""

    steps: Mapping[tuple[bool, int], Step]
    reads: tuple[int, ...]
    write: int
    ends: tuple[float, float, float]
    events: Events

    @classmethod
    def of(cls, told: Mapping[str, Any], grid: Grid, sizes: Sequence[int]) -> Simulated:
        """Of what the child wrote; ``sizes`` of the operands' blocks. Raises ValueError where the events are not those
        of such a product."""
        events = Events(*(np.array(told[name], np.int64) for name in ("work", "kinds", "sizes", "ready")))
        walk = grid.steps()
        wanted = [grid.reads(step, len(sizes)) for step in walk]
        changes = [len(sizes), *(sum(map(ne, a, b)) for a, b in pairwise(wanted))]
        reads = np.flatnonzero(events.kinds == Kind.READ)
        if len(reads) != sum(changes):
            raise ValueError(f"{len(reads)} reads, {sum(changes)} expected")
        step_of = dict(zip(reads.tolist(), np.repeat(np.arange(len(walk)), changes).tolist(), strict=True))
        last = dict.fromkeys(range(len(walk)), -1)
        for place in np.flatnonzero(events.kinds == Kind.WAIT).tolist():
            step = step_of.get(int(events.ready[place]))
            if step is not None:
                last[step] = place
        if min(last.values()) < 0:
            raise ValueError("a step without a wait")
        found: dict[tuple[bool, int], list[tuple[float, float]]] = {}
        for number, step in enumerate(walk):
            more = number + 1 < len(walk)
            own = events.work[last[number] + 1 : last[number + 1] + 1 if more else None].astype(float)
            found.setdefault(grid.place(step), []).append((own[0], own[1:].sum() if more else np.nan))
        steps = {kind: Step(*np.nanmedian(np.array(each), axis=0).tolist()) for kind, each in found.items()}
        ends = (events.work[0], events.work[1 : last[0] + 1].sum(), events.work[last[len(walk) - 1] + 2 :].sum())
        write = int(events.sizes[events.kinds == Kind.WRITE][0])
        return cls(steps, tuple(sizes), write, tuple(map(float, ends)), events)  # type: ignore[arg-type]

    def whole(self, grid: Grid) -> Events:
        """The events of a product of so many blocks."""
        operands = len(self.reads)
        work: list[float] = []
        told: list[tuple[Kind, int, int]] = []
        pending = self.ends[0]

        def tell(kind: Kind, size: int, ready: int = -1) -> int:
            nonlocal pending
            work.append(pending)
            pending = 0.0
            told.append((kind, size, ready))
            return len(told) - 1

        walk = grid.steps()
        wanted = [grid.reads(step, operands) for step in walk]
        fetched = [tell(Kind.READ, size) for size in self.reads]
        pending = self.ends[1]
        due = list(range(operands))
        sent = -1
        for number, step in enumerate(walk):
            coming = []
            if number + 1 < len(walk):
                for place, size in enumerate(self.reads):
                    if wanted[number + 1][place] != wanted[number][place]:
                        coming.append((place, tell(Kind.READ, size)))
            for place in due:
                tell(Kind.WAIT, self.reads[place], fetched[place])
            cost = self.steps[self._kind(grid.place(step))]
            pending += cost.body
            written = -1
            if number + 1 == len(walk) or step[:2] != walk[number + 1][:2]:
                written = tell(Kind.WRITE, self.write)
            if sent >= 0:
                tell(Kind.WAIT, self.write, sent)
            sent = written
            pending += cost.before if cost.before == cost.before else 0.0
            due = [place for place, _ in coming]
            for place, start in coming:
                fetched[place] = start
        tell(Kind.WAIT, self.write, sent)
        kinds, sizes, ready = (np.array(column, np.int64) for column in zip(*told, strict=True))
        return Events(np.array([*work, pending + self.ends[2]]), kinds, sizes, ready)

    def _kind(self, kind: tuple[bool, int]) -> tuple[bool, int]:
        return kind if kind in self.steps else (not kind[0], kind[1])

    def seconds(self, row: Row, blocks: Blocks, rules: Rules, call: float) -> float:
        """Of one call of the whole: the kernel, and what XLA does around it by its bytes."""
        grid = Grid.of(row.shape, blocks)
        shown = max(3, LONG // (grid.columns * grid.depth))
        if grid.rows <= shown:
            kernel = replay(self.whole(grid), rules).seconds
        else:
            less, more = (
                replay(self.whole(Grid(n, grid.columns, grid.depth)), rules).seconds
                for n in (shown - 1, shown)
            )
            kernel = more + (more - less) * (grid.rows - shown)
        return call + kernel + around(row, blocks, rules)


def around(row: Row, blocks: Blocks, rules: Rules) -> float:
    """Seconds of XLA's operations: sides that are no multiples of their blocks are padded, the result is cut, and a
    kernel that quantises per row is given each row's largest value."""
    rows, columns, depth = row.shape
    padded = [
        count * block
        for count, block in zip(vars(Grid.of(row.shape, blocks)).values(), blocks, strict=True)
    ]
    read = written = 0.0
    if not row.table.block:
        read += 2 * rows * depth
    if (padded[0], padded[2]) != (rows, depth):
        read, written = read + 2 * rows * depth, written + 2 * padded[0] * padded[2]
    if (padded[1], padded[2]) != (columns, depth):
        read, written = read + columns * depth, written + padded[1] * padded[2]
    if (padded[0], padded[1]) != (rows, columns):
        read, written = read + 2 * rows * columns, written + 2 * rows * columns
    return read / rules.read + written / rules.write


def check(simulated: Simulated, grid: Grid, rules: Rules) -> float:
    """How far the small product laid out step by step is from the same as it was simulated, relative."""
    return replay(simulated.whole(grid), rules).seconds / replay(simulated.events, rules).seconds - 1


def ranked(times: Sequence[float], place: int) -> int:
    """The rank, from 1, of one of several times."""
    return 1 + sum(time < times[place] for time in times)


def operand_bytes(row: Row, blocks: Blocks) -> list[int]:
    """Of the blocks of w, x, w's scales and, where a row is quantised as a whole, x's largest values."""
    rows, columns, depth = blocks
    rows = 1 if row.shape[0] == 1 else rows
    scales = 4 * columns * (depth // row.table.block if row.table.block else 1)
    return [columns * depth, 2 * rows * depth, scales, *([] if row.table.block else [4 * rows])]
