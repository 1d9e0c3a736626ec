"""Which points of which seed kernels ``h200.mx`` tries on which shapes; and compiling them ahead, without the GPU."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testkit.compile_ahead import SMEM_BYTES, Point, Task, described
from tilewright.evolve.space.constraints import SpaceError
from tilewright.evolve.space.space import Space
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Operator, SeedKernel, Workload

MULTIPROCESSORS = 132


def grid(**genes: Sequence[Any]) -> list[Point]:
    """Every combination."""
    return [dict(zip(genes, values, strict=True)) for values in itertools.product(*genes.values())]


def crossed(some: Sequence[Point], **genes: Sequence[Any]) -> list[Point]:
    """Every combination of one of ``some`` and the genes."""
    return [{**one, **more} for one in some for more in grid(**genes)]


def tiles(*shapes: tuple[int, int]) -> list[Point]:
    """Tiles of rows x columns."""
    return [{"block_m": m, "block_k": k} for m, k in shapes]


ALONG = crossed(
    tiles((8, 512), (16, 256), (32, 256), (64, 128), (64, 256), (128, 128), (4, 1024), (32, 128)),
    num_warps=(4, 8),
)
ACROSS = crossed(
    tiles((128, 64), (128, 128), (64, 128), (64, 64), (128, 32)), num_warps=(4, 8), walk=("rows", "columns")
)
PIECES = [
    {"piece_m": pm, "piece_k": pk, "lanes_m": lm, "warps_m": 4, "num_warps": warps}
    for pm, pk, lm, warps in ((16, 8, 2, 4), (8, 8, 4, 4), (16, 4, 2, 8), (8, 4, 4, 8))
]
RINGS = [{"stages": s, "programs": p} for s, p in ((3, 264), (3, 132), (4, 132))]
SENT = [
    {"leave": "tma", "stages": s, "programs": p, "slots": n}
    for s, p, n in ((2, 264, 1), (1, 264, 2), (4, 132, 2), (3, 132, 2))
]
FUSED: list[Point] = [
    *grid(block_m=(64, 128), block_n=(32, 64, 128), num_stages=(3, 4, 5)),
    *grid(block_m=(128,), block_n=(128,), num_stages=(3, 4), num_warps=(8,)),
]
RAGGED = grid(block_m=(16, 64, 128), block_n=(64, 128), num_stages=(3, 4), num_warps=(4, 8))

POINTS: Mapping[str, Sequence[Point]] = {
    "cast8": ALONG,
    "cast8 turned": ACROSS,
    "cast8_tma": crossed(
        [{**p, **r} for p in PIECES for r in (*RINGS, *SENT)], group_m=(1, 2, 4, 16, 1048576)
    ),
    "two_pass": crossed(
        [{"sub_m": m, "sub_k": k} for m, k in ((32, 256), (64, 256), (64, 128), (16, 256), (32, 128))],
        num_warps=(8, 16, 32),
        keep=(False, True),
    ),
    "held": grid(num_warps=(4, 8, 16, 32)),
    "whole": grid(num_warps=(8, 16, 32)),
    "persistent": [
        *crossed(
            [
                {"block_k": k, "num_stages": s, "programs": p}
                for k, s, p in (
                    (256, 4, 132),
                    (256, 6, 132),
                    (256, 8, 132),
                    (128, 8, 132),
                    (256, 3, 264),
                    (128, 6, 264),
                )
            ],
            block_m=(16, 32, 64),
            block_n=(64,),
            swap=(True, False),
        ),
        *grid(
            block_m=(16, 32, 64),
            block_n=(32,),
            block_k=(256,),
            num_stages=(3, 4, 6, 8),
            programs=(264, 1048576),
        ),
        *crossed(
            [
                {"block_k": 128, "num_stages": 3},
                {"block_k": 128, "num_stages": 4},
                {"block_k": 256, "num_stages": 3},
            ],
            block_m=(128,),
            block_n=(128,),
            num_warps=(8,),
            scaling=("step", "ratio"),
        ),
    ],
    "persistent_ws": [
        *grid(block_n=(256,), stages=(4,), slots=(1, 2), group_m=(8, 16, 32)),
        *grid(block_n=(128,), stages=(6,), slots=(2,), group_m=(8, 16, 32)),
    ],
    "splitk": grid(block_m=(16, 64), block_n=(32, 64, 128), split=(2, 4, 8), num_stages=(3, 4)),
    "fused": FUSED,
    "masked": RAGGED,
    "k_grouped": RAGGED,
    "fused_ws": [
        *grid(block_n=(128, 256), stages=(4,), slots=(1,), group_m=(8,), split=(2, 4, 8)),
        *grid(block_n=(256,), stages=(4,), slots=(1,), group_m=(8, 16, 32), turned=(True, False)),
        *grid(block_n=(128,), stages=(5,), slots=(2,), group_m=(8, 16, 32), turned=(True,)),
    ],
    "unfused_ws": [
        *grid(block_n=(128, 256), stages=(4,), slots=(1,), group_m=(8,), split=(2, 4, 8)),
        *grid(block_n=(256,), stages=(4,), slots=(1, 2), group_m=(8, 16, 32)),
        *grid(block_n=(128,), stages=(5,), slots=(2,), group_m=(8, 16, 32)),
    ],
}
"""What is tried besides a seed's own point."""


@dataclass(frozen=True)
class Entry:
    """A kernel of an operator under a label."""

    label: str
    operator: str
    kernel: str
    tuned: bool = True
    """False: at the seed's own point only."""

    @property
    def loaded(self) -> tuple[Operator, SeedKernel]:
        """The operator and its kernel."""
        operator = load_operator(self.operator)
        return operator, operator.kernels[self.kernel]

    def points(self, workload: Workload) -> list[Point]:
        """The legal points for a shape, the seed's own first."""
        operator, kernel = self.loaded
        names = {
            **operator.constants,
            **workload.dims,
            "smem_bytes": SMEM_BYTES,
            "multiprocessors": MULTIPROCESSORS,
        }
        try:
            space = Space.from_source(kernel.source, [names])
        except SpaceError:
            return []  # a kernel that knows no tails has no point for a shape with one
        start = {**space.defaults, **kernel.overrides}
        first = next(iter(operator.kernels))  # what ``unfused`` is the baseline of
        tried = POINTS[first if self.kernel == "unfused" else self.kernel]
        if self.kernel == "cast8" and operator.constants["by_columns"]:
            tried = POINTS["cast8 turned"]
        found: list[Point] = []
        for change in [{}, *(tried if self.tuned else [])]:
            point = {**start, **change}
            if point not in found and not space.violations(point) and fitting(operator, point, workload):
                found.append(point)
        return found


def fitting(operator: Operator, point: Point, workload: Workload) -> bool:
    """False for tiles that cover a product's few rows more than twice, or its many rows in small pieces or split."""
    if (
        "N" in workload.dims
        and point.get("split", 1) > 1
        and workload.dims["M"] > 512
        and "block_m" not in point
    ):
        return False
    if "N" not in workload.dims or "block_m" not in point or "masked" in operator.name:
        return True
    m, tall = workload.dims["M"], point["block_m"]
    least = 64 if "mxfp8_out" in operator.name else 16
    return tall <= max(least, 2 * m) and (m <= 128 or tall >= 64)


def tasks(pairs: Sequence[tuple[Entry, Workload]]) -> list[Task]:
    """What to compile: a source, a point and the shapes it is for, the dearest kernels first."""
    held: dict[tuple[str, str], Task] = {}
    for entry, workload in pairs:
        operator, kernel = entry.loaded
        for point in entry.points(workload):
            key = (kernel.source, repr(sorted(point.items())))
            held.setdefault(key, (kernel.source, point, []))[2].append(
                {
                    "id": f"{entry.operator} {workload.id}",
                    "inputs": described(operator.inputs(workload)),
                    "outputs": described(operator.outputs(workload)),
                }
            )
    return sorted(held.values(), key=lambda task: -len(task[0]))
