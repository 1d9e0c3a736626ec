"""Products that the study of published block sizes lays out step by step from a small one."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.studies.tpu.choices.steps import Grid, Simulated
from experiments.studies.tpu.choices.tables import TABLES, Row
from tilewright.fitness.tpu.events import Kind

BLOCKS = (16, 256, 512)
READS = [256 * 512, 2 * 16 * 512, 4 * 256, 4 * 16]
KINDS = [(first, place) for first in (False, True) for place in (-1, 0, 1)]
STEPS = {kind: (1000.0 + 10 * number, 90.0) for number, kind in enumerate(KINDS)}
PRODUCT = Simulated(STEPS, READS, 2 * 16 * 256, (140.0, 20.0))


@pytest.mark.parametrize("grid", [Grid(1, 2, 3), Grid(2, 1, 3), Grid(1, 2, 2), Grid(2, 2, 1)])
def test_steps_are_read_back_from_what_is_laid_out(grid):
    shape = tuple(count * block for count, block in zip(grid, BLOCKS, strict=True))
    row = Row(TABLES[0], "v6e", shape, BLOCKS)
    read = Simulated.of(PRODUCT.whole(grid), grid, row, BLOCKS)
    assert read.reads == READS and read.write == PRODUCT.write
    assert set(read.steps) == {grid.place(step) for step in grid.steps()}
    for kind, parts in read.steps.items():
        assert sum(parts) == pytest.approx(sum(STEPS[kind]))


def test_a_block_is_copied_where_it_changes():
    grid = Grid(3, 4, 5)
    events = PRODUCT.whole(grid)
    read = int(events.sizes[events.kinds == Kind.READ].sum())
    assert read == 60 * READS[0] + 60 * READS[1] + 12 * READS[2] + 3 * READS[3]
    assert np.count_nonzero(events.kinds == Kind.WRITE) == 12


def test_a_row_of_x_as_one_block_is_simulated_as_one_where_the_simulator_aborts():
    assert [Grid(1, 9, 1).small(chip) for chip in ("v6e", "tpu7x")] == [Grid(1, 2, 1), Grid(1, 1, 1)]
