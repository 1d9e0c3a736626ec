"""Published tables of block sizes of quantised products, tuned on a chip, and the sets they were chosen from.

A row is a shape with the setting that tuning found best. ``tpu-inference`` publishes no script; its rows hold divisors
of the sides alone: a set is the divisors that are multiples of 128, with the row blocks of the table.

Its int8 rows were tuned again in September 2025; those of the table before (``4fcf78eb``, August, there below
``tpu_commons``) are a table of their own, without the rows whose blocks are larger than the product. Commit
``c4844ea0`` put rows of another kernel in the place of 39 FP8 rows of the first, so these are read as they were before.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mod
from pathlib import Path

VERSIONS = {6: "v6e", 7: "tpu7x"}

Blocks = tuple[int, ...]
"""Rows of x, columns, depth."""

_FOLDER = "tpu_inference/kernels/quantized_matmul"
MODULE = f"tpu-inference/{_FOLDER}/kernel.py"
"""The kernel's file below FOLDER."""


@dataclass(frozen=True)
class Table:
    """The revision that its file is of, types of x and w as multiplied and as the table names them, and whether the
    kernel asked for four times its double-buffered blocks and sums, as it did until August 2025."""

    name: str
    revision: str
    types: tuple[str, str]
    told: tuple[str, object]
    generous: bool = False


_INT8, _FP8 = ("int8", "int8"), ("float8_e4m3fn", "float8_e4m3fn")
TABLES = (
    Table("tpu-inference int8", "", _INT8, _INT8),
    Table("tpu-inference int8, August", "-4fcf78eb", _INT8, ("bfloat16", True), True),
    Table("tpu-inference fp8", "-0786c01d", _FP8, _FP8),
)


@dataclass(frozen=True)
class Row:
    """One shape (rows of x, columns, depth) of a table on a chip, with the setting published for it."""

    table: Table
    chip: str
    shape: Blocks
    winner: Blocks


def rows(table: Table, folder: Path, chip: str) -> list[Row]:
    """The rows of a table that were tuned on a chip, in its order."""
    text = (folder / f"tpu-inference{table.revision}/{_FOLDER}/tuned_block_sizes.py").read_text()
    raw = next(
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) in ("TUNED_BLOCK_SIZES_RAW", "TUNED_BLOCK_SIZES")
    )
    found = [
        Row(table, chip, tuple(shape), tuple(blocks))
        for (version, *shape, x_type, w_type), blocks in raw.items()
        if (x_type, w_type) == table.told and VERSIONS[version] == chip and len(blocks) == 3
    ]
    return [
        row
        for row in found
        if not any(map(mod, row.shape[1:], row.winner[1:]))
        and not (table.generous and row.winner[0] > row.shape[0])
    ]


def drawn(rows: Sequence[Row], each: int, seed: int) -> list[Row]:
    """By lot ``each`` of every row count."""
    lot, found = random.Random(seed), []
    for count in sorted({row.shape[0] for row in rows}):
        of = [row for row in rows if row.shape[0] == count]
        found += lot.sample(of, min(each, len(of)))
    return found


def candidates(row: Row) -> list[Blocks]:
    """The row's set, the winner first."""
    return list(dict.fromkeys([row.winner, *_all(row)]))


def _all(row: Row) -> Iterator[Blocks]:
    n_batch, *sides = row.shape
    least, most = (256, 4096) if row.chip == "v6e" else (128, 1024)
    batches = sorted({min(n_batch, 2**power) for power in range(3, 13) if least <= 2**power <= most})
    return itertools.product(
        batches, *([size for size in range(128, side + 1, 128) if side % size == 0] for side in sides)
    )
