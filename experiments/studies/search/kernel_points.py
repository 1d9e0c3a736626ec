"""Every point of a seed's space on one H200: the tables of ``own_spaces`` that come from whole kernels.

    python -m experiments.studies.search.kernel_points compile --plans PLANS --processes 8 --seconds 200
    python -m experiments.studies.search.kernel_points measure --plans PLANS --out h200_kernel_points.json --seconds 90

``compile`` needs no GPU: a plan for each point and shape, and what the compiled code says of itself (registers and
bytes of stack of a thread, bytes of code, shared memory and threads of a block). ``measure`` launches the plans in a
random order: answers must be those of the seed's own point, then the median of three calls counts (device time, L2
flushed before each). A process that hangs or dies costs the point it was at.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testkit.compile_ahead import compiled, described, start
from tilewright.evolve.space.space import Space, read_declarations
from tilewright.fitness.targets import load_target
from tilewright.library.plans.format import Plan
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Operator, SeedKernel, Workload

Json = dict[str, Any]

QUIET_SECONDS = 20.0
"""A measuring process that writes nothing for so long hangs."""

LEAST_DB = 40.0
CALLS = 3
FLUSH_BYTES = 1 << 28
SPIN_CYCLES = 200_000


@dataclass(frozen=True)
class Recorded:
    """A seed whose points are recorded; of ``only`` parameters only these values, and of the rest all."""

    recipe: str
    kernel: str
    only: Mapping[str, Sequence[Any]]

    @property
    def operator(self) -> Operator:
        return load_operator(self.recipe)

    def shapes(self) -> dict[str, Workload]:
        """By name; ``primus-few`` of the recipe."""
        workloads = self.operator.suites["primus-few"].workloads
        return {workload.id.replace("/", "-"): workload for workload in workloads}

    def seed(self) -> tuple[SeedKernel, Json]:
        """The kernel and its own point."""
        kernel = self.operator.kernels[self.kernel]
        return kernel, {**read_declarations(kernel.source).defaults, **kernel.overrides}

    def points(self) -> list[Json]:
        """Legal on every shape, the seed's own point first, then in a random order."""
        kernel, own = self.seed()
        fixed = {**self.operator.constants, **load_target("h200").constants}
        constants = [{**fixed, **workload.dims} for workload in self.shapes().values()]
        space = Space.from_source(kernel.source, constants)
        assert space.points is not None
        found = [space.decode(row) for row in space.points]
        kept = [p for p in found if all(p[name] in values for name, values in self.only.items()) and p != own]
        order = np.random.default_rng(7).permutation(len(kept))
        return [own, *(kept[k] for k in order)]


RECORDED = (
    Recorded("gemm_fp8_blockwise/gemm_nt", "pointer", {}),
    Recorded(
        "gemm_fp8_blockwise/gemm_nt",
        "gluon_ws",
        {"group_m": (1, 8, 32), "consumer_regs": (240,)},
    ),
    Recorded(
        "gemm_fp8_blockwise/quant_dual",
        "quant_dual_tma",
        {"maxnreg": (0, 96), "programs": (132, 264, 528), "stages": (1, 3), "piece_m": (8, 16)},
    ),
)


# -- compiling -------------------------------------------------------------------------------------------------


def compile_point(source: str, point: Json, workloads: list[Json], stem: str) -> tuple[str, Json]:
    """Plans ``stem.SHAPE.plan``: why there are none, or nothing; and what the code says of itself."""
    wrong, plans = compiled(source, point, workloads)
    for name, blob in plans.items():
        Path(f"{stem}.{name}.plan").write_bytes(blob)
    return wrong, {} if wrong else facts(Plan.from_bytes(next(iter(plans.values()))))


def facts(plan: Plan) -> Json:
    """Of the kernel that has most code: per thread ``registers`` and ``stack`` bytes, ``code`` bytes, per block
    ``shared`` bytes and ``threads``."""
    launch = max(plan.launches, key=lambda one: len(plan.codes[one.code]))
    found: Json = {
        "registers": 0,
        "stack": 0,
        "code": 0,
        "shared": launch.shared,
        "threads": 32 * launch.warps,
    }
    for name, size, text in _sections(plan.codes[launch.code]):
        if name.startswith(".text."):
            found["code"] += size
        elif name == ".nv.info":
            for attribute, value in _attributes(text):
                if (what := _FACTS.get(attribute)) is not None:
                    found[what] = max(found[what], value)
    return found


_FACTS = {0x2F: "registers", 0x12: "stack"}
"""Attributes of ``.nv.info``: each holds the number of a function and a value."""


def _sections(code: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, size and bytes of each section of an ELF file."""
    (begin,) = struct.unpack_from("<Q", code, 40)
    size, count, names = struct.unpack_from("<HHH", code, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", code, begin + size * k) for k in range(count)]
    strings = code[rows[names][4] : rows[names][4] + rows[names][5]]
    for row in rows:
        name = strings[row[0] : strings.index(b"\0", row[0])].decode()
        yield name, row[5], b"" if row[1] == 8 else code[row[4] : row[4] + row[5]]


def _attributes(text: bytes) -> Iterator[tuple[int, int]]:
    place = 0
    while place + 4 <= len(text):
        form, attribute, size = struct.unpack_from("<BBH", text, place)
        place += 4
        if form == 4:
            if size == 8:
                yield attribute, struct.unpack_from("<I", text, place + 4)[0]
            place += size


def compile_all(options: argparse.Namespace) -> None:
    """Plans of every point, and ``index.json``, which says what each is."""
    options.plans.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    pool = ProcessPoolExecutor(
        options.processes,
        multiprocessing.get_context("spawn"),
        initializer=start,
        initargs=(str(options.plans / "cache"),),
    )
    futures = {}
    queues = []
    for recorded in RECORDED:
        operator, kernel = recorded.operator, recorded.seed()[0]
        workloads = [
            {"id": name, "inputs": described(operator.inputs(w)), "outputs": described(operator.outputs(w))}
            for name, w in recorded.shapes().items()
        ]
        queues.append(
            [
                (recorded.kernel, k, kernel.source, p, workloads)
                for k, p in enumerate(recorded.points()[: options.most])
            ]
        )
    longest = max(len(queue) for queue in queues)
    for turn in range(
        longest
    ):  # all kernels side by side, so that time that runs out costs each of them its rest
        for queue in queues:
            for name, k, source, point, workloads in queue[turn : turn + 1]:
                stem = str(options.plans / f"{name}-{k}")
                future = pool.submit(compile_point, source, point, workloads, stem)
                futures[future] = {"kernel": name, "number": k, "params": point}
    rows: list[Json] = []
    try:
        for future in as_completed(futures, timeout=max(1.0, options.seconds - (time.monotonic() - begun))):
            row = futures[future]
            row["error"], row["facts"] = future.result()
            rows.append(row)
    except TimeoutError:
        sys.stderr.write(f"{len(futures) - len(rows)} of {len(futures)} points were not compiled in time\n")
    (options.plans / "index.json").write_text(json.dumps(rows))
    sys.stderr.write(f"{len(rows)} points in {time.monotonic() - begun:.0f} s\n")
    for child in list(getattr(pool, "_processes", {}).values()):
        child.kill()


# -- measuring -------------------------------------------------------------------------------------------------


class Bench:
    """Operands of one shape, the answers of the seed's own point, and times of others."""

    def __init__(self, plans: Path, recorded: Recorded, shape: str) -> None:
        import torch

        from experiments.studies.h200.mx_measure import operands

        self._torch, self._plans, self._shape = torch, plans, shape
        self._kernel = recorded.kernel
        self._operands = operands(recorded.operator, recorded.shapes()[shape])
        self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32)
        self._wanted: list[Any] | None = None

    def measure(self, number: int) -> Json:
        """``ms``, or ``error``. Raises RuntimeError where the device's context is lost."""
        from tilewright.library.plans.replay import Ready

        torch = self._torch
        blob = (self._plans / f"{self._kernel}-{number}.{self._shape}.plan").read_bytes()
        plan = Plan.from_bytes(blob)
        buffers = [torch.full((size,), 0xFF, dtype=torch.uint8) for size in plan.buffers]
        addresses = [self._operands[t.name].data_ptr() for t in plan.inputs] + [b.data_ptr() for b in buffers]
        ready, stream = Ready(plan), torch.cuda.current_stream().cuda_stream
        ready(addresses, stream)
        torch.cuda.synchronize()
        made = []
        for output in plan.outputs:
            part = buffers[output.buffer][output.offset : output.offset + output.bytes]
            made.append(part.view(getattr(torch, output.dtype)).view(output.shape))
        if self._wanted is None:
            self._wanted = [tensor.clone() for tensor in made]
        for got, wanted in zip(made, self._wanted, strict=True):
            one, other = got.reshape(-1)[:: 1 + got.numel() // 4_000_000].float(), wanted.reshape(-1)
            other = other[:: 1 + wanted.numel() // 4_000_000].float()
            noise = (one - other).square().sum().item()
            if not noise <= other.square().sum().item() * 10 ** (-LEAST_DB / 10):
                return {"error": "wrong"}
        pairs = []
        for _ in range(CALLS):
            self._flush.zero_()
            torch.cuda._sleep(SPIN_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            ready(addresses, stream)
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return {"ms": round(float(np.median([begin.elapsed_time(end) for begin, end in pairs])), 5)}


def measure_child(options: argparse.Namespace) -> None:
    """Whatever ``progress`` does not hold yet, a line before and after each."""
    import torch

    torch.set_default_device("cuda")
    lines = _lines(options.progress)
    seen = {(line["kernel"], line["number"], line["shape"]) for line in lines if "number" in line}
    rows = json.loads((options.plans / "index.json").read_text())
    with options.progress.open("a", buffering=1) as progress:
        if not lines:
            from experiments.studies.h200.stamp import stamp

            progress.write(json.dumps(stamp("python -m experiments.studies.search.kernel_points")) + "\n")
        for recorded in RECORDED:
            mine = [r for r in rows if r["kernel"] == recorded.kernel and not r["error"]]
            mine.sort(key=lambda row: row["number"])
            for shape in recorded.shapes():
                todo = [row for row in mine if (recorded.kernel, row["number"], shape) not in seen]
                if not todo:
                    continue
                bench = Bench(options.plans, recorded, shape)
                if mine[0] is not todo[0]:
                    bench.measure(mine[0]["number"])
                for row in todo:
                    told = {"kernel": recorded.kernel, "number": row["number"], "shape": shape}
                    progress.write(json.dumps(told) + "\n")
                    try:
                        told |= bench.measure(row["number"])
                    except RuntimeError as error:
                        told["error"] = str(error).splitlines()[0][:120]
                        progress.write(json.dumps(told) + "\n")
                        torch.cuda.synchronize()  # raises where the context is lost: the next process goes on
                    else:
                        progress.write(json.dumps(told) + "\n")
                del bench
                torch.cuda.empty_cache()


def _lines(path: Path) -> list[Json]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def measure_all(options: argparse.Namespace) -> None:
    """Children until everything is measured or the time is over; then one file."""
    progress = options.out.with_suffix(".progress.jsonl")
    begun, command = time.monotonic(), [sys.executable, "-m", "experiments.studies.search.kernel_points"]
    command += ["child", "--plans", str(options.plans), "--progress", str(progress)]
    code: int | None = 1
    while code and time.monotonic() - begun < options.seconds:
        size, changed = -1, time.monotonic()
        child = subprocess.Popen(command)
        while (code := child.poll()) is None:
            time.sleep(0.2)
            now = progress.stat().st_size if progress.exists() else 0
            if now != size:
                size, changed = now, time.monotonic()
            if time.monotonic() - begun > options.seconds or time.monotonic() - changed > QUIET_SECONDS:
                child.kill()
                child.wait()
    write(options)


def write(options: argparse.Namespace) -> None:
    """By kernel: names of parameters and facts, and a row for each point: values, facts, milliseconds by shape (null
    where it failed)."""
    lines = _lines(options.out.with_suffix(".progress.jsonl"))
    rows = json.loads((options.plans / "index.json").read_text())
    told: Json = {**lines[0], "unit": "ms", "kernels": {}}
    for recorded in RECORDED:
        times: dict[int, dict[str, float | None]] = {}
        for line in lines[1:]:
            if line["kernel"] == recorded.kernel:
                times.setdefault(line["number"], {})[line["shape"]] = line.get("ms")
        mine = sorted((r for r in rows if r["kernel"] == recorded.kernel), key=lambda row: row["number"])
        shapes = list(recorded.shapes())
        points = []
        for row in mine:
            by_shape = {} if row["error"] else times.get(row["number"], {})
            if row["error"] or len(by_shape) == len(shapes):
                measured = [by_shape.get(shape) for shape in shapes]
                points.append([list(row["params"].values()), list(row["facts"].values()), measured])
        if points:
            told["kernels"][recorded.kernel] = {
                "recipe": recorded.recipe,
                "parameters": list(mine[0]["params"]),
                "facts": next(list(row["facts"]) for row in mine if row["facts"]),
                "shapes": shapes,
                "points": points,
            }
    options.out.write_text(json.dumps(told) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["compile", "measure", "child"])
    parser.add_argument("--plans", type=Path, default=Path("plans"))
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--most", type=int, default=None, help="points of each kernel")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--progress", type=Path)
    options = parser.parse_args(arguments)
    options.plans = options.plans.resolve()
    {"compile": compile_all, "measure": measure_all, "child": measure_child}[options.what](options)


if __name__ == "__main__":
    main()
