"""Does the time model choose what the hardware chose? Published settings, ranked by the model in their sets.

    python -m experiments.studies.tpu.choices FOLDER [--chip CHIP] [--seed N] [--each N] [--minutes M]

FOLDER holds ``vllm-project/tpu-inference`` at ``b8692ff0`` as ``tpu-inference`` and, for v7x, at ``0786c01d`` as
``tpu-inference-0786c01d``; what was compiled is kept in FOLDER/choices. Of every row count as many rows are drawn by
lot. A set is every setting that divides the sides and fits; regret is the published one's modelled time over the set's
best, less 1. A step's cycles are linear in each side of its blocks and come from a few small products; the whole is
laid out step by step and replayed as any kernel's events are (``experiments/records/tpu/choices.md``).
"""

import argparse
import ast
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import mod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.studies.tpu.truth.grouped import pipeline
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.tpu.events import Kind, read_events
from tilewright.fitness.tpu.llo import read_profile
from tilewright.fitness.tpu.memory import Rules, replay
from tilewright.fitness.tpu.time_model import CALIBRATIONS
from tilewright.fitness.tpu.timeline import read_critical_path
from tilewright.workers.toolchains import libtpu_simulator as recipe

Blocks = tuple[int, ...]
"""Rows of x, columns, depth: of a product, of a block, or counts of blocks."""
PLACE = "tpu_inference/kernels/quantized_matmul"
SQUARE, TALL, SHORT = 256, 1024, 128
"""Side of a matrix unit; rows beyond which cycles are linear; core cycles between two waits of one step."""


@dataclass(frozen=True)
class Table:
    """Of a chip: its number, folder and types; bytes of VMEM that the kernel asks for at most, and that XLA leaves;
    rows of x from which XLA has operands in VMEM before the kernel; row blocks to choose from; if code needs delays."""

    version: int
    folder: str
    kind: str
    limit: int
    left: int
    early: int
    tall: tuple[int, int]
    delays: bool


TABLES = {
    "v6e": Table(6, "tpu-inference", "int8", 96 << 20, 4 << 20, 256, (256, 4096), False),
    "tpu7x": Table(7, "tpu-inference-0786c01d", "float8_e4m3fn", 48 << 20, 12 << 20, 16, (128, 1024), True),
}


def rows(folder: Path, chip: str) -> list[tuple[Blocks, Blocks]]:
    """Shapes with the settings published for them."""
    table = TABLES[chip]
    tree = ast.parse((folder / table.folder / PLACE / "tuned_block_sizes.py").read_text())
    names = ("TUNED_BLOCK_SIZES_RAW", "TUNED_BLOCK_SIZES")
    literals = (
        n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) in names
    )
    wanted = (table.version, table.kind, table.kind)
    found = [
        (tuple(shape), tuple(blocks))
        for (version, *shape, x, w), blocks in ast.literal_eval(next(literals)).items()
        if (version, x, w) == wanted and len(blocks) == 3
    ]
    return [(shape, won) for shape, won in found if not any(map(mod, shape[1:], won[1:]))]


def settings(chip: str, shape: Blocks, won: Blocks) -> list[Blocks]:
    """The set that the published one is taken to be chosen from, of what fits."""
    least, most = TABLES[chip].tall
    tall = sorted({min(shape[0], 2**p) for p in range(3, 13) if least <= 2**p <= most})
    sides = [[s for s in range(128, side + 1, 128) if side % s == 0] for side in shape[1:]]
    every = dict.fromkeys([won, *itertools.product(tall, *sides)])
    return [blocks for blocks in every if held(shape, blocks, (1, 2)) <= TABLES[chip].limit]


def grid_of(shape: Blocks, blocks: Blocks) -> Blocks:
    return tuple(map(math.ceil, np.divide(shape, blocks)))


def small(grid: Blocks) -> Blocks:
    """Counts of blocks of what is simulated in its place: every kind of step of it occurs."""
    return (1, 2, 3) if grid[2] > 1 else (1, 2, 1) if grid[1] > 1 else (min(grid[0], 2), 1, 1)


def kind_of(step: Blocks, grid: Blocks) -> tuple[bool, int]:
    """Whether its column block is the first, and -1, 0, 1: first, middle, last along the depth."""
    return step[1] == 0, (step[2] == grid[2] - 1) - (step[2] == 0 and grid[2] > 1)


def held(shape: Blocks, blocks: Blocks, copies: tuple[int, int]) -> int:
    """Bytes of all blocks: so many copies of one that stays and of one that changes; and of what the kernel keeps."""
    (a, b, c), (tall, wide, deep) = grid_of(shape, blocks), blocks
    moved = (
        copies[a * c > 1] * 2 * tall * deep
        + copies[b * c > 1] * wide * deep
        + copies[a * b > 1] * 2 * tall * wide
    )
    return moved + (copies[1] - 1) * (4 * tall * wide if c > 1 else tall * deep if b > 1 else 0)


def anchors(blocks: Blocks) -> list[Blocks]:
    tall = (blocks[0],) if blocks[0] <= TALL else (TALL // 2, TALL)
    return [(each, wide * SQUARE, 2 * deep * SQUARE) for each in tall for wide in (2, 4) for deep in (2, 4)]


def terms(blocks: Blocks, number: int) -> list[float]:
    """Few rows wait for the squares that are loaded, which half of one does half of; many for those multiplied by."""
    wide, deep = (math.ceil(side / (SQUARE if blocks[0] >= SQUARE else SQUARE // 2)) for side in blocks[1:])
    flat = [1.0, wide, deep, wide * deep]
    return flat if number == len(flat) else [*flat, *(blocks[0] * each for each in flat)]


@cache
def simulated(path: Path, grid: Blocks) -> tuple[Mapping[tuple[bool, int], float], np.ndarray]:
    """Core cycles of a small product's steps by kind; before the first step and after the last. Raises ValueError."""
    record = json.loads(path.read_text())
    if record["failure"]:
        raise ValueError(record["failure"])
    work, kinds, ready = (np.array(record[name], np.int64) for name in ("work", "kinds", "ready"))
    last: list[int] = []
    for place in np.flatnonzero(kinds == Kind.WAIT).tolist():
        if ready[place] >= 0 and kinds[ready[place]] == Kind.READ:
            if last and place == last[-1] + 1 and work[place] < SHORT:
                last.pop()  # a step waits for its operands without a break, then works
            last.append(place)
    walk, write = list(np.ndindex(*grid)), int(np.flatnonzero(kinds == Kind.WRITE)[0])
    first = last[0] + 1
    last = last[-1:] if len(walk) == 1 else last  # a single step may work between its waits
    if len(last) != len(walk):
        raise ValueError(f"{len(last)} waits for operands in {len(walk)} steps")
    ends = np.array([work[: last[0] + 1].sum(), work[last[-1] + 2 :].sum()])
    if len(walk) == 1:
        return {kind_of(walk[0], grid): float(work[first : write + 1].sum())}, ends
    found: dict[tuple[bool, int], list[tuple[int, int]]] = defaultdict(list)
    for step, begin, end in zip(walk, last, [*last[1:], last[-1] + 1], strict=True):
        found[kind_of(step, grid)].append((work[begin + 1], work[begin + 2 : end + 1].sum()))
    return {k: float(sum(median(part) for part in zip(*v, strict=True))) for k, v in found.items()}, ends


def seconds(
    chip: str, shape: Blocks, blocks: Blocks, paths: Mapping[Blocks, Path], rules: Rules, least: int
) -> float:
    """Of the whole: beyond a few blocks of an axis each takes as long as the last two differ. Raises ValueError.

    ``least``: bytes that the smallest setting of the set asks for.
    """
    grid, table = grid_of(shape, blocks), TABLES[chip]
    of = [simulated(path, small(grid)) for path in paths.values()]
    shares = np.linalg.solve(np.array([terms(each, len(of)) for each in paths]).T, terms(blocks, len(of)))
    cycles = {kind: float(shares @ [each[0][kind] for each in of]) for kind in of[0][0]}
    free = CHIPS[chip].vmem_bytes - table.left - min(table.limit, least)
    # x, else w, is in VMEM before the kernel if it fits beside some setting: XLA's matter, not the setting's
    sizes = {"x": 2 * shape[0] * shape[2], "w": shape[1] * shape[2]}
    there = next((name for name in sizes if shape[0] >= table.early and sizes[name] <= free), "")
    tall, wide, deep = 1 if shape[0] == 1 else blocks[0], *blocks[1:]
    reads = [wide * deep * (there != "w"), 2 * tall * deep * (there != "x"), 4 * wide, 4 * tall]

    def of_grid(counts: Blocks) -> float:
        for axis, few in ((0, 2), (1, max(4, 24 // counts[2]))):
            if (size := counts[axis]) > few:
                cut = (of_grid((*counts[:axis], n, *counts[axis + 1 :])) for n in (few, few - 1))
                return (last := next(cut)) + (size - few) * (last - next(cut))
        walk = list(np.ndindex(*counts))
        moved: list[Any] = [[s[at] for s in walk] for at in (slice(1, 3), slice(0, 3, 2), 1, 0)]
        spent = [cycles[kind_of(step, counts)] for step in walk]
        out = [step[:2] for step in walk]
        events = pipeline(moved, reads, out, 2 * blocks[0] * wide, [2] * 4, spent, in_turn=True)
        events.work[[0, -1]] += of[0][1].astype(np.int64)
        return replay(events, rules).seconds

    return of_grid(grid)


def child(job: dict[str, Any]) -> None:
    """Compiles small products for a chip that is not there, one after the other, and keeps their events."""
    import jax
    import jax.numpy as jnp

    from experiments.studies.tpu.truth.child import bind, compile_for, export, kernels_of, text_of
    from tilewright.workers.intake.pallas.original import on_chip
    from tilewright.workers.intake.source.load import load
    from tilewright.workers.runners.mosaic.branch_delays import delayed

    chip, table = CHIPS[job["chip"]], TABLES[job["chip"]]
    with on_chip({"kind": chip.device_kind, "cores": chip.cores}):
        module, _ = load(Path(job["module"]), "quantized_matmul_kernel", traced=False)
        for key, (tall, wide, deep), blocks in job["left"]:
            for name in ("llo", "prof"):
                shutil.rmtree(name)
                Path(name).mkdir()
            types = (jnp.bfloat16, table.kind, jnp.float32)
            kinds = zip(((tall, deep), (wide, deep), (wide,)), types, strict=True)
            shapes = [jax.ShapeDtypeStruct(size, jnp.dtype(kind)) for size, kind in kinds]
            options = {"x_q_dtype": jnp.dtype(table.kind), "tuned_value": module.TunedValue(*blocks)}
            exported = export(lambda *o, given=options: module.quantized_matmul_kernel(*o, **given), shapes)
            bound = bind(exported.mlir_module_serialized, {})
            bound = delayed(bound) if table.delays else bound
            (name,) = kernels_of(text_of(compile_for({"topology": chip.topology}, exported, bound, shapes)))
            (path,) = Path("prof").glob(f"{name}*_static_llo_profile.textproto")
            cycles = read_profile(path.read_text(errors="replace")).cycles
            critical = read_critical_path(Path(f"prof/{name}_critical_path.txt").read_bytes(), cycles)
            events = read_events(Path(f"prof/{name}_bundles.txt").read_bytes(), critical, cycles)
            record = {"failure": "", **{field: values.tolist() for field, values in vars(events).items()}}
            Path(key).write_text(json.dumps(record))


def compile_all(folder: Path, chip: str, jobs: Mapping[str, tuple[Blocks, Blocks]], minutes: float) -> None:
    """What the child does, begun again behind a product that libtpu aborts on."""
    kept, until = (folder / "choices").resolve(), time.monotonic() + 60 * minutes
    while (left := [(str(kept / key), *job) for key, job in jobs.items() if not (kept / key).exists()]) and (
        until > time.monotonic()
    ):
        with tempfile.TemporaryDirectory(prefix="tpu_choices_") as name:
            environment = {**os.environ, **recipe.compile_environment(Path(name), delays=TABLES[chip].delays)}
            environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
            module = str((folder / "tpu-inference" / PLACE / "kernel.py").resolve())
            job = json.dumps({"chip": chip, "module": module, "left": left})
            command = [sys.executable, "-m", "experiments.studies.tpu.choices", "--child", job]
            options: dict[str, Any] = {"cwd": name, "env": environment, "capture_output": True, "text": True}
            try:
                process = subprocess.run(command, timeout=until - time.monotonic(), **options)
            except subprocess.TimeoutExpired:
                return
        died = next((key for key, *_ in left if not Path(key).exists()), None)
        if died:
            Path(died).write_text(json.dumps({"failure": process.stderr[-300:]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chip", choices=TABLES, default="v6e")
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--each", type=int, default=6, help="rows for every count of rows of x")
    parser.add_argument("--minutes", type=float, default=0.0, help="of compiling")
    options = parser.parse_args()
    rules = CALIBRATIONS[options.chip].rules
    lot, every = random.Random(options.seed), rows(options.folder, options.chip)
    of = []
    for count in sorted({shape[0] for shape, _ in every if shape[0] <= 1 << 14}):
        some = [row for row in every if row[0][0] == count]
        of += lot.sample(some, min(options.each, len(some)))
    kept = options.folder / "choices"
    kept.mkdir(exist_ok=True)
    jobs: dict[str, tuple[Blocks, Blocks]] = {}
    sets: dict[tuple[Blocks, Blocks], dict[Blocks, dict[Blocks, Path]]] = {}
    for row in of:
        sets[row] = {}
        for blocks in settings(options.chip, *row):
            sets[row][blocks] = paths = {}
            for each in anchors(blocks):
                grid = small(grid_of(row[0], blocks))
                key = (
                    f"{options.chip}-{recipe.toolchain()['libtpu']}-{'x'.join(map(str, (*each, *grid)))}.json"
                )
                jobs[key] = (tuple(np.multiply(grid, each).tolist()), each)
                paths[each] = kept / key
    compile_all(options.folder, options.chip, jobs, options.minutes)
    ranked: list[tuple[int, int, float]] = []
    for (shape, won), sets_of in sets.items():
        times: dict[Blocks, float] = {}
        if not all(path.exists() for paths in sets_of.values() for path in paths.values()):
            continue  # not compiled to the end
        least = min(held(shape, blocks, (2, 3)) for blocks in sets_of)
        for blocks, paths in sets_of.items():
            with contextlib.suppress(ValueError):
                times[blocks] = seconds(options.chip, shape, blocks, paths, rules, least)
        if won in times:
            best = min(times.values())
            ranked.append((shape[0], 1 + sum(s < times[won] for s in times.values()), times[won] / best - 1))
    sys.stdout.write(f"{len(ranked)} of {len(of)} rows: all compiled, a time of the published setting\n")
    for count in ("all", *sorted({row[0] for row in ranked})) if ranked else ():
        ranks, regrets = zip(*(row[1:] for row in ranked if count in ("all", row[0])), strict=True)
        firsts = [np.mean(np.array(ranks) <= best) for best in (5, 1)]
        shares = [*firsts, *np.quantile(regrets, [0.5, 0.9, 1.0])]
        cells = [options.chip, count, len(ranks), *(f"{share:.1%}" for share in shares)]
        sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")


if __name__ == "__main__":
    child(json.loads(sys.argv[2])) if sys.argv[1] == "--child" else main()
