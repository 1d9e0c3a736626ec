"""Spaces on which choices of the search are made, so that the four recorded ones are left to judge it.

    python -m experiments.studies.search.development --seeds 10 --budget 100
    python -m experiments.studies.search.development --change parameter_view.EXPLOIT_EVERY=2

Two recorded spaces, five restrictions of them (values taken out, which moves the optimum) and three made-up kernels,
under seeds from 100 on. ``--change`` gives one constant of ``evolve.proposers`` another value and reports the
difference, seed by seed, with its standard error. Scores as in ``search_efficiency``.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import math
import multiprocessing
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.studies.search.efficiency import Run, Setting, run_search
from testkit.spaces.tables import SPACES, Table, read_table
from tilewright.evolve.space.genome import Value
from tilewright.evolve.space.space import Space

FIRST_SEED = 100
MARKS = (15, 25, 50, 100, 200)

Params = Mapping[str, Any]


def restricted(table: Table, name: str, keep: Callable[[Params], bool]) -> Table:
    """The points of a table that ``keep``."""
    assert table.space.points is not None
    rows = np.array([row for row in table.space.points if keep(table.space.decode(row))])
    space = Space(table.space.parameters, dict(table.space.constraints), members=rows)
    codes = np.sort(table.space.codes(rows))
    return Table(name, "", space, codes, table.times[np.searchsorted(table.codes, codes)], f'"""{name}"""\n')


def made_up(
    name: str, values: Mapping[str, Sequence[Value]], limits: Sequence[str], time: Callable[[Params], float]
) -> Table:
    """A table of ``time`` in ms, NaN where a point fails."""
    space = Space(values, dict.fromkeys(limits, "made up"))
    assert space.points is not None
    codes = space.codes(space.points)
    order = np.argsort(codes)
    times = np.array([time(space.decode(row)) for row in space.points[order]]) / 1e3
    return Table(name, "", space, codes[order], times, f'"""{name}"""\n')


def occupancy(threads: int, registers: float, shared: int, memory: int = 102_400) -> float:
    """Share of 2048 threads of a multiprocessor that are resident; 0 where a block does not fit."""
    warps = -(-threads // 32)
    if registers > 255:
        return 0.0
    blocks = min(32, 64 // warps, int(65_536 // (max(registers, 16.0) * warps * 32)))
    if shared:
        blocks = min(blocks, memory // shared)
    return blocks * warps * 32 / 2048


def _noise(*key: object) -> float:
    """In [0, 1), the same on every machine."""
    return zlib.crc32(repr(key).encode()) / 2**32


_STENCIL: Mapping[str, Sequence[Value]] = {
    "block_size_x": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "block_size_y": (1, 2, 4, 8, 16, 32),
    "tile_size_x": (1, 2, 3, 4, 5, 6, 8),
    "tile_size_y": (1, 2, 3, 4, 5, 6, 8),
    "temporal_tiling_factor": (1, 2, 3, 4, 5, 6),
    "loop_unroll_factor_t": (1, 2, 3, 4, 5, 6),
    "sh_power": (0, 1),
}
_STENCIL_LIMITS = (
    "32 <= block_size_x * block_size_y <= 1024",
    "temporal_tiling_factor % loop_unroll_factor_t == 0",
    "(block_size_x * tile_size_x + temporal_tiling_factor * 2)"
    " * (block_size_y * tile_size_y + temporal_tiling_factor * 2) * (2 + sh_power) * 4 <= 49152",
)


def stencil(seed: int) -> Table:
    """A stencil tiled in time: registers, shared memory, halos, coalescing and waves."""
    rng = np.random.default_rng(seed)
    slope, base, latency, band = rng.uniform([2, 14, 0.2, 0.7], [6, 30, 0.5, 1.4])
    memory = int(rng.choice([64, 100, 164])) * 1024

    def time(point: Params) -> float:
        bx, by, tx, ty, steps, unroll, power = point.values()
        registers = base + slope * tx * ty * (1 + 0.15 * unroll) + (0 if power else 2 * tx * ty)
        if registers > 400:
            return math.nan
        if registers > 255:
            return 5 * (1 + registers / 255)
        halo = (bx * tx + 2 * steps) * (by * ty + 2 * steps)
        busy = occupancy(bx * by, registers, halo * (2 + power) * 4, memory)
        if busy <= 0:
            return math.nan
        area = bx * tx * by * ty
        share = halo / area
        coalescing = 1.0 if bx % 32 == 0 else 1.15 if bx >= 16 else 1 + 2.4 / bx
        compute = share * steps * (1.1 + 0.25 / unroll) * (1.2 if power and bx in (8, 16) else 1.0)
        traffic = band * share * coalescing * (2.0 if power else 2.2) * 2.5
        at_once = area * 108 * max(1, busy * 2048 // (bx * by))
        waves = math.ceil(4096 * 4096 / at_once) * at_once / (4096 * 4096)
        hidden = 1 + latency * (0.35 / busy) / (tx * ty) ** 0.4
        return max(compute, traffic) / steps * hidden * waves * (0.97 + 0.06 * _noise(seed, *point.values()))

    return made_up(f"stencil-{seed}", _STENCIL, _STENCIL_LIMITS, time)


_PRODUCT: Mapping[str, Sequence[Value]] = {
    "bm": (16, 32, 64, 128, 256),
    "bn": (16, 32, 64, 128, 256),
    "bk": (8, 16, 32, 64),
    "warps": (1, 2, 4, 8, 16),
    "stages": (1, 2, 3, 4, 5),
    "vec": (1, 2, 4, 8),
    "swizzle": (1, 2, 4, 8),
    "layout": ("row", "col", "mix"),
    "split": (1, 2, 4),
}
_PRODUCT_LIMITS = (
    "bm * bn // (warps * 32) <= 256",
    "bm * bn >= warps * 32 * 4",
    "(bm + bn) * bk * 2 * stages <= 98304",
    "bk % vec == 0",
)


def product(seed: int) -> Table:
    """A matrix product: registers, pipelining, memory traffic, bank conflicts and waves."""
    weights = np.random.default_rng(seed).uniform(0.7, 1.4, 8)

    def time(point: Params) -> float:
        bm, bn, bk, warps, stages, vec, swizzle, layout, split = point.values()
        registers = 30 + bm * bn / (warps * 32) * weights[0] + 6 * vec
        if registers > 255:
            return math.nan if registers > 300 else 4 * registers / 255
        busy = occupancy(warps * 32, registers, (bm + bn) * bk * 2 * stages)
        if busy <= 0:
            return math.nan
        compute = 1 + 0.8 * weights[1] * 16 / bk / (1 + 0.3 * stages)
        compute *= 1 + 0.25 * abs(math.log2(bm * bn / (warps * 32) / 64)) * weights[2]
        traffic = 70 * weights[3] / (bm * bn / (bm + bn)) * {1: 1.6, 2: 1.25}.get(vec, 1.0)
        traffic *= {"row": 1.0, "col": 1.12 * weights[4], "mix": 0.97}[layout]
        traffic *= 1 - 0.06 * weights[6] * math.log2(swizzle) * (1.0 if bm >= bn else 0.3)
        latency = 0.35 * weights[5] / (busy * min(stages, 4) ** 0.7) / 2
        tiles, slots = (4096 // bm) * (2048 // bn) * split, 108 * max(1, int(busy * 2048 // (warps * 32)))
        waves = (math.ceil(tiles / slots) * slots / tiles) ** 0.8
        banks = 1.3 if layout == "col" and bk == 32 and vec < 8 else 1.0
        noise = 0.98 + 0.04 * _noise(seed, *point.values())
        return (
            (max(compute, traffic) * banks + latency) * waves * (1 + 0.04 * (split - 1) * weights[7]) * noise
        )

    return made_up(f"product-{seed}", _PRODUCT, _PRODUCT_LIMITS, time)


_MAKERS: Mapping[str, Callable[[], Table]] = {
    "conv_a100": partial(read_table, SPACES / "conv_a100.json"),
    "gemm_rtx3090": partial(read_table, SPACES / "gemm_rtx3090.json"),
    "conv-ty": lambda: restricted(_MAKERS["conv_a100"](), "conv-ty", lambda p: p["tile_size_y"] != 3),
    "conv-bx": lambda: restricted(
        _MAKERS["conv_a100"](), "conv-bx", lambda p: p["block_size_x"] % 32 > 0 or p["block_size_x"] > 128
    ),
    "gemm-mwg": lambda: restricted(_MAKERS["gemm_rtx3090"](), "gemm-mwg", lambda p: p["MWG"] != 128),
    "gemm-sa": lambda: restricted(_MAKERS["gemm_rtx3090"](), "gemm-sa", lambda p: p["SA"] == 0),
    "gemm-n": lambda: restricted(
        _MAKERS["gemm_rtx3090"](), "gemm-n", lambda p: p["NDIMB"] != 32 and p["NDIMC"] != 8
    ),
    "stencil-1": partial(stencil, 1),
    "stencil-2": partial(stencil, 2),
    "product-1": partial(product, 1),
}


def _task(task: tuple[str, int, int, tuple[str, ...]]) -> list[Run]:
    """All runs of one space, the same seeds for everybody."""
    name, seeds, budget, changes = task
    for change in changes:
        _change(change)
    table = _MAKERS[name]()
    return [run_search(table, FIRST_SEED + seed, Setting(budget)) for seed in range(seeds)]


def _change(change: str) -> None:
    """Give a constant another value, wherever this process has imported it."""
    place, _, text = change.partition("=")
    module, _, name = place.rpartition(".")
    getattr(importlib.import_module(f"tilewright.evolve.proposers.{module}"), name)
    for other in [m for key, m in sys.modules.items() if key.startswith("tilewright.evolve.proposers")]:
        if hasattr(other, name):
            setattr(other, name, ast.literal_eval(text))


def _curves(changes: tuple[str, ...], seeds: int, budget: int, jobs: int) -> np.ndarray:
    """Scores [spaces, seeds, budget]."""
    tasks = [(name, seeds, budget, changes) for name in _MAKERS]
    with multiprocessing.get_context("spawn").Pool(max(1, jobs), maxtasksperchild=1) as pool:
        runs = pool.map(_task, tasks, chunksize=1)
    return np.array([[run.curve for run in mine] for mine in runs])


def describe(curves: np.ndarray) -> str:
    """A table of medians at each mark."""
    marks = [mark for mark in MARKS if mark <= curves.shape[2]]
    lines = [
        "| space | " + " | ".join(f"n={mark}" for mark in marks) + " |",
        "| --- |" + " --- |" * len(marks),
    ]
    for name, scores in zip(_MAKERS, curves, strict=True):
        medians = np.median(scores[:, [mark - 1 for mark in marks]], axis=0)
        lines.append(f"| {name} | " + " | ".join(f"{score:.3f}" for score in medians) + " |")
    means = curves.mean(axis=(0, 1))[[mark - 1 for mark in marks]]
    lines.append("| mean of all runs | " + " | ".join(f"{score:.4f}" for score in means) + " |")
    return "\n".join(lines)


def compare(change: str, base: np.ndarray, changed: np.ndarray) -> str:
    """One line: what a change does to the mean score at each mark, with its standard error."""
    apart = (changed - base).reshape(-1, base.shape[2])
    errors = apart.std(axis=0, ddof=1) / math.sqrt(len(apart))
    parts = [
        f"n={mark} {apart[:, mark - 1].mean():+.4f} ± {errors[mark - 1]:.4f}"
        for mark in MARKS
        if mark <= base.shape[2]
    ]
    return f"{change}: " + ", ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Choices of the search on development spaces.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--change", nargs="*", default=[], help="MODULE.CONSTANT=VALUE, one at a time")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    told = parser.parse_args(arguments)
    base = _curves((), told.seeds, told.budget, told.jobs)
    sys.stdout.write(describe(base) + "\n\n")
    for change in told.change:
        changed = _curves((change,), told.seeds, told.budget, told.jobs)
        sys.stdout.write(compare(change, base, changed) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
