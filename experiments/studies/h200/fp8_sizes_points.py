"""Which points of which kernels ``h200.fp8_sizes`` tries on a shape; and compiling them ahead, without the GPU."""

from __future__ import annotations

import ast
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import triton

from experiments.studies.h200.mx_points import grid
from testkit.compile_ahead import Point, Task, compiled_ahead, described
from tilewright.evolve.space.constraints import SpaceError
from tilewright.evolve.space.space import Space
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload

OPERATOR = "gemm_fp8_blockwise/gemm_nt"

RAGGED = (
    (1, 576, 1280),
    (37, 2112, 640),
    (64, 1096, 1152),
    (131, 576, 512),
    (200, 384, 640),
    (129, 136, 128),
    (64, 9736, 384),
    (130, 8200, 256),
    (1024, 8200, 384),
)
"""(M, N, K) that no tile divides, for the gates."""

PROMOTED = {"block_n": 256, "stages": 4, "slots": 2, "group_m": 12}
"""The genome the library serves today, of ``gluon_ws``."""

Chosen = tuple[str, Point]

AHEAD = {"early": True, "block_scales": "loaded"}
"""Of ``few_rows``: the first copies before the partitions, and fewer of them."""


@cache
def product() -> Any:
    """The operator, read once: every reading composes the family's steps anew."""
    return load_operator(OPERATOR)


def few_rows_points(m: int, n: int, k: int) -> Iterator[Point]:
    """Points of ``few_rows`` for a shape: tiles of either orientation, the deepest ring that fits."""
    least = max(8, min(128, triton.next_power_of_2(m)))
    tiles = [(least, bn, True) for bn in (64, 128)] if least <= 64 else [(64, 128, True)]
    tiles += [(64 if m <= 64 else bm, bn, False) for bn in (16, 32, 64, 128) for bm in (64, 128)]
    for bm, bn, swap in dict.fromkeys(tiles):
        count = -(-m // bm) * -(-n // bn)
        for teams, unroll in itertools.product((1, 2), (4, 2, 1)):
            if count < 24 or (unroll == 4 and k // 128 < 8) or (unroll == 1 and bm * bn < 64 * 128):
                continue
            stage = ((bm + bn) * 128 + 4 * max(bm, 32)) * unroll + 128
            room = 230464 - 2 * bm * bn - (4 * bm * bn if teams == 2 else 0)
            fitting = [s for s in (2, 3, 4, 5, 6, 8, 10, 12, 14, 16) if s * stage <= room and s % teams == 0]
            if not fitting or (fitting[-1] < 4 and unroll > 1 and k // 128 > 8):
                continue
            useful = -(-(k // 128) // unroll) * -(-count // 132)
            stages = next((s for s in fitting if s >= useful), fitting[-1])
            for change in ({}, AHEAD):
                yield {
                    "block_m": bm,
                    "block_n": bn,
                    "unroll": unroll,
                    "stages": stages,
                    "swap": swap,
                    "teams": teams,
                    **change,
                }


LARGE = [
    *grid(release=("at_once",), slots=(2,), stages=(4,), group_m=(4, 16)),
    *grid(release=("behind",), slots=(2,), stages=(4,), group_m=(4, 8, 16, 32)),
    *grid(release=("behind", "at_once"), stagger=(True,), slots=(2,), stages=(4,), group_m=(4, 16)),
    *grid(release=("behind",), slots=(4,), stages=(3,), group_m=(4, 16)),
]
"""Points of ``gluon_ws`` for many rows."""

NARROW = [
    *grid(block_n=(128,), stages=(6,), slots=(1,), group_m=(1, 4)),
    *grid(block_n=(256,), stages=(4,), slots=(1,), group_m=(1,)),
]
"""Points of ``gluon_ws`` for some hundred rows."""

GATED = ("few_rows", "gluon_ws", "gluon_skew", "pointer")
"""Kernels the gates look at."""


def points(kernel: str, shape: tuple[int, int, int]) -> list[Point]:
    """The legal points of a seed kernel for a shape, its own defaults among them unless it is ``few_rows``."""
    operator = product()
    seed = operator.kernels[kernel]
    names = {**operator.constants, **dict(zip("MNK", shape, strict=True))}
    try:
        space = Space.from_source(seed.source, [names])
    except SpaceError:
        return []
    if kernel == "few_rows":
        tried = list(few_rows_points(*shape))
    elif kernel == "gluon_ws":
        tried = NARROW if shape[0] <= 256 else LARGE
    else:
        tried = [{}]
    full = [{**space.defaults, **seed.overrides, **change} for change in tried]
    return [point for at, point in enumerate(full) if point not in full[:at] and not space.violations(point)]


def varied(chosen: Sequence[Chosen]) -> list[Chosen]:
    """Points of an earlier run, those of ``few_rows`` also with the changes in ``AHEAD``, one and both."""
    found: list[Chosen] = []
    for kernel, point in chosen:
        changes = ({}, {"block_scales": "loaded"}, {"early": True}, AHEAD) if kernel == "few_rows" else ({},)
        found += [(kernel, {**point, **change}) for change in changes]
    return found


def candidates(shape: tuple[int, int, int], kernels: Sequence[str]) -> list[Chosen]:
    """Kernels with points that are tried on a shape."""
    return [(kernel, point) for kernel in kernels for point in points(kernel, shape)]


def kernels_for(rows: int) -> tuple[str, ...]:
    """Seed kernels worth trying for so many rows."""
    if rows <= 64:
        return ("few_rows",)
    if rows <= 256:
        return ("few_rows", "gluon_skew", "gluon_ws")
    return ("gluon_ws",)


def ahead(shapes: Sequence[tuple[tuple[int, int, int], Sequence[Chosen]]], processes: int) -> dict[str, Any]:
    """Compile what is going to run, by many processes, into the cache this process reads."""
    operator = product()
    held: dict[str, Task] = {}
    for shape, chosen in shapes:
        workload = Workload("x".join(map(str, shape)), dict(zip("MNK", shape, strict=True)))
        specs = {
            "id": workload.id,
            "inputs": described(operator.inputs(workload)),
            "outputs": described(operator.outputs(workload)),
        }
        for kernel, point in chosen:
            key = f"{kernel} {sorted(point.items())}"
            held.setdefault(key, (operator.kernels[kernel].source, point, []))[2].append(specs)
    cache = os.environ.setdefault("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))
    return compiled_ahead(list(held.values()), cache, processes, 240.0)


@cache
def points_default(kernel: str) -> Point:
    """A seed kernel's own point."""
    source = product().kernels[kernel].source
    tree = ast.parse(source)
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "DEFAULTS"
    )


def points_of(path: Path) -> dict[tuple[int, int, int], list[Chosen]]:
    """The best three points by shape of an earlier run."""
    found = {}
    for entry in json.loads(path.read_text())["entries"]:
        ranked = sorted(
            (us, name) for name, us in entry["us"].items() if name.endswith("}") and "graph" not in name
        )
        split = [name.partition(" ") for _, name in ranked]
        found[entry["m"], entry["n"], entry["k"]] = [
            (kernel, {**points_default(kernel), **json.loads(point)}) for kernel, _, point in split
        ]
    return found
