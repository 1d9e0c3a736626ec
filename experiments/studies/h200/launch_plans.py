"""Launch plans beside the modules they were recorded from, and evaluations per second of the measured cascade.

    python -m experiments.studies.h200.launch_plans --out OUT.json [--what replay rate]
    on a machine with an H200

``replay``: every Triton and Gluon seed that compiles, recorded in children without a device, then launched through its
module and as a plan on cloned operands. Bits must be equal wherever a plan writes at all (what two replays into
different memory agree on). Host time of a launch: least of five bursts of calls behind a spinning kernel, microseconds.
``rate``: the same 48 points of three kernels through 12 cascades and one station, on four workloads; ``cold`` compiles
them, ``hot`` finds them compiled. Afterwards, what the station's child has imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.targets import load_target
from tilewright.library.plans.format import Plan
from tilewright.library.plans.replay import Ready
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Operator, SeedKernel, Workload
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.fresh import FreshChildren
from tilewright.workers.child.run_once import ChildOutcome
from tilewright.workers.child.session import JobLimits
from tilewright.workers.device.station import LocalStation, compile_children

RECIPES = (
    "gemm_fp8_blockwise/gemm_nt", "gemm_fp8_blockwise/gemm_nt_rows", "gemm_fp8_blockwise/quant_1x128",
    "gemm_fp8_blockwise/quant_128x128", "gemm_fp8_blockwise/quant_dual", "gemm_fp8_blockwise/quant_128x128_dual",
    "gridquant/quant_256", "gridquant/gemm_256", "mx_cast/mxfp8_both", "mx_cast/mxfp4", "mx_cast/gemm_mxfp8",
    "gemm_mxfp8_out/normal", "gemm_mxfp8_out/masked32x192",
)  # fmt: skip

CASCADES, POINTS = 12, 16
LIMITS = JobLimits(120.0, 120.0)
Json = dict[str, Any]


def point_of(kernel: SeedKernel) -> Json:
    """A seed's parameters."""
    return {**read_declarations(kernel.source).defaults, **kernel.overrides}


def recorded(pairs: Sequence[tuple[Operator, SeedKernel]], processes: int) -> list[bytes | str]:
    """Plans for each operator's first checked shape, or why there is none."""
    pools: queue.SimpleQueue[FreshChildren] = queue.SimpleQueue()
    made = [compile_children(load_target("h200").gpu) for _ in range(processes)]
    for pool in made:
        pools.put(pool)

    def one(pair: tuple[Operator, SeedKernel]) -> bytes | str:
        operator, kernel = pair
        pool = pools.get()
        try:
            data = {
                "source": kernel.source,
                "params": point_of(kernel),
                "workloads": [shape_of(operator, kernel)],
            }
            answer = pool.run(Frame("compile", data), LIMITS).frames[-1]
            return answer.blobs["w"] if answer.kind == "compiled" else str(answer.data["message"])[:200]
        finally:
            pools.put(pool)

    # a child dies with the thread that started it: the threads stay until all is done
    with ThreadPoolExecutor(processes) as threads:
        found = list(threads.map(one, pairs))
    for pool in made:
        pool.close()
    return found


def shape_of(operator: Operator, kernel: SeedKernel) -> Json:
    """The first checked shape, for a child."""
    workload = first_check(operator)
    specs = {"inputs": operator.inputs(workload, kernel.inputs), "outputs": operator.outputs(workload)}
    return {
        "id": "w",
        **{
            k: [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype} for s in v]
            for k, v in specs.items()
        },
    }


def first_check(operator: Operator) -> Workload:
    """Of the operator's first suite."""
    return next(iter(operator.suites.values())).check[0]


def host_microseconds(call: Callable[[], object], count: int = 100) -> float:
    """Least mean over five bursts, the device busy meanwhile."""
    import torch

    for _ in range(5):
        call()
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        torch.cuda._sleep(100_000_000)
        begun = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - begun) / count)
    torch.cuda.synchronize()
    return round(min(found) * 1e6, 2)


def replayed(operator: Operator, kernel: SeedKernel, data: bytes) -> Json:
    """One plan beside its module."""
    import torch

    from tilewright.workers.runners.tensors import to_torch
    from tilewright.workers.runners.triton_common import load_module

    plan, params = Plan.from_bytes(data), point_of(kernel)
    arrays = operator.make_inputs(first_check(operator), 3, operator.input_kinds[0])
    given = {t.name: to_torch(arrays[t.name], "cuda") for t in plan.inputs}
    with torch.device("cuda"):
        module = load_module(kernel.source)
        made = module.launch(dict(given), dict(params))
    cloned = [given[t.name].clone() for t in plan.inputs]
    begun = time.perf_counter()
    ready = Ready(plan)
    loading, stream = time.perf_counter() - begun, torch.cuda.current_stream().cuda_stream

    def run(fill: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        held = [torch.full((max(n, 16),), fill, dtype=torch.uint8, device="cuda") for n in plan.buffers]
        ready([t.data_ptr() for t in (*cloned, *held)], stream)
        torch.cuda.synchronize()
        return held, [held[o.buffer][o.offset : o.offset + o.bytes].clone() for o in plan.outputs]

    (_, one), (held, other) = run(0xFF), run(0)
    flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in made]
    equal = [bool((m[a == b] == a[a == b]).all()) for m, a, b in zip(flat, one, other, strict=True)]
    addresses = [t.data_ptr() for t in (*cloned, *held)]

    def through_module() -> None:
        with torch.device("cuda"):
            module.launch(given, params)

    return {
        "equal": all(equal),
        "launches": len(plan.launches),
        "load_ms": round(loading * 1e3, 2),
        "host_us_plan": host_microseconds(lambda: ready(addresses, stream)),
        "host_us_module": host_microseconds(through_module),
    }


def replay() -> Json:
    """Every seed of ``RECIPES``."""
    import os

    operators = [load_operator(name) for name in RECIPES]
    pairs = [(o, k) for o in operators for k in o.kernels.values() if not k.inputs and "triton" in k.source]
    plans = recorded(pairs, 12)
    found: Json = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for (operator, kernel), plan in zip(pairs, plans, strict=True):
            told = {"failed": plan} if isinstance(plan, str) else replayed(operator, kernel, plan)
            found[f"{operator.name}/{kernel.name}"] = told
    return found


class SharedStation(LocalStation):
    """A station that several threads may use, one at a time. ``busy`` in seconds."""

    def __init__(self) -> None:
        super().__init__(load_target("h200").gpu)
        self._lock = threading.RLock()
        self.busy, self.jobs = 0.0, 0

    def hello(self) -> Mapping[str, Any]:
        with self._lock:
            return super().hello()

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        with self._lock:
            begun = time.monotonic()
            try:
                return super().run(job, limits)
            finally:
                self.busy += time.monotonic() - begun
                self.jobs += 1

    def operand_seed(self, proposed: int) -> int:
        return 11


def points(operator: Operator) -> Iterator[tuple[str, Json]]:
    """The same for every run."""
    rng = random.Random(5)
    for name in ("gluon_ws", "pointer", "tma"):
        kernel = operator.kernels[name]
        space, known = read_declarations(kernel.source).space, set[str]()
        while len(known) < POINTS:
            point = {**point_of(kernel), **{key: rng.choice(list(values)) for key, values in space.items()}}
            if (text := json.dumps(point, sort_keys=True)) not in known:
                known.add(text)
                yield kernel.source, point


def rate() -> Json:
    """Evaluations per second, and the modules of the station's child."""
    operator = load_operator("gemm_fp8_blockwise/gemm_nt")
    suite = operator.suites["primus-core"]
    suite = dataclasses.replace(suite, workloads=tuple(suite.workloads[n] for n in (0, 1, 3, 4)), final=())
    station = SharedStation()
    station.hello()
    todo: queue.Queue[tuple[str, str, Json] | None] = queue.Queue()
    done: queue.Queue[Evaluation] = queue.Queue()

    def serve() -> None:
        cascade = MeasuredCascade(operator, load_target("h200"), suite, station)
        while (item := todo.get()) is not None:
            done.put(cascade.evaluate(*item, seed=11))
        cascade.close()

    threads = [threading.Thread(target=serve) for _ in range(CASCADES)]
    for thread in threads:
        thread.start()

    def judged(label: str, jobs: Sequence[tuple[str, Json]]) -> Json:
        station.busy, station.jobs = 0.0, 0
        begun = time.monotonic()
        for number, (source, point) in enumerate(jobs):
            todo.put((f"{label}{number}", source, point))
        found = [done.get() for _ in jobs]
        wall = time.monotonic() - begun
        return {
            "evaluations_per_second": round(len(jobs) / wall, 2),
            "station_busy_s": round(station.busy, 2),
            "station_jobs": station.jobs,
            "verdicts": dict(Counter(e.verdict.value for e in found)),
        }

    started = operator.kernels["split_k"]
    judged("start", [(started.source, point_of(started))] * (2 * CASCADES))
    jobs = list(points(operator))
    random.Random(6).shuffle(jobs)
    report: Json = {label: judged(label, jobs) for label in ("cold", "hot")}
    modules = station.run(Frame("modules"), LIMITS).frames[0].data["modules"]
    report["modules"] = {
        "loaded": len(modules),
        "of_candidates": [n for n, file in modules.items() if "candidate" in n or "candidate" in str(file)],
        "of_triton": [n for n in modules if n.split(".")[0] == "triton"],
    }
    for _ in threads:
        todo.put(None)
    for thread in threads:
        thread.join()
    station.close()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", nargs="+", choices=("replay", "rate"), default=["replay", "rate"])
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    report = {name: {"replay": replay, "rate": rate}[name]() for name in arguments.what}
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
