"""Products that the study of published block sizes lays out step by step from a small one."""

import numpy as np
import pytest

from experiments.studies.tpu.choices.steps import Grid, Simulated, anchors, fits, resident
from experiments.studies.tpu.choices.tables import TABLES, Row
from tilewright.fitness.tpu.events import Kind

BLOCKS = (16, 256, 512)
READS = [256 * 512, 2 * 16 * 512, 4 * 256, 4 * 16]
KINDS = [(first, place) for first in (False, True) for place in (-1, 0, 1)]
STEPS = {kind: (1000.0 + 10 * number, 90.0) for number, kind in enumerate(KINDS)}
PRODUCT = Simulated(STEPS, READS, 2 * 16 * 256, (140.0, 20.0))


@pytest.mark.parametrize("grid", [Grid(1, 2, 3), Grid(2, 1, 3), Grid(1, 2, 2), Grid(2, 2, 1)])
def test_steps_are_read_back_from_what_is_laid_out(grid):
    read = Simulated.of(PRODUCT.whole(grid), grid)
    assert read.write == PRODUCT.write
    assert set(read.steps) == {grid.place(step) for step in grid.steps()}
    for kind, parts in read.steps.items():
        assert sum(parts) == pytest.approx(sum(STEPS[kind]))


def test_a_block_is_copied_where_it_changes():
    grid = Grid(3, 4, 5)
    events = PRODUCT.whole(grid)
    read = int(events.sizes[events.kinds == Kind.READ].sum())
    assert read == 60 * READS[0] + 60 * READS[1] + 12 * READS[2] + 3 * READS[3]
    assert np.count_nonzero(events.kinds == Kind.WRITE) == 12


@pytest.mark.parametrize(
    "blocks", [(16, 896, 3456), (2048, 512, 14336), (4096, 128, 128), (16, 2560, 2560, 2)]
)
def test_a_setting_lies_between_its_anchors(blocks):
    row = Row(TABLES[0], "v6e", tuple(4 * side for side in blocks), blocks)

    def simulated(at):
        part = 256 if at[0] >= 256 else 128
        wide, deep = -(-at[1] // part), -(-at[2] // part)
        cycles = 300 + wide * deep * max(40.0, at[0] / 8) + 7 * deep
        return Simulated(dict.fromkeys(KINDS, (cycles, 2.0)), (), 0, (140.0, 20.0))

    found = Simulated.between({at: simulated(at) for at in anchors(blocks)}, row, blocks)
    for kind, parts in simulated(blocks).steps.items():
        assert sum(found.steps[kind]) == pytest.approx(sum(parts))
    assert found.write == 2 * blocks[0] * blocks[1]
    assert max(at[1] * at[2] for at in anchors(blocks)) <= 2**22


@pytest.mark.parametrize(
    ("rows", "block", "there"), [(128, 0, ""), (1024, 0, "x"), (16384, 0, "w"), (1024, 512, "")]
)
def test_what_is_in_vmem_before_is_not_copied_again(rows, block, there):
    table = next(table for table in TABLES if table.block == block)
    row = Row(table, "v6e", (rows, 4096, 8192), (256, 512, 8192))
    w, x, *_ = Simulated.between(dict.fromkeys(anchors(row.winner), PRODUCT), row, row.winner).reads
    assert resident(row, row.winner) == there and (w == 0, x == 0) == (there == "w", there == "x")
    assert fits(row, row.winner) and not fits(row, (4096, 4096, 8192))
