"""A setting of a product: what is compiled for it, what the model says of it, and whether it fits.

A step's cycles are linear in each side of its blocks, so that a setting's follow from those of a few that are compiled,
which all settings and rows of a table share.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.tpu.choices.steps import Grid, Simulated
from experiments.studies.tpu.choices.tables import Blocks, Row
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu.events import Events
from tilewright.fitness.tpu.time_model import CALIBRATIONS
from tilewright.workers.toolchains import libtpu_simulator as recipe

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


def anchors(row: Row, blocks: Blocks) -> dict[Blocks, dict[str, Any]]:
    """The settings that are compiled for one: two sizes of each side; of x its own rows up to ``TALL``."""
    rows, small = blocks[0], Grid.of(row.shape, blocks).small()
    found = {}
    for tall in (rows,) if rows <= TALL else (TALL // 2, TALL):
        for wide, deep in ((2, 2), (2, 4), (4, 2), (4, 4)):
            each = (tall, wide * SQUARE, 2 * deep * SQUARE)
            told = [row.table.name.split(",")[0], row.chip, each, list(small), recipe.toolchain()["libtpu"]]
            shape = [count * block for count, block in zip(small, each, strict=True)]
            key = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20]
            found[each] = {"key": key, "types": row.table.types, "shape": shape, "blocks": each}
    return found


def seconds(row: Row, blocks: Blocks, paths: Mapping[Blocks, Path]) -> float:
    """Of the kernel. Raises ValueError where the model has no time for what was compiled."""
    grid = Grid.of(row.shape, blocks)
    found = [_simulated(path, grid.small()) for path in paths.values()]
    terms = np.array([_terms(anchor, len(paths)) for anchor in paths])
    wanted = np.array(_terms(blocks, len(paths)))
    steps = {
        kind: [float(wanted @ np.linalg.solve(terms, np.array([sum(each.steps[kind]) for each in found])))]
        for kind in found[0].steps
    }
    whole = Simulated(steps, 2 * blocks[0] * blocks[1], found[0].ends, _reads(row, blocks))
    return whole.seconds(grid, CALIBRATIONS[row.chip].rules)


@cache
def _simulated(path: Path, small: Grid) -> Simulated:
    told = json.loads(path.read_text())
    if told["failure"]:
        raise ValueError(told["failure"])
    events = Events(*(np.array(told[name], np.int64) for name in ("work", "kinds", "sizes", "ready")))
    return Simulated.of(events, small)


def _terms(blocks: Blocks, number: int) -> list[float]:
    """Few rows wait for the squares that are loaded, which half of one does half of; many for those multiplied by."""
    rows, *sides = blocks
    part = SQUARE if rows >= SQUARE else SQUARE // 2
    wide, deep = (math.ceil(side / part) for side in sides)
    flat = [1.0, wide, deep, wide * deep]
    return flat if number == len(flat) else [*flat, *(rows * each for each in flat)]


def _reads(row: Row, blocks: Blocks) -> list[int]:
    """Bytes of a copy of each operand: w, x, the scales, the largest values of x."""
    (rows, columns, depth), there = blocks, resident(row, blocks)
    w, x = (0 if there == name else size for name, size in (("w", columns * depth), ("x", 2 * rows * depth)))
    return [w, x, 4 * columns, 4 * rows]


def resident(row: Row, blocks: Blocks) -> str:
    """What is in VMEM before the kernel runs: x if it fits beside what the kernel asks for, else w if that does.

    Of 56 products XLA's compiled modules say the same of 42. Of the others 9 are small ones of ``tpu7x``, where XLA
    moves w beside x; the compiler of the tables did not, by what was chosen on the chip.
    """
    if row.shape[0] < RESIDENT[row.chip]:
        return ""
    rows, columns, depth = blocks
    asked = _held(row, blocks, (2, 3))
    if row.table.generous:
        asked = 16 * rows * depth + 8 * columns * depth + 32 * rows * columns
    left = CHIPS[row.chip].vmem_bytes - LEFT[row.chip] - min(LIMITS[row.chip], asked)
    rows, columns, depth = row.shape
    return "x" if 2 * rows * depth <= left else "w" if columns * depth <= left else ""


def fits(row: Row, blocks: Blocks) -> bool:
    """Whether a setting's blocks, two of each that changes, fit into what the kernel may ask for."""
    return _held(row, blocks, (1, 2)) <= LIMITS[row.chip]


def _held(row: Row, blocks: Blocks, copies: tuple[int, int]) -> int:
    """Bytes of all blocks: so many copies of one that stays and of one that changes; and of what the kernel keeps."""
    grid, (rows, columns, depth) = Grid.of(row.shape, blocks), blocks
    x = copies[grid.rows * grid.depth > 1] * 2 * rows * depth
    w = copies[grid.columns * grid.depth > 1] * columns * depth
    out = copies[grid.rows * grid.columns > 1] * 2 * rows * columns
    kept = 4 * rows * columns if grid.depth > 1 else rows * depth if grid.columns > 1 else 0
    return x + w + out + (copies[1] - 1) * kept
