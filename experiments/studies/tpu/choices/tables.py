"""Published tables of block sizes of quantised products, tuned on a chip, and the sets they were chosen from.

A row is a shape with the setting that tuning found best. ``sglang-jax`` publishes the script that made its rows: a set
is what that enumerates, but for blocks that XLA pads an operand for. ``tpu-inference`` publishes none; its rows hold
divisors of the sides alone: a set is the divisors that are multiples of 128, with the row blocks of the table.

Its int8 rows were tuned again in September 2025; those of the table before (``4fcf78eb``, August) are a table of their
own, without the rows whose blocks are larger than the product.

Commit ``c4844ea0`` of ``tpu-inference`` put rows of another kernel, with scales in blocks, in the place of 39 FP8 rows
of the first: they have a fourth number, how many squares of the matrix unit are multiplied at a time.
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
SWEPT = 18
"""First rows of sglang-jax on tpu7x, which were swept there; the table says that the rest follow from others."""

Blocks = tuple[int, ...]
"""Rows of x, columns, depth, and of some kernels a fourth number."""


@dataclass(frozen=True)
class Table:
    """A kernel's file below FOLDER, the block of its scales (0: one a column), types of x and w as multiplied, the
    table's file if not beside the kernel, how many numbers a setting has, and whether the kernel asked for four times
    its double-buffered blocks and sums, as it did until August 2025."""

    name: str
    module: str
    block: int
    types: tuple[str, str]
    tuned: str = ""
    numbers: int = 3
    generous: bool = False


_SGL = "sglang-jax/python/sgl_jax/srt/kernels/quantized_matmul/quantized_matmul_kernels/blockwise_kernel.py"
_VLLM = "tpu_inference/kernels/quantized_matmul"
_FP8, _BLOCKS = ("float8_e4m3fn", "float8_e4m3fn"), f"tpu-inference/{_VLLM}/blockwise_kernel.py"
_BEFORE = f"tpu-inference-0786c01d/{_VLLM}/tuned_block_sizes.py"
"""As it was before ``c4844ea0``."""
_AUGUST = f"tpu-inference-4fcf78eb/{_VLLM}/tuned_block_sizes.py"

TABLES = (
    Table("tpu-inference int8", f"tpu-inference/{_VLLM}/kernel.py", 0, ("int8", "int8")),
    Table(
        "tpu-inference int8, August",
        f"tpu-inference/{_VLLM}/kernel.py",
        0,
        ("int8", "int8"),
        _AUGUST,
        3,
        True,
    ),
    Table("tpu-inference fp8", f"tpu-inference/{_VLLM}/kernel.py", 0, _FP8, _BEFORE),
    Table("tpu-inference fp8 in blocks", _BLOCKS, 512, _FP8, "", 4),
    Table("sglang-jax w8a16", _SGL, 128, ("bfloat16", "float8_e4m3fn")),
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
    beside = (folder / table.module).with_name("tuned_block_sizes.py")
    text = (folder / table.tuned if table.tuned else beside).read_text()
    raw = next(
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) in ("TUNED_BLOCK_SIZES_RAW", "TUNED_BLOCK_SIZES")
    )
    types = ("bfloat16", True) if table.generous else table.types
    found = [
        Row(table, chip, tuple(shape), tuple(blocks))
        for (version, *shape, x_type, w_type), blocks in raw.items()
        if (x_type, w_type) == types and VERSIONS[version] == chip and len(blocks) == table.numbers
    ]
    if table.generous:
        found = [row for row in found if row.winner[0] <= row.shape[0]]
    found = found[:SWEPT] if table.module == _SGL and chip == "tpu7x" else found
    return [row for row in found if not any(map(mod, row.shape[1:], row.winner[1:]))]


def drawn(rows: Sequence[Row], each: int, most: int, seed: int) -> list[Row]:
    """By lot ``each`` of every row count up to ``most``."""
    lot, found = random.Random(seed), []
    for count in sorted({row.shape[0] for row in rows if row.shape[0] <= most}):
        of = [row for row in rows if row.shape[0] == count]
        found += lot.sample(of, min(each, len(of)))
    return found


def candidates(row: Row) -> list[Blocks]:
    """The row's set, the winner first."""
    return list(dict.fromkeys([row.winner, *_all(row)]))


def _all(row: Row) -> Iterator[Blocks]:
    n_batch, n_out, n_in = row.shape
    powers = [2**power for power in range(3, 13)]
    squares: list[int] = [1]
    if row.table.module == _SGL:
        batches = sorted({*(p for p in powers if p <= n_batch), max(n_batch, 8)})
        outs = [p for p in powers if p >= 256 and n_out % p == 0]
        depths = [p for p in powers if (p >= 256 or p == row.table.block) and n_in % p == 0]
    else:
        least, most = (256, 4096) if row.chip == "v6e" else (128, 1024)
        batches = sorted({min(n_batch, p) for p in powers if least <= p <= most})
        outs, depths = (
            [size for size in range(128, side + 1, 128) if side % size == 0] for side in (n_out, n_in)
        )
        if row.table.block:
            depths, squares = [size for size in depths if size % row.table.block == 0], [1, 2, 4]
    for *sizes, square in itertools.product(batches, outs, depths, squares):
        if row.table.numbers == 3:
            yield (*sizes,)
        elif sizes[1] % (256 * square) == 0:  # the kernel leaves out what is over
            yield (*sizes, square)
