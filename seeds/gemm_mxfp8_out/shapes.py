"""Workloads of the published implementations of this operator, by their rules."""

from collections.abc import Mapping

import numpy as np

from tilewright.seeds.operator import Suite, Workload
from tilewright.seeds.shaped import gemm, suites_of

ALIGNED = 128
"""Rows of every group are a multiple of this."""

MOTIF = (
    (1, 7168, 2048),
    (128, 7168, 2048),
    (256, 7168, 2048),
    (4096, 7168, 2048),
    (128, 4096, 7168),
    (256, 4096, 7168),
)
MOTIF_GROUPED = (
    (4, 8192, 7168, 2048),
    (8, 4096, 7168, 2048),
    (4, 8192, 4096, 7168),
    (8, 4096, 4096, 7168),
    (48, 1280, 1280, 4096),
)
"""(groups, expected rows of a group, N, K)."""

DEEPGEMM_M = (1, 128, 4096)
DEEPGEMM_NK = ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
DEEPGEMM_GROUPS = ((4, 8192), (8, 4096))
MASKED_ROWS = 4096
"""What every group has room for; its count says how many rows it has."""

MASKED_GROUPS = ((32, 192), (6, 1024), (32, 20), (6, 20))
"""(groups, expected rows of a group)."""

K_GROUPED = (
    (4, 4096, 7168, 8192),
    (4, 7168, 2048, 8192),
    (8, 4096, 7168, 4096),
    (8, 7168, 2048, 4096),
    (16, 4096, 7168, 2048),
    (16, 7168, 2048, 2048),
)
"""(groups, M, N, expected depth of a group)."""

LEAST, MOST = 0.7, 1.3
"""A group has the expected size times something between these."""

DEEPGEMM_GROUPED_NK = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))


def rows_of_groups(groups: int, expected: int) -> int:
    """Rows in all when each group has ``expected`` x U(0.7, 1.3) of them, aligned: the published rule, one draw."""
    rng = np.random.default_rng([0, groups, expected])
    rows = (expected * rng.uniform(LEAST, MOST, groups)).astype(np.int64)
    return int((-(-rows // ALIGNED) * ALIGNED).sum())


def normal_suites() -> Mapping[str, Suite]:
    """``motif-normal``, ``deepgemm-normal``, ``tiny``."""
    check = (gemm(72, 384, 640, "check/"), gemm(33, 160, 256, "check/"))
    deepgemm = [(m, n, k) for m in DEEPGEMM_M for n, k in DEEPGEMM_NK]
    lists = {
        "motif-normal": [gemm(*shape) for shape in MOTIF],
        "deepgemm-normal": [gemm(*shape) for shape in deepgemm],
        "tiny": [gemm(64, 128, 128)],
    }
    return suites_of(lists, check)


def grouped_suites() -> dict[int, Mapping[str, Suite]]:
    """By count of groups: ``motif-grouped``, ``deepgemm-grouped`` where published, ``tiny``."""
    found: dict[int, dict[str, list[Workload]]] = {}
    for groups, expected, n, k in MOTIF_GROUPED:
        found.setdefault(groups, {}).setdefault("motif-grouped", []).append(_grouped(groups, expected, n, k))
    for groups, expected in DEEPGEMM_GROUPS:
        shapes = [_grouped(groups, expected, n, k) for n, k in DEEPGEMM_GROUPED_NK]
        found[groups]["deepgemm-grouped"] = shapes
    check = (gemm(384, 256, 384, "check/"),)
    return {groups: suites_of({**lists, "tiny": [gemm(256, 128, 128)]}, check) for groups, lists in found.items()}


def masked_suites() -> Mapping[str, Suite]:
    """``deepgemm-masked`` and ``tiny``; M is the room of a group."""
    check = (gemm(160, 160, 256, "check/"),)
    lists = {"deepgemm-masked": [gemm(MASKED_ROWS, n, k) for n, k in DEEPGEMM_GROUPED_NK], "tiny": [gemm(64, 128, 128)]}
    return suites_of(lists, check)


def k_grouped_suites(groups: int) -> Mapping[str, Suite]:
    """``k-grouped`` and ``tiny``; K is the room for all groups together."""
    check = (gemm(72, 160, 1024, "check/"),)
    shapes = [
        gemm(m, n, groups * int(MOST * expected) // ALIGNED * ALIGNED)
        for count, m, n, expected in K_GROUPED
        if count == groups
    ]
    lists = {"k-grouped": shapes, "tiny": [gemm(64, 128, 256)]}
    return suites_of(lists, check)


def _grouped(groups: int, expected: int, n: int, k: int) -> Workload:
    m = rows_of_groups(groups, expected)
    return Workload(f"{groups}g/{m}x{n}x{k}", {"M": m, "N": n, "K": k})
