"""Points of seed kernels that were the fastest of serving shapes on an H200, for campaigns to begin with.

Measured; by number of rows in ``experiments/records/h200_sizes/h200_sizes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping


def _rows(most: int, wgs: int, kb: int, split: int, ctas: int, quant: int = 0) -> Mapping[str, object]:
    return {
        "MOST": most,
        "WGS": wgs,
        "KB": kb,
        "SPLIT": split,
        "CTAS": ctas,
        "QUANT": quant,
        "QW": 8 if wgs == 2 else 4,
    }


FP8_ROWS: tuple[Mapping[str, object], ...] = (
    _rows(64, 1, 2, 1, 2),
    _rows(64, 1, 2, 2, 2),
    _rows(64, 1, 2, 4, 2),
    _rows(64, 2, 2, 2, 1),
    _rows(32, 1, 4, 2, 2),
    _rows(128, 1, 1, 1, 2),
    _rows(128, 1, 1, 4, 2),
    _rows(64, 2, 2, 2, 1, 1),
    _rows(64, 2, 2, 4, 1, 1),
)


def _tiles(
    wgs: int, waves: str, wn: int, stages: int, share: str = "none", ctas: int = 132
) -> Mapping[str, object]:
    return {"WGS": wgs, "WAVES": waves, "WN": wn, "STAGES": stages, "SHARE": share, "CTAS": ctas}


FP8_TILES: tuple[Mapping[str, object], ...] = (
    _tiles(1, "one", 64, 12),
    _tiles(1, "one", 64, 6, ctas=264),
    _tiles(1, "one", 96, 10),
    _tiles(1, "one", 128, 8),
    _tiles(2, "one", 64, 8),
    _tiles(2, "one", 80, 7),
    _tiles(2, "one", 96, 7),
    _tiles(2, "one", 112, 6),
    _tiles(2, "one", 128, 6),
    _tiles(2, "one", 128, 6, "b"),
    _tiles(2, "one", 160, 5),
    _tiles(2, "one", 192, 4),
    _tiles(2, "down", 96, 4),
    _tiles(2, "down", 128, 4, "a"),
    _tiles(2, "across", 128, 4, "b"),
)
