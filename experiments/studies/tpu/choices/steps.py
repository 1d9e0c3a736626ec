"""A whole product from small ones: what each kind of step costs, repeated over the whole grid.

A grid of thousands of steps takes the simulator minutes, a block of 1,024 rows takes the compiler eight seconds, and a
set has hundreds of settings. What a step of these kernels does depends on where it stands: first, middle or last along
the depth, first or later column block. So small products are simulated and their steps told apart by the waits for
their operands. The whole is laid out step by step, with the copies that each block's change brings, and replayed as
any kernel's events are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from experiments.studies.tpu.choices.tables import Blocks
from experiments.studies.tpu.truth.grouped import pipeline
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.memory import Rules, replay

SHORT = 128
"""Core cycles between two waits of one step."""


class Grid(NamedTuple):
    """Counts of blocks along rows, columns and depth."""

    rows: int
    columns: int
    depth: int

    @classmethod
    def of(cls, shape: Blocks, blocks: Blocks) -> Grid:
        return cls(*(math.ceil(side / block) for side, block in zip(shape, blocks, strict=True)))

    def small(self) -> Grid:
        """What is simulated in its place: every kind of step of it occurs, and its program is the same."""
        if self.depth > 1:
            return Grid(1, 2, 3)
        return Grid(1, 2, 1) if self.columns > 1 else Grid(min(self.rows, 2), 1, 1)

    def steps(self) -> list[Blocks]:
        return list(np.ndindex(*self))

    def place(self, step: Blocks) -> tuple[bool, int]:
        """A step's kind: whether its column block is the first, and -1, 0, 1: first, middle, last along the depth."""
        return step[1] == 0, (step[2] == self.depth - 1) - (step[2] == 0 and self.depth > 1)


@dataclass(frozen=True)
class Simulated:
    """A product: core cycles of its steps by kind (at work, then until the next step waits), bytes of a copy of the
    result and of each operand (none of a small product), cycles before the first step and after the last."""

    steps: Mapping[tuple[bool, int], Sequence[float]]
    write: int
    ends: tuple[float, float]
    reads: Sequence[int] = ()

    @classmethod
    def of(cls, events: Events, grid: Grid) -> Simulated:
        """Raises ValueError where the events are not those of such a product."""
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
        return cls(steps, int(events.sizes[write]), ends)

    def whole(self, grid: Grid) -> Events:
        """The events of a product of so many blocks, whose operands are w, x, its scales and x's largest values."""
        walk = grid.steps()
        blocks: list[list[Blocks]] = [
            [step[1:] for step in walk],
            [step[::2] for step in walk],
            [step[1:2] for step in walk],
            [step[:1] for step in walk],
        ]
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
