"""Points of seed kernels that were the fastest of serving shapes on an H200, for campaigns to begin with.

Measured; by number of rows in ``experiments/records/h200_sizes/h200_sizes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping


def _few_rows(block_m: int, block_n: int, unroll: int, stages: int, teams: int) -> Mapping[str, object]:
    """The few rows of A are the instruction's second operand where a tile of them is narrower than 64."""
    tile = {"block_m": block_m, "block_n": block_n, "swap": block_m < 64}
    return {**tile, "unroll": unroll, "stages": stages, "teams": teams, "early": True}


FEW_ROWS: tuple[Mapping[str, object], ...] = (
    _few_rows(8, 64, 4, 6, 2),
    _few_rows(8, 64, 4, 4, 1),
    _few_rows(8, 128, 2, 6, 2),
    _few_rows(8, 128, 2, 4, 1),
    _few_rows(16, 64, 2, 10, 2),
    _few_rows(16, 64, 4, 4, 1),
    _few_rows(16, 128, 2, 4, 1),
    _few_rows(32, 64, 4, 4, 1),
    _few_rows(64, 16, 4, 4, 2),
    _few_rows(64, 32, 4, 4, 1),
    _few_rows(64, 64, 2, 6, 1),
    _few_rows(64, 64, 2, 6, 2),
    _few_rows(64, 128, 2, 4, 1),
    _few_rows(64, 128, 1, 6, 2),
)
