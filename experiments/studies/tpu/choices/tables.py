"""Published tables of block sizes of quantised products, tuned on a chip, and the sets they were chosen from.

A row is a shape with the setting that tuning found best. ``sglang-jax`` publishes the script that made its rows: a set
is what that enumerates, but for blocks that XLA pads an operand for. ``tpu-inference`` publishes none; its rows hold
divisors of the sides alone: a set is the divisors that are multiples of 128, with the row blocks of the table.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mod
from pathlib import Path

VERSIONS = {6: "v6e", 7: "tpu7x"}
SWEPT = 18
"""First rows of sglang-jax on tpu7x, which were swept there; the table says that the rest follow from others."""

Blocks = tuple[int, int, int]


@dataclass(frozen=True)
class Table:
    """A kernel's file below FOLDER, the block of its scales (0: one a column), types of x and w as multiplied."""

    name: str
    module: str
    block: int
    types: tuple[str, str]


_SGL = "sglang-jax/python/sgl_jax/srt/kernels/quantized_matmul/quantized_matmul_kernels/blockwise_kernel.py"
_VLLM = "tpu-inference/tpu_inference/kernels/quantized_matmul/kernel.py"
TABLES = (
    Table("tpu-inference int8", _VLLM, 0, ("int8", "int8")),
    Table("tpu-inference fp8", _VLLM, 0, ("float8_e4m3fn", "float8_e4m3fn")),
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
    text = (folder / table.module).with_name("tuned_block_sizes.py").read_text()
    (raw,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TUNED_BLOCK_SIZES_RAW"
    )
    found = [
        Row(table, chip, tuple(shape), tuple(blocks[:3]))
        for (version, *shape, x_type, w_type), blocks in raw.items()
        if (x_type, w_type) == table.types and VERSIONS[version] == chip
    ]
    found = found[:SWEPT] if table.block and chip == "tpu7x" else found
    return [row for row in found if not any(map(mod, row.shape[1:], row.winner[1:]))]


def drawn(rows: Sequence[Row], each: int, most: int, seed: int) -> list[Row]:
    """By lot ``each`` of every row count up to ``most``."""
    lot, found = random.Random(seed), []
    for count in sorted({row.shape[0] for row in rows if row.shape[0] <= most}):
        of = [row for row in rows if row.shape[0] == count]
        found += lot.sample(of, min(each, len(of)))
    return found


def candidates(row: Row, size: int, seed: int) -> list[Blocks]:
    """The row's set, the winner first, thinned to ``size`` settings by a lot that is the setting's, whatever the row:
    rows share settings, and what was compiled."""
    others = [blocks for blocks in _all(row) if blocks != row.winner]
    others.sort(key=lambda blocks: hashlib.sha256(f"{seed} {blocks}".encode()).hexdigest())
    return [row.winner, *others[: size - 1]]


def _all(row: Row) -> Iterator[Blocks]:
    n_batch, n_out, n_in = row.shape
    powers = [2**power for power in range(3, 13)]
    if row.table.block:
        batches = sorted({*(p for p in powers if p <= n_batch), max(n_batch, 8)})
        outs = [p for p in powers if p >= 256 and n_out % p == 0]
        depths = [p for p in powers if (p >= 256 or p == row.table.block) and n_in % p == 0]
    else:
        least, most = (256, 4096) if row.chip == "v6e" else (128, 1024)
        batches = sorted({min(n_batch, p) for p in powers if least <= p <= most})
        outs, depths = (
            [size for size in range(128, side + 1, 128) if side % size == 0] for side in (n_out, n_in)
        )
    for batch in batches:
        for out in outs:
            yield from ((batch, out, depth) for depth in depths)
