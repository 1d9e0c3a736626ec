"""The TPU time model against every published kernel time that was found: an error table.

    python -m experiments.studies.tpu.calibration

Compiles and simulates the published kernels (own sources of the same schedules; XLA's own dot) for the chip in
question and writes ``experiments/records/tpu/tpu_calibration.{md,csv}``. Runs too long to simulate whole are
scaled from
shorter ones of the same schedule, and the scaling is checked where both can be run. No TPU is needed. What was
simulated with the same versions is read from ``tpu_calibration_runs.json`` instead; with ``--minutes`` the command
stops early and goes on when it is called again. Everything anew takes about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from experiments.studies.tpu.published import LARGE, MATMULS, SMALL, STREAMS, Matmul
from testkit import RECORDS
from tilewright.fitness.chips import CHIPS, Chip
from tilewright.fitness.tpu import simulation
from tilewright.fitness.tpu.llo import ParseError, read_profile
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.run_once import ChildLimits, run_child, temporary_folder
from tilewright.workers.toolchains import libtpu_simulator

OUT = RECORDS / "tpu" / "tpu_calibration"

XLA = """
import jax.numpy as jnp

def build(params):
    return lambda x, y: jnp.dot(x, y)
"""

PALLAS = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def kernel(x, y, out, total, *, steps, transposed, relu):
    @pl.when(pl.program_id(2) == 0)
    def start():
        total[...] = jnp.zeros_like(total)

    contracted = 1 if transposed else 0
    total[...] += lax.dot_general(
        x[...], y[...], (((1,), (contracted,)), ((), ())), preferred_element_type=jnp.float32
    )

    @pl.when(pl.program_id(2) == steps - 1)
    def end():
        value = jnp.maximum(total[...], 0.0) if relu else total[...]
        out[...] = value.astype(out.dtype)

def build(params):
    bm, bk, bn, transposed = params["bm"], params["bk"], params["bn"], params["transposed"]

    def product(x, y):
        (m, k), n = x.shape, y.shape[0 if transposed else 1]
        rhs = pl.BlockSpec((bn, bk), lambda i, j, s: (j, s)) if transposed else pl.BlockSpec(
            (bk, bn), lambda i, j, s: (s, j))
        return pl.pallas_call(
            lambda *refs: kernel(*refs, steps=k // bk, transposed=transposed, relu=params["relu"]),
            grid=(m // bm, n // bn, k // bk),
            in_specs=[pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)), rhs],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
            name="matmul",
        )(x, y)

    return product
"""


@dataclass(frozen=True)
class Cost:
    """What the model says: simulated cycles, bytes to and from HBM, DMAs."""

    cycles: float
    size: float
    dmas: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cycles + other.cycles, self.size + other.size, self.dmas + other.dmas)

    def __mul__(self, factor: float) -> Cost:
        return Cost(self.cycles * factor, self.size * factor, self.dmas * factor)

    def seconds(self, chip: Chip) -> float:
        """The first version of the time model."""
        return max(self.cycles / chip.clock, self.size / chip.copy)

    def latency(self, chip: Chip) -> float:
        """The ``dma_latency`` figure of a diagnosis."""
        return chip.dma_latency * self.dmas / self.cycles


def simulate(chip: Chip, source: str, params: dict[str, Any], m: int, n: int, k: int) -> Cost:
    """Compile and simulate one product of bfloat16 matrices, the right one as (n, k) if ``transposed``."""
    rhs = [n, k] if params.get("transposed") else [k, n]
    workload: dict[str, Any] = {
        "id": "w",
        "inputs": [
            {"name": "x", "shape": [m, k], "dtype": "bfloat16"},
            {"name": "y", "shape": rhs, "dtype": "bfloat16"},
        ],
        "outputs": [{"name": "z", "shape": [m, n], "dtype": "bfloat16"}],
    }
    limits = ChildLimits(600.0, 14 << 30)
    with temporary_folder() as folder:
        trace = {
            "source": source,
            "params": params,
            "chip": {"kind": chip.device_kind, "cores": chip.cores},
            "workloads": [workload],
            "check": [],
        }
        traced = run_child(
            Frame("pallas.trace", trace),
            limits,
            folder,
            extra_environment=libtpu_simulator.trace_environment(),
        ).first("traced")
        assert traced is not None
    with temporary_folder() as folder:
        workload["calling_convention"] = traced.data["calling_convention"]
        job = {"topology": chip.topology, "workloads": [workload], "facts_only": []}
        outcome = run_child(
            Frame("pallas.compile", job, blobs={"w": traced.blobs["module"]}),
            limits,
            folder,
            extra_environment=libtpu_simulator.compile_environment(folder),
        )
        compiled = outcome.first("compiled")
        if compiled is None:
            raise RuntimeError(outcome.detail + outcome.log[-500:])
        kept = folder / compiled.data["folder"]
        try:
            run = simulation.read_dumps(kept, chip)
        except ParseError:  # some of XLA's own DMAs have sizes of the run: the least that must move is taken
            profiles = [read_profile(path.read_text()) for path in kept.glob("prof/*_profile.textproto")]
            return Cost(sum(p.cycles * p.count for p in profiles), 2 * (m * k + k * n + m * n), 0)
    return Cost(run.cycles, run.executed.hbm_bytes, run.executed.hbm_dmas)


class OutOfTime(Exception):
    """The time asked for is over."""


class Model:
    """Costs of published kernels; what was simulated once with these versions is kept in ``path``."""

    def __init__(self, path: Path, minutes: float) -> None:
        self._path = path
        self._deadline = time.monotonic() + 60 * minutes
        self._all: dict[str, dict[str, list[float]]] = json.loads(path.read_text()) if path.is_file() else {}
        versions = " ".join(f"{name} {version}" for name, version in libtpu_simulator.toolchain().items())
        self._known = self._all.setdefault(versions, {})

    def cost(self, point: Matmul) -> tuple[Cost, str]:
        """Of a published kernel, and how it was come by."""
        if point.tiles is None:
            return self._xla(point.chip, point.size)
        bm, bk, bn = point.tiles
        shape = (point.size // bm, point.size // bn, point.size // bk)
        if point.size == 1024:
            return self.pallas(point, *shape), "whole"
        return self.fitted(point, *shape), "fitted"

    def pallas(self, point: Matmul, rows: int, columns: int, steps: int) -> Cost:
        """A Pallas kernel on ``rows`` x ``columns`` tiles with ``steps`` each."""
        assert point.tiles is not None
        bm, bk, bn = point.tiles
        relu, transposed = point.variant == "relu", point.variant == "transposed rhs"
        params = {"bm": bm, "bk": bk, "bn": bn, "relu": relu, "transposed": transposed}
        return self._simulate(point.chip, PALLAS, params, rows * bm, columns * bn, steps * bk)

    def fitted(self, point: Matmul, rows: int, columns: int, steps: int) -> Cost:
        """The same from three short runs: a start, a cost per step and a cost per tile."""
        small = point.tiles == (128, 128, 128)
        r, s = (4, 8) if small else (2, 2)
        base = self.pallas(point, r, r, s)
        longer = self.pallas(point, r, r, 2 * s)
        wider = self.pallas(point, 2 * r, r, s)
        per_step = (longer + base * -1) * (1 / (r * r * s))
        per_tile = (wider + base * -1 + per_step * -(r * r * s)) * (1 / (r * r))
        start = base + per_step * -(r * r * s) + per_tile * -(r * r)
        return start + per_step * (rows * columns * steps) + per_tile * (rows * columns)

    def _xla(self, chip: str, size: int) -> tuple[Cost, str]:
        if size <= 4096:
            return self._simulate(chip, XLA, {}, size, size, size), "whole"
        parts = (size // 4096) ** 3
        return self._simulate(chip, XLA, {}, 4096, 4096, 4096) * parts, f"{parts} x 4096^3"

    def scaling_errors(self) -> dict[str, float]:
        """What scaling gives over what a run of the whole gives, less 1."""
        found = {}
        for tiles, size in ((SMALL, 1024), (LARGE, 4096)):
            point = next(p for p in MATMULS if p.tiles == tiles and p.size == size and p.variant == "plain")
            shape = [size // tile for tile in (tiles[0], tiles[2], tiles[1])]
            ratio = self.fitted(point, *shape).cycles / self.pallas(point, *shape).cycles
            found[f"the {point.kernel} kernel of {size} on v5e"] = ratio - 1
        return found

    def _simulate(self, chip: str, source: str, params: dict[str, Any], m: int, n: int, k: int) -> Cost:
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        key = f"{chip} {digest} {json.dumps(params, sort_keys=True)} {m}x{n}x{k}"
        if key not in self._known:
            if time.monotonic() > self._deadline:
                raise OutOfTime
            began = time.monotonic()
            cost = simulate(CHIPS[chip], source, params, m, n, k)
            self._known[key] = [cost.cycles, cost.size, cost.dmas]
            self._path.write_text(json.dumps(self._all, indent=1) + "\n", encoding="utf-8")
            sys.stderr.write(f"{key} {time.monotonic() - began:.1f} s\n")
        return Cost(*self._known[key])


def dispatch_seconds() -> float:
    """The host's part of the guide's wall times: XLA's smallest product less what the matrix units need for it."""
    smallest = next(p for p in MATMULS if p.dispatch and p.tiles is None and p.size == 1024)
    return smallest.published - 2 * smallest.size**3 / CHIPS[smallest.chip].peaks["bf16"]


def rows(model: Model) -> list[dict[str, Any]]:
    """One for each published time; seconds as microseconds, errors in per cent of the published time."""
    found = []
    dispatch = dispatch_seconds()
    for point in MATMULS:
        chip = CHIPS[point.chip]
        cost, how = model.cost(point)
        device = point.published - (dispatch if point.dispatch else 0.0)
        seconds = cost.seconds(chip)
        found.append(
            {
                "source": point.source,
                "chip": point.chip,
                "kernel": point.kernel,
                "shape": f"{point.size}^3",
                "published_us": point.published * 1e6,
                "device_us": device * 1e6,
                "modelled_us": seconds * 1e6,
                "core_us": cost.cycles / chip.clock * 1e6,
                "hbm_us": cost.size / chip.copy * 1e6,
                "error_percent": 100 * (seconds / device - 1),
                "dma_latency": cost.latency(chip),
                "flag": "small blocks" if cost.latency(chip) > simulation.LATENCY_LIMIT else "",
                "simulated": how,
            }
        )
    for stream in STREAMS:
        chip = CHIPS[stream.chip]
        seconds = stream.size / chip.copy
        found.append(
            {
                "source": stream.source,
                "chip": stream.chip,
                "kernel": stream.what,
                "shape": "",
                "published_us": stream.published * 1e6,
                "device_us": stream.published * 1e6,
                "modelled_us": seconds * 1e6,
                "core_us": 0.0,
                "hbm_us": seconds * 1e6,
                "error_percent": 100 * (seconds / stream.published - 1),
                "dma_latency": 0.0,
                "flag": "",
                "simulated": "HBM term only",
            }
        )
    return found


def markdown(found: Sequence[dict[str, Any]], model: Model) -> str:
    """The report."""
    versions = ", ".join(f"{name} {version}" for name, version in libtpu_simulator.toolchain().items())
    lines = [
        "# The TPU time model against published times",
        "",
        f"`python -m experiments.studies.tpu.calibration`, {time.strftime('%Y-%m-%d', time.gmtime())}, {versions}. "
        "Published times are measured by their sources (`experiments/studies/tpu/published.py` "
        "names them); *modelled* is our model's time for the same schedule; device = published less "
        f"{dispatch_seconds() * 1e6:.1f} us of dispatch where wall times were published. "
        "Error = modelled / device - 1.",
        "",
        "| source | chip | kernel | shape | device, us | modelled, us | error | latency | simulated |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        flag = f" ({row['flag']})" if row["flag"] else ""
        lines.append(
            f"| {row['source']} | {row['chip']} | {row['kernel']} | {row['shape']} | {row['device_us']:.1f} | "
            f"{row['modelled_us']:.1f} | {row['error_percent']:+.1f} % | {row['dma_latency']:.2f}{flag} | "
            f"{row['simulated']} |"
        )
    lines += [
        "",
        "## Summary",
        "",
        "| chip | rows | median error | median of absolute errors |",
        "| --- | --- | --- | --- |",
    ]
    groups = {
        "v5e matmul, not flagged, 4096 and up": lambda r: (
            r["chip"] == "v5e" and not r["flag"] and r["shape"][:2] in ("40", "81")
        ),
        "v5e matmul, flagged": lambda r: r["chip"] == "v5e" and bool(r["flag"]),
        "tpu7x matmul, 4096 and up": lambda r: r["chip"] == "tpu7x" and r["shape"][:2] in ("40", "16", "32"),
        "v5e, HBM term": lambda r: r["chip"] == "v5e" and not r["shape"],
        "tpu7x, HBM term": lambda r: r["chip"] == "tpu7x" and not r["shape"],
    }  # fmt: skip
    for name, belongs in groups.items():
        errors = [row["error_percent"] for row in found if belongs(row)]
        if errors:
            lines.append(
                f"| {name} | {len(errors)} | {median(errors):+.1f} % | {median(map(abs, errors)):.1f} % |"
            )
    ratios = [1 + row["error_percent"] / 100 for row in found if groups["tpu7x matmul, 4096 and up"](row)]
    lines += [
        "",
        f"A clock of {CHIPS['tpu7x'].clock * median(ratios) / 1e9:.2f} GHz instead of "
        f"{CHIPS['tpu7x'].clock / 1e9:g} would bring the median of the large tpu7x products to 0.",
        "",
        "latency: the fixed latencies of all DMAs over the cycles; above "
        f"{simulation.LATENCY_LIMIT:g} a time is flagged. "
        "XLA's larger products are taken for as many of 4096^3, which leaves out what a longer sum saves. Rows of "
        "1024^3 from the guide are the small rest of a wall time that is mostly dispatch. "
        "Fitted rows come from three short runs of the same schedule; where the whole can be run, the fit is off by "
        + ", ".join(f"{100 * error:+.1f} % ({what})" for what, error in model.scaling_errors().items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="path of the results without an ending")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no simulation after this long")
    told = parser.parse_args(arguments)
    model = Model(told.out.with_name(f"{told.out.name}_runs.json"), told.minutes)
    try:
        found = rows(model)
        report = markdown(found, model)
    except OutOfTime:
        sys.stderr.write("out of time; call again to go on\n")
        return 1
    told.out.with_suffix(".md").write_text(report, encoding="utf-8")
    with told.out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        for row in found:
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
