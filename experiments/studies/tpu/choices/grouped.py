"""The same question of grouped products: published tilings of the kernel ``gmm``, ranked by the model in their sets.

    python -m experiments.studies.tpu.choices.grouped FOLDER [--minutes M] [--chip CHIP] [--seed N]

FOLDER as in the study of plain products. ``sglang-jax`` publishes the script that made its own rows (8 groups), with
the sizes of the groups and the set of tilings; its other rows are those of ``tpu-inference``, which publishes neither:
they are judged in that set, rows spread evenly over all groups, of which some are on this chip. Neither says on which
chip a row was tuned: the first project's rows are judged on v6e, the second's on tpu7x. A step costs what it costs in a
product of two groups and three blocks of the depth (or one), linear in columns and depth between four such products.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.tpu.choices.ranked_sets import compile_all, events_of, fact_of, key_of, report
from experiments.studies.tpu.choices.steps import Grid, Simulated
from experiments.studies.tpu.choices.tables import Blocks
from experiments.studies.tpu.truth.grouped import pipeline, visits
from tilewright.fitness.tpu.events import Events, Kind
from tilewright.fitness.tpu.memory import Rules, replay
from tilewright.fitness.tpu.time_model import CALIBRATIONS
from tilewright.workers.toolchains import libtpu_simulator as recipe

BYTES = {"bfloat16": 2, "float8_e4m3fn": 1, "float32": 4}
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
"""Of blocks, in 256 columns or rows of the depth; 128 of either is tried as well."""
LIMIT = 32 << 20
"""Bytes of VMEM that libtpu gives a kernel which asks for no limit, as its refusals say."""
FEW = 4
"""Groups, and blocks of columns, beyond which each takes as long as the last two differ."""
_OWN = 8
"""Groups of sglang-jax's own rows."""
_RESULT = {"tpu7x": "bfloat16", "v6e": "float32"}
"""Of the product: what the layers of ``tpu-inference`` ask for, and the script of ``sglang-jax``."""
_MODULES = {
    "tpu7x": "tpu-inference/tpu_inference/kernels/megablox/gmm.py",
    "v6e": "sglang-jax/python/sgl_jax/srt/kernels/gmm/megablox_gmm_kernel/gmm.py",
}
"""By the chip on which its rows are judged."""


@dataclass(frozen=True)
class Row:
    """A published tiling (rows, depth, columns) of a product of that shape, of which so many groups are worked on.

    ``rows_each``: of a group; a table counts the rows of all groups, those on other chips too.
    """

    chip: str
    shape: Blocks
    groups: int
    rows_each: int
    types: tuple[str, str]
    winner: Blocks

    @property
    def name(self) -> str:
        """Of its table in the report."""
        return f"{_MODULES[self.chip].split('/')[0]} grouped {' x '.join(kind.split('_')[0] for kind in self.types)}"


def rows(folder: Path, chip: str) -> list[Row]:
    """The rows of a table whose tiling is in the set, in its order."""
    text = (folder / _MODULES[chip]).with_name("tuned_block_sizes.py").read_text()
    (table,) = (
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TUNED_BLOCK_SIZES"
    )
    assert isinstance(table, ast.Dict)
    found = []
    for key, value in zip(table.keys, table.values, strict=True):
        assert key is not None and isinstance(value, ast.Tuple)
        m, k, n, total, groups, x, w, _ = ast.literal_eval(key)
        tiling = tuple(math.prod(map(int, ast.unparse(side).split("*"))) for side in value.elts)
        found.append(Row(chip, (m, k, n), min(groups, m), max(1, m // total), (x, w), tiling))
    found = [row for row in found if chip != "v6e" or row.groups <= _OWN]
    return [row for row in found if row.winner in list(candidates(row))]


def candidates(row: Row) -> Iterator[Blocks]:
    """The script's set: tilings of rows, depth and columns."""
    m, k, n = row.shape
    sides = (128, *(256 * size for size in SIZES))
    tall = sorted({m, *(size for size in (128, 256) if m % size == 0)})
    for rows_of, depth, columns in itertools.product(tall, sides, sides):
        if rows_of <= 256 and k % depth == 0 and n % columns == 0:
            yield rows_of, depth, columns


def fits(row: Row, tiling: Blocks) -> bool:
    """Whether two of every block and the sum fit into what libtpu gives."""
    tall, deep, wide = tiling
    x, w, out = (BYTES[kind] for kind in (*row.types, _RESULT[row.chip]))
    tall = max(tall, 8)
    return 2 * (tall * deep * x + deep * wide * w + 32 * wide + tall * wide * out) + 4 * tall * wide <= LIMIT


def anchors(row: Row, tiling: Blocks, folder: Path) -> dict[Blocks, dict[str, Any]]:
    """The tilings that are compiled for one, each with what the child does: two groups of one tile, one column block,
    three blocks of the depth or, where all of it is in one, that."""
    found: dict[Blocks, dict[str, Any]] = {}
    types = [*row.types, _RESULT[row.chip]]
    for deep, wide in itertools.product((512, 1024), repeat=2):
        tall = tiling[0] if tiling[0] % 8 else 2 * tiling[0]  # a block of few rows must be all of x
        shape, blocks = (tall, deep * _deep(row, tiling), wide), (tiling[0], deep, wide)
        told: dict[str, Any] = {"module": str((folder / _MODULES[row.chip]).resolve()), "grouped": True}
        told |= {"types": types, "shape": shape, "blocks": blocks}
        found[blocks] = {"key": key_of([told, row.chip, recipe.toolchain()["libtpu"]]), **told}
    return found


def _deep(row: Row, tiling: Blocks) -> int:
    return 3 if row.shape[1] > tiling[1] else 1


def judged(row: Row, folder: Path) -> dict[str, Any] | None:
    """What the model says of a row's set; None where some of it is not compiled yet."""
    times: dict[Blocks, float] = {}
    failures: dict[str, str] = {}
    whole = list(candidates(row))
    for tiling in (each for each in whole if fits(row, each)):
        jobs = anchors(row, tiling, folder)
        paths = [folder / "choices" / f"{job['key']}.json" for job in jobs.values()]
        if not all(path.exists() for path in paths):
            return None
        try:
            found = [_simulated(path, Grid(1, 2, _deep(row, tiling))) for path in paths]
            cycles = _cycles(list(jobs), tiling, found)
            times[tiling] = _seconds(row, tiling, cycles, CALIBRATIONS[row.chip].rules)
        except ValueError as error:
            failures[str(tiling)] = str(error)
    misfits = sum(not fits(row, tiling) for tiling in whole)
    return fact_of(row.name, row.chip, row.shape, row.winner, times, failures, misfits)


@cache
def _simulated(path: Path, small: Grid) -> Simulated:
    """Without the copies of the groups' tables, which come before the pipeline."""
    told = events_of(path)
    first = told.kinds.tolist().index(Kind.WAIT) + 1
    ready = np.where(told.ready >= first, told.ready - first, -1)[first:]
    return Simulated.of(Events(told.work[first:], told.kinds[first:], told.sizes[first:], ready), small)


def _cycles(compiled: Sequence[Blocks], tiling: Blocks, found: Sequence[Simulated]) -> dict[int, float]:
    """Core cycles of a tiling's step that is first (-1), in the middle or last along the depth."""
    shares = np.linalg.solve(np.array([_terms(blocks) for blocks in compiled]).T, np.array(_terms(tiling)))
    places = [kind for kind in found[0].steps if not kind[0]]
    return {kind[1]: float(shares @ [sum(each.steps[kind]) for each in found]) for kind in places}


def _terms(tiling: Blocks) -> list[float]:
    deep, wide = (math.ceil(side / 128) for side in tiling[1:])
    return [1.0, deep, wide, deep * wide]


def _seconds(row: Row, tiling: Blocks, cycles: dict[int, float], rules: Rules) -> float:
    """Of the whole product: beyond a few groups and blocks of columns each takes as long as the last two differ."""
    blocks = math.ceil(row.shape[2] / tiling[2])

    def of(groups: int, columns: int) -> float:
        for number, few in ((groups, lambda n: of(n, columns)), (columns, lambda n: of(groups, n))):
            if number > FEW:
                return few(FEW) + (number - FEW) * (few(FEW) - few(FEW - 1))
        return replay(_events(row, tiling, cycles, groups, columns), rules).seconds

    return of(row.groups, blocks)


def _events(row: Row, tiling: Blocks, cycles: dict[int, float], groups: int, columns: int) -> Events:
    tall, deep, wide = tiling
    depth, (x, w) = row.shape[1] // deep, (BYTES[kind] for kind in row.types)
    walk = [
        (group, tile, j, i)
        for j in range(columns)
        for group, tile in visits([row.rows_each] * groups, tall, empty=False)
        for i in range(depth)
    ]
    blocks: list[Any] = [[(tile, i) for _, tile, _, i in walk], [(group, j, i) for group, _, j, i in walk]]
    blocks.append([(group, j) for group, _, j, _ in walk])
    sizes, write = (x * tall * deep, w * deep * wide, 4 * wide), BYTES[_RESULT[row.chip]] * tall * wide
    spent = [cycles[(i == depth - 1) - (i == 0 and depth > 1)] for *_, i in walk]
    return pipeline(blocks, sizes, [(t, j) for _, t, j, _ in walk], write, [2] * 3, spent, in_turn=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chip", choices=["v6e", "tpu7x"], action="append")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--each", type=int, default=6, help="rows of every pair of types")
    told = parser.parse_args(arguments)
    lot = random.Random(told.seed)
    of: list[Row] = []
    for chip in told.chip or _MODULES:
        whole = rows(told.folder, chip)
        for types in dict.fromkeys(row.types for row in whole):
            some = [row for row in whole if row.types == types]
            of += lot.sample(some, min(told.each, len(some)))
    needed: Counter[str] = Counter()
    jobs: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in of:
        for tiling in (each for each in candidates(row) if fits(row, each)):
            for job in anchors(row, tiling, told.folder).values():
                needed[job["key"]] += 1
                if not (told.folder / "choices" / f"{job['key']}.json").exists():
                    jobs[row.chip][job["key"]] = job
    sys.stderr.write(f"{sum(map(len, jobs.values()))} small kernels to compile\n")
    compile_all(jobs, needed, told.folder, time.monotonic() + 60 * told.minutes)
    facts = [fact for row in of if (fact := judged(row, told.folder))]
    (told.folder / "choices" / f"grouped{told.seed}.json").write_text(json.dumps(facts, indent=1))
    sys.stdout.write(report(facts, len(of)))


if __name__ == "__main__":
    main(sys.argv[1:])
