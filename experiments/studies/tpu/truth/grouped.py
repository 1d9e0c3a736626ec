"""Events of a whole grouped product from the core's cycles of one of its steps.

A grouped product of hundreds of groups is too long to simulate whole, and its copies come in bursts, one a group, so
that a part of it is no sample of the whole. What its pipeline does is simple enough to write down: at each step fetch
the next blocks that differ, wait for this step's, compute, and send an output block away when the next is another.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tilewright.fitness.tpu.events import Events, Kind

BYTES = 2
"""Of a bfloat16."""


def visits(sizes: Sequence[int], tile: int, *, empty: bool) -> list[tuple[int, int]]:
    """(group, row tile) in the order of the grid; with ``empty`` groups without rows are visited once."""
    found, start = [], 0
    for group, size in enumerate(sizes):
        if size:
            found += [(group, row) for row in range(start // tile, -(-(start + size) // tile))]
        elif empty:
            found.append((group, start // tile))
        start += size
    return found


def grouped_events(
    kind: str, shape: Sequence[int], sizes: Sequence[int], tiles: Sequence[int], buffers: int, cycles: float
) -> Events:
    """All steps of one product, ``cycles`` of the core each.

    ``kind``: ``fwd`` ([m,k] by [g,k,n]), ``dlhs`` ([m,n] by [g,k,n] transposed) or ``drhs`` ([m,k] transposed by [m,n]
    to [g,k,n]); ``shape`` (m, k, n), ``tiles`` of rows, of what is contracted and of the columns of the result.
    """
    _, k, n = shape
    rows, depth, columns = tiles
    walk = visits(sizes, rows, empty=kind == "drhs")
    if kind == "drhs":
        grid = [
            (group, row, i, j)
            for j in range(math.ceil(n / columns))
            for i in range(math.ceil(k / depth))
            for group, row in walk
        ]
        blocks = [[(row, i) for _, row, i, _ in grid], [(row, j) for _, row, _, j in grid]]
        outputs = [(group, i, j) for group, _, i, j in grid]
        sizes = (BYTES * rows * depth, BYTES * rows * columns)
        return pipeline(
            blocks, sizes, outputs, BYTES * depth * columns, (buffers, buffers), [cycles] * len(grid)
        )
    contracted, wide = (n, k) if kind == "dlhs" else (k, n)
    steps = [
        (group, row, i, j)
        for j in range(math.ceil(wide / columns))
        for group, row in walk
        for i in range(math.ceil(contracted / depth))
    ]
    inputs = [[(row, i) for _, row, i, _ in steps], [(group, i, j) for group, _, i, j in steps]]
    outputs = [(row, j) for _, row, _, j in steps]
    sizes = (BYTES * rows * depth, BYTES * depth * columns)
    return pipeline(inputs, sizes, outputs, BYTES * rows * columns, (buffers, 2), [cycles] * len(steps))


def pipeline(
    inputs: Sequence[Sequence[object]],
    sizes: Sequence[int],
    outputs: Sequence[object],
    output_size: int,
    buffers: Sequence[int],
    cycles: Sequence[float],
    *,
    in_turn: bool = False,
) -> Events:
    """A grid's pipeline: of each input the block of every step and a block's bytes, of the result likewise, buffers of
    each input, core cycles of every step. ``in_turn``: the first step's blocks are all fetched before the second's."""
    steps = len(outputs)
    work: list[float] = []
    entries: list[tuple[Kind, int, int]] = []
    pending, sent = 0.0, -1
    numbers = [np.cumsum([0, *(a != b for a, b in pairwise(blocks))]).tolist() for blocks in inputs]
    started: list[list[int]] = [[] for _ in inputs]
    waited = [-1] * len(inputs)

    def tell(kind: Kind, size: int, ready: int = -1) -> int:
        nonlocal pending
        work.append(pending)
        pending = 0.0
        entries.append((kind, size, ready))
        return len(entries) - 1

    for place in range(len(inputs) if in_turn else 0):
        started[place].append(tell(Kind.READ, sizes[place]))
    for step in range(steps):
        for place, number in enumerate(numbers):
            wanted = min(number[min(steps - 1, step + buffers[place] - 1)], number[step] + buffers[place] - 1)
            while len(started[place]) <= wanted:
                started[place].append(tell(Kind.READ, sizes[place]))
        for place, number in enumerate(numbers):
            if waited[place] < number[step]:
                waited[place] = number[step]
                tell(Kind.WAIT, sizes[place], started[place][number[step]])
        pending += cycles[step]
        if step == steps - 1 or outputs[step + 1] != outputs[step]:
            written = tell(Kind.WRITE, output_size)
            if sent >= 0:
                tell(Kind.WAIT, output_size, sent)
            sent = written
    tell(Kind.WAIT, output_size, sent)
    columns = (np.array(column, np.int64) for column in zip(*entries, strict=True))
    return Events(np.array([*work, pending]), *columns)
