"""Published tables of block sizes of quantised products, tuned on a chip, and the sets they were chosen from.

A table's row is a shape with the setting that its tuning found best. ``sglang-jax`` publishes the script that made its
rows, and a set is what that enumerates. ``tpu-inference`` publishes none; its rows hold divisors of the sides alone, so
a set is the divisors that are multiples of 128, and the row blocks that occur in the table.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSIONS = {6: "v6e", 7: "tpu7x"}
Blocks = tuple[int, int, int]
SCRIPTED = 18
"""Rows of sglang-jax on tpu7x that were swept there; the table says that the rest follow from others or from a rule."""


@dataclass(frozen=True)
class Table:
    """A repository's kernel: files below the repository, block of its scales, types of x and w as multiplied."""

    name: str
    repository: str
    module: str
    block: int
    types: tuple[str, str]

    def file(self, folder: Path) -> Path:
        """The kernel's file."""
        return folder / self.repository / self.module


_SGL = "python/sgl_jax/srt/kernels/quantized_matmul/quantized_matmul_kernels"
_VLLM = "tpu_inference/kernels/quantized_matmul"
TABLES = (
    Table("tpu-inference int8", "tpu-inference", f"{_VLLM}/kernel.py", 0, ("int8", "int8")),
    Table("tpu-inference fp8", "tpu-inference", f"{_VLLM}/kernel.py", 0, ("float8_e4m3fn", "float8_e4m3fn")),
    Table(
        "sglang-jax w8a16", "sglang-jax", f"{_SGL}/blockwise_kernel.py", 128, ("bfloat16", "float8_e4m3fn")
    ),
)


@dataclass(frozen=True)
class Row:
    """One shape (rows, columns, depth) of a table on a chip, with the setting published for it."""

    table: Table
    chip: str
    shape: Blocks
    winner: Blocks
    swept: bool = True
    """Whether the table says that it was tuned on this chip."""


def rows(table: Table, folder: Path) -> list[Row]:
    """All rows of a table, in its order."""
    text = table.file(folder).with_name("tuned_block_sizes.py").read_text()
    (raw,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TUNED_BLOCK_SIZES_RAW"
    )
    found = []
    for (version, *shape, x_type, w_type), blocks in raw.items():
        if (x_type, w_type) == table.types:
            number = sum(row.chip == VERSIONS[version] for row in found)
            copied = table.repository == "sglang-jax" and version == 7 and number >= SCRIPTED
            found.append(Row(table, VERSIONS[version], tuple(shape), tuple(blocks[:3]), not copied))
    return found


def drawn(rows: list[Row], per_row_count: int, most: int, seed: int) -> list[Row]:
    """By lot so many of each row count up to ``most`` rows, in the order of the table."""
    lot = random.Random(seed)
    chosen = []
    for count in sorted({row.shape[0] for row in rows if row.shape[0] <= most}):
        of_count = [row for row in rows if row.shape[0] == count]
        chosen += lot.sample(of_count, min(per_row_count, len(of_count)))
    return chosen


def candidates(row: Row, size: int, seed: int) -> list[Blocks]:
    """The row's set, the winner first, thinned by lot to ``size`` settings."""
    others = [blocks for blocks in _all(row) if blocks != row.winner]
    lot = random.Random(f"{seed} {row.table.name} {row.chip} {row.shape}")
    return [row.winner, *lot.sample(others, min(size - 1, len(others)))]


def _all(row: Row) -> Iterator[Blocks]:
    n_batch, n_out, n_in = row.shape
    if row.table.repository == "sglang-jax":
        powers = [2**power for power in range(3, 13)]
        for batch in sorted({*(p for p in powers if p <= n_batch), max(n_batch, 8)}):
            for out in [p for p in powers if 256 <= p <= n_out]:
                for depth in [p for p in powers if (p <= n_in and p >= 256) or p == row.table.block]:
                    yield batch, out, depth
        return
    least, most = (256, 4096) if row.chip == "v6e" else (128, 1024)
    batches = {min(n_batch, 2**power) for power in range(4, 13) if least <= 2**power <= most}
    for batch in sorted(batches):
        for out in _divisors(n_out):
            for depth in _divisors(n_in):
                yield batch, out, depth


def _divisors(side: int) -> list[int]:
    return [size for size in range(128, side + 1, 128) if side % size == 0]
