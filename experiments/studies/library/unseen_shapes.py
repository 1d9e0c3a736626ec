"""What does the library's table lose between its entries? Random shapes, its choice beside the best known kernel.

    python -m experiments.studies.library.unseen_shapes gemm_fp8_fused/g512 --target tpu7x --out unseen_tpu7x.json
    python -m experiments.studies.library.unseen_shapes gemm_fp8_blockwise/gemm_nt --target h200 --out unseen_h200.json

Shapes are drawn log-uniformly from the box that the table's entries span, in whole multiples of the largest power of
two (at most ``GRAIN``) that divides every entry's size. Beside the choice run all kernels of the library's versions,
``--near`` points one step from them, and ``--drawn`` legal points of the seeds' spaces: what a short campaign on the
shape alone would look at. Outputs are compared with the oracle, sampled. Times of a GPU are of rounds side by side,
those of a TPU modelled. The file is written shape by shape, and a second call goes on where the first stopped. For a
GPU, ``--plans FOLDER`` keeps what is compiled; with ``--compile-only`` that is all that happens, and needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from experiments.studies.records.say import say
from tilewright.evolve.campaign.config import parse_config
from tilewright.evolve.campaign.resolve import Resolved, objection, resolve
from tilewright.evolve.promote.library_writer import LibraryError, LibraryWriter
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Verdict
from tilewright.library import store
from tilewright.seeds.operator import Suite, Workload
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.device.comparison import WALL_SECONDS, compare
from tilewright.workers.device.compile_ahead import CompileAheadStage
from tilewright.workers.device.station import Entry, LocalStation, compile_children
from tilewright.workers.request import Findings, KernelRequest, Limits, Truth

GRAIN = 512
BAR = 0.9
"""Share of the best known rate below which a shape is told."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operator")
    parser.add_argument("--target", required=True)
    parser.add_argument("--library", type=Path, default=Path("library"))
    parser.add_argument("--shapes", type=int, default=50)
    parser.add_argument(
        "--drawn", type=int, default=8, help="points of the seeds' spaces beside the library's kernels"
    )
    parser.add_argument("--near", type=int, default=0, help="points one step from the library's kernels")
    parser.add_argument("--plans", type=Path, help="a GPU's: folder of what is compiled ahead")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    table, genomes, resolved = _library(arguments)
    shapes = random_shapes(table, arguments.shapes, arguments.seed)
    rng = np.random.default_rng([arguments.seed, 1])
    for genome in [
        *_near(resolved, list(genomes.values()), arguments.near, rng),
        *_drawn(resolved, arguments.drawn, rng),
    ]:
        genomes.setdefault(genome.id, genome)
    told: dict[str, Any] = {"operator": arguments.operator, "target": resolved.target.name}
    told |= {"kind": resolved.target.kind.value, "version": table.version.name, "shapes": {}}
    if arguments.out.exists():
        told = json.loads(arguments.out.read_text())
    planned = _Measured(resolved, arguments, shapes, genomes) if resolved.target.measured else None
    if arguments.compile_only:
        return 0
    for shape in shapes:
        if shape.id in told["shapes"]:
            continue
        legal = {name: g for name, g in genomes.items() if objection(resolved, g, shape) is None}
        try:
            chosen = table.choose(tuple(shape.dims[d] for d in table.dimensions)).kernel.name
            legal.setdefault(chosen, genomes[chosen])
        except store.NotServed as error:
            told["shapes"][shape.id] = {"dims": dict(shape.dims), "unserved": str(error)}
        else:
            seconds = planned.seconds(shape, legal) if planned else _modelled(resolved, shape, legal)
            told["shapes"][shape.id] = {"dims": dict(shape.dims), "chosen": chosen, "seconds": seconds}
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
        say(_line(shape.id, told["shapes"][shape.id]))
    for line in summary(told):
        say(line)
    return 0


def _library(arguments: argparse.Namespace) -> tuple[store.Table, dict[str, Genome], Resolved]:
    """The current table, every kernel of any version for the target, and the operator with its seeds."""
    writer = LibraryWriter(arguments.library)
    genomes: dict[str, Genome] = {}
    for version in writer.versions(arguments.operator):
        try:
            _, _, dispatch = writer.version(arguments.operator, version)
        except LibraryError as error:
            say(str(error))
            continue
        kernels = dispatch["targets"].get(arguments.target, {"kernels": {}})["kernels"]
        for name, kernel in kernels.items():
            data = writer.file(arguments.operator, version, kernel["file"], kernel["sha256"])
            genomes[name] = Genome(data.decode("utf-8"), kernel["params"])
    version, receipt, dispatch = writer.version(arguments.operator)
    place = writer.place(arguments.operator) / "versions" / version
    table = store.table(arguments.operator, arguments.target, dispatch, place)
    campaign = receipt["targets"][arguments.target]["campaign"]
    data = {
        "name": "unseen",
        "operator": campaign["operator"],
        "target": arguments.target,
        "suite": campaign["suite"],
        "budget": {"evaluations": 1},
    }
    return table, genomes, resolve(parse_config(data))


def random_shapes(table: store.Table, count: int, seed: int) -> list[Workload]:
    """Distinct shapes between the table's entries, none of them an entry."""
    rng = np.random.default_rng(seed)
    known = {region.dims for region in table.regions}
    found: dict[str, Workload] = {}
    columns = [[region.dims[i] for region in table.regions] for i in range(len(table.dimensions))]
    grains = [min(GRAIN, math.gcd(*column) & -math.gcd(*column)) for column in columns]
    for _ in range(100 * count):
        if len(found) == count:
            break
        dims = []
        for column, grain in zip(columns, grains, strict=True):
            low, high = math.log2(min(column) / 2), math.log2(max(column))
            dims.append(max(grain, round(2 ** rng.uniform(low, high) / grain) * grain))
        if tuple(dims) not in known:
            name = "x".join(map(str, dims))
            found[name] = Workload(name, dict(zip(table.dimensions, dims, strict=True)))
    return list(found.values())


def _modelled(resolved: Resolved, shape: Workload, genomes: Mapping[str, Genome]) -> dict[str, float | str]:
    """Seconds by kernel, or why there are none."""
    suite = Suite("unseen", (shape,), (min(resolved.suite.check, key=resolved.operator.flops),))
    cascade = ModelledCascade(resolved.operator, resolved.target, suite)
    found: dict[str, float | str] = {}
    try:
        for name, genome in genomes.items():
            legal = objection(resolved, genome, suite.check[0]) is None
            only = [shape.id, *([suite.check[0].id] if legal else [])]
            done = cascade.evaluate(genome.id, genome.source, genome.params, seed=1, best=math.inf, only=only)
            good = done.verdict is Verdict.OK
            found[name] = done.workloads[0].seconds if good else f"{done.verdict.value}: {done.reason}"
    finally:
        cascade.close()
    return found


def _drawn(resolved: Resolved, count: int, rng: np.random.Generator) -> Iterable[Genome]:
    for start in resolved.starts:
        space = resolved.space(start.genome.source)
        for _ in range(count // len(resolved.starts)):
            yield Genome(start.genome.source, space.sample(rng))


def _near(
    resolved: Resolved, kernels: Sequence[Genome], count: int, rng: np.random.Generator
) -> Sequence[Genome]:
    """Kernels that differ from a known one in one parameter."""
    found = {}
    for kernel in kernels:
        for parameter, values in resolved.space(kernel.source).parameters.items():
            for value in values:
                if value != kernel.params[parameter]:
                    other = Genome(kernel.source, {**kernel.params, parameter: value})
                    found[other.id] = other
    order = rng.permutation(len(found))[:count]
    return [list(found.values())[i] for i in order]


class _Measured:
    """As ``_modelled``, side by side on the device here; everything is compiled before the first measurement."""

    def __init__(
        self,
        resolved: Resolved,
        arguments: argparse.Namespace,
        shapes: Sequence[Workload],
        genomes: Mapping[str, Genome],
    ) -> None:
        self._resolved, self._rounds = resolved, arguments.rounds
        self._folder: Path | None = arguments.plans
        self._plans: dict[str, Mapping[str, bytes] | str] = {}
        with ThreadPoolExecutor(8) as pool:
            made = pool.map(lambda genome: self._planned(genome, shapes), genomes.values())
            self._plans = dict(zip(genomes, made, strict=True))
        self._station = None if arguments.compile_only else LocalStation(resolved.target.gpu)

    def _planned(self, genome: Genome, shapes: Sequence[Workload]) -> Mapping[str, bytes] | str:
        """Plans by shape, or why there are none."""
        legal = tuple(shape for shape in shapes if objection(self._resolved, genome, shape) is None)
        place = self._folder / genome.id if self._folder else None
        if place is not None and place.exists():
            return {path.stem: path.read_bytes() for path in place.glob("*.plan")}
        if not legal:
            return {}
        operator, found = self._resolved.operator, Findings()
        request = KernelRequest(
            operator=operator,
            truth=Truth(operator),
            target=self._resolved.target,
            limits=Limits(compile=ChildLimits(WALL_SECONDS)),
            seed=1,
            measured=legal,
            source=genome.source,
            params=genome.params,
        )
        compiler = compile_children(self._resolved.target.gpu)
        try:
            failure = CompileAheadStage(compiler).run(request, found)
        finally:
            compiler.close()
        say(f"{genome.id}: {len(found.plans)} plans" if failure is None else f"{genome.id}: {failure.reason}")
        if failure is not None:
            return f"{failure.verdict.value}: {failure.reason}"
        if place is not None:
            place.mkdir(parents=True)
            for name, data in found.plans.items():
                (place / f"{name}.plan").write_bytes(data)
        return found.plans

    def seconds(self, shape: Workload, genomes: Mapping[str, Genome]) -> dict[str, float | str]:
        """Seconds by kernel, or why there are none. Raises SessionDied, OSError."""
        assert self._station is not None
        entries, failed = [], {}
        for name, genome in genomes.items():
            plans = self._plans[name]
            if isinstance(plans, str):
                failed[name] = plans
            elif shape.id in plans:
                entries.append(
                    Entry(name, genome.source, dict(genome.params), plans={shape.id: plans[shape.id]})
                )
        resolved = self._resolved
        done = compare(
            self._station, resolved.operator, resolved.target, [shape], entries, 1, (self._rounds, 2)
        )
        return {**failed, **done.failed, **{name: done.seconds(shape.id, name) for name in done.genomes}}


def _share(row: Mapping[str, Any]) -> float | None:
    """The chosen kernel's rate over the best known one's; 0 where it failed, None for an unserved shape."""
    if "seconds" not in row:
        return None
    times = {name: s for name, s in row["seconds"].items() if isinstance(s, float)}
    return min(times.values()) / times[row["chosen"]] if row["chosen"] in times else 0.0


def _line(name: str, row: Mapping[str, Any]) -> str:
    share = _share(row)
    if share is None:
        return f"{name}: {row['unserved']}"
    chosen = row["seconds"][row["chosen"]]
    took = f"{chosen * 1e6:.2f} us" if isinstance(chosen, float) else chosen
    return f"{name}: {took}, {share:.3f} of the best of {len(row['seconds'])} known"


def summary(told: Mapping[str, Any]) -> Sequence[str]:
    """Share of the best over all shapes, the worst three, and those below the bar."""
    shares = {name: share for name, row in told["shapes"].items() if (share := _share(row)) is not None}
    where = f"{told['operator']} for {told['target']}, {told['kind']}"
    if not shares:
        return [f"{where}: no shape is served"]
    worst = sorted(shares, key=shares.__getitem__)[:3]
    good = [share for share in shares.values() if share > 0]
    mean = math.exp(sum(map(math.log, good)) / len(good)) if good else 0.0
    below = sum(share < BAR for share in shares.values())
    return [
        f"{where}: {len(shares)} of {len(told['shapes'])} unseen shapes served, {mean:.3f} of the best known in the "
        f"geometric mean, {below} below {BAR}",
        "worst: " + ", ".join(f"{name} {shares[name]:.3f}" for name in worst),
    ]


if __name__ == "__main__":
    sys.exit(main())
