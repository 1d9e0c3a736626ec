"""Tables of our own recordings, in the format of ``experiments/spaces``, one for each shape.

    python -m experiments.studies.search.own_spaces

reads the recorded sweeps in ``experiments/records`` and writes ``experiments/spaces/own/SUITE-SHAPE.json`` and
``.csv.gz``. Shapes of one suite have the same parameters, so what one taught can serve the next. Times are
measured on the H200 and modelled on the tpu7x; ``source`` says which.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from testkit import RECORDS, SPACES
from tilewright.evolve.space.genome import Value
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator

OWN = SPACES / "own"

Point = tuple[Mapping[str, Value], float | None]
"""Parameters and milliseconds, None for a failure."""

_GEMM_DEFAULTS: Mapping[str, Value] = {
    "kernel": "gluon_ws",
    "group_m": 0,
    "stages": 0,
    "slots": 0,
    "block_n": 0,
    "programs": 0,
    "stagger": 0,
}
"""0 stands for what the kernel does when it is not told."""


def quantisers() -> Iterator[tuple[str, str, list[Point]]]:
    """(suite, shape, points) of the H200 quantiser sweep: 62 variants of each of three kernels, two shapes."""
    told = json.loads((RECORDS / "h200_fp8" / "h200_quantiser_variants.json").read_text())["results"]
    for kernel in dict.fromkeys(row["kernel"] for row in told):
        rows = [row for row in told if row["kernel"] == kernel]
        for shape in sorted(name for name in rows[0] if name.startswith("(")):
            points = [(row["params"], row[shape][0] / 1e3 if not row["mismatches"] else None) for row in rows]
            yield f"h200-{kernel}", _plain(shape), points


def products() -> Iterator[tuple[str, str, list[Point]]]:
    """The same of the H200 blockwise product: two sweeps of variants over twelve shapes, bursts only."""
    sweeps = json.loads((RECORDS / "h200_fp8" / "h200_gemm_nt_variants.json").read_text())
    times: dict[str, dict[str, list[float]]] = {}
    for sweep in (sweep for sweep in sweeps if sweep["regime"] == "bursts"):
        for number, shape, milliseconds, *_ in sweep["results"]:
            if isinstance(number, int):
                name = " ".join(part for part in sweep["variants"][number].split() if part != "stagger=0")
                times.setdefault(_plain(str(tuple(shape))), {}).setdefault(name, []).append(milliseconds)
    for shape, variants in times.items():
        yield "h200-gemm_nt", shape, [(_params(name), min(ms)) for name, ms in variants.items()]


def schedules() -> Iterator[tuple[str, str, list[Point]]]:
    """The same of the tpu7x: the schedules of ``gemm_fp8_fused/g512`` that were costed on the most shapes."""
    kernel = load_operator("gemm_fp8_fused/g512").kernels["fused"]
    defaults = read_declarations(kernel.source).defaults
    lines = (RECORDS / "tpu" / "tpu7x_fused_schedules.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if (row["kernel"], row["recipe"]) == ("fused", "g512")]
    by_shape: dict[str, dict[str, float]] = {}
    for row in rows:
        shape = f"{row['M']}x{row['N']}x{row['K']}"
        by_shape.setdefault(shape, {})[json.dumps(row["changed"], sort_keys=True)] = row["modelled_us"] / 1e3
    sets = Counter(frozenset(times) for times in by_shape.values())
    common = max(sets, key=lambda schedules: (sets[schedules], len(schedules)))
    names = dict.fromkeys(name for schedule in sorted(common) for name in json.loads(schedule))
    for shape, times in by_shape.items():
        if set(times) == common:
            yield (
                "tpu7x-fused_g512",
                shape,
                [
                    (
                        {name: json.loads(schedule).get(name, defaults[name]) for name in names},
                        times[schedule],
                    )
                    for schedule in sorted(common)
                ],
            )


def factorial() -> Iterator[tuple[str, str, list[Point]]]:
    """The same of the tpu7x: a factorial design over the main parameters of ``gemm_fp8_fused/g512``."""
    rows = [
        json.loads(line)
        for line in (RECORDS / "tpu" / "tpu7x_fused_factorial.jsonl").read_text().splitlines()
    ]
    for shape in rows[0]["modelled_us"]:
        times = [row["modelled_us"][shape] for row in rows]
        points = [
            (row["params"], None if us is None else us / 1e3) for row, us in zip(rows, times, strict=True)
        ]
        yield "tpu7x-factorial_g512", shape, points


def kernels() -> Iterator[tuple[str, str, list[Point], list[str]]]:
    """The same of whole spaces of H200 seeds, with the seeds' own constraints: what ``kernel_points`` measured."""
    with gzip.open(RECORDS / "search" / "h200_kernel_points.json.gz", "rt") as file:
        told = json.load(file)["kernels"]
    for kernel, found in told.items():
        operator = load_operator(found["recipe"])
        names, source = found["parameters"], operator.kernels[kernel].source
        limits = _limits(source, {**operator.constants, **load_target("h200").constants}, set(names))
        for number, shape in enumerate(found["shapes"]):
            points = [(dict(zip(names, row[0], strict=True)), row[2][number]) for row in found["points"]]
            yield f"h200-space_{kernel}", shape, points, limits


def _limits(source: str, constants: Mapping[str, float], names: set[str]) -> list[str]:
    """Constraints that speak of parameters and of nothing that differs between shapes."""

    class Fixed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Constant(constants[node.id]) if node.id in constants else node

    fixed = [Fixed().visit(ast.parse(text, mode="eval")) for text in read_declarations(source).constraints]
    told = [(tree, {leaf.id for leaf in ast.walk(tree) if isinstance(leaf, ast.Name)}) for tree in fixed]
    return [ast.unparse(tree) for tree, spoken in told if spoken and spoken <= names]


def write(folder: Path, suite: str, shape: str, points: Sequence[Point], limits: Sequence[str] = ()) -> None:
    """One table: SUITE-SHAPE.json and SUITE-SHAPE.csv.gz; constraints, where a suite states them."""
    names = list(points[0][0])
    parameters = {name: _ordered(params[name] for params, _ in points) for name in names}
    kind = "measured" if suite.startswith("h200") else "modelled"
    valid = [ms for _, ms in points if ms is not None]
    told = {
        "name": f"{suite}-{shape}",
        "kernel": suite,
        "source": f"own recording, experiments/records, times {kind} ({suite.split('-')[0]})",
        "parameters": parameters,
        "constraints": list(limits),
        "rows": len(points),
        "optimum_ms": min(valid),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{suite}-{shape}.json").write_text(json.dumps(told, indent=1) + "\n")
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*names, "time_ms"])
    writer.writerows(
        [*(params[n] for n in names), "" if ms is None else f"{ms:.7g}"] for params, ms in points
    )
    # Without a time stamp the same recording gives the same bytes.
    (folder / f"{suite}-{shape}.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _ordered(values: Iterator[Value]) -> list[Value]:
    distinct = list(dict.fromkeys(values))
    return distinct if any(isinstance(v, str) for v in distinct) else sorted(distinct)


def _plain(shape: str) -> str:
    return shape.strip("()").replace(", ", "x")


def _params(variant: str) -> dict[str, Value]:
    kernel, *settings = variant.split()
    told: dict[str, Value] = {k: int(v) for k, v in (setting.split("=") for setting in settings)}
    return {**_GEMM_DEFAULTS, "kernel": kernel, **told}


def main() -> None:
    for part in (quantisers, products, schedules, factorial, kernels):
        for suite, shape, points, *limits in part():
            write(OWN, suite, shape, points, *limits)
            sys.stdout.write(f"{suite} {shape}: {len(points)} points\n")


if __name__ == "__main__":
    main()
