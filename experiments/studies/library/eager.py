"""Host time of the library, and the training step as eager code issues it, beside bf16 and torchao. One GPU.

    PYTHONPATH=library python experiments/studies/library/eager.py OUT.json [--torchao SHAPES] [--compiled SHAPES]

Host: least of bursts of 100 calls queued behind a spinning kernel, microseconds. Step: seconds of forward and backward,
wall clock over 4 to 200 steps in a row, medians of rounds in reversed order; beside it the same step captured in a CUDA
graph.
SHAPES: ``8192x4096x4096,...`` or ``all``: where torchao runs beside it (which tunes itself for long, see
``torchao_ahead.py``), and where everyone runs under torch.compile as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from torchao_ahead import keep_tuned, tune_briefly

STEPS = (
    (4096, 12288, 4096), (4096, 4096, 11008), (4096, 10240, 8192), (8192, 6144, 4096), (8192, 4096, 4096),
    (8192, 28672, 4096), (32768, 4096, 4096), (8192, 16384, 16384), (8192, 3584, 3584), (8192, 3584, 18944),
    (8192, 59136, 8192), (8192, 8192, 29568), (2048, 6144, 4096), (2048, 4096, 4096), (2048, 28672, 4096),
    (2048, 4096, 14336),
)  # fmt: skip


def host(call: Callable[[], Any], count: int = 100, bursts: int = 5) -> float:
    """Microseconds of host time a call."""
    for _ in range(10):
        call()
    best = 1e9
    for _ in range(bursts):
        torch.cuda.synchronize()
        torch.cuda._sleep(150_000_000)
        began = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - began) / count)
    torch.cuda.synchronize()
    return best * 1e6


def step_of(
    product: Callable[..., Any], x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor
) -> Callable[[], Any]:
    def step() -> None:
        x.grad = w.grad = None
        product(x, w).backward(dy)

    return step


def wall(step: Callable[[], Any], count: int) -> float:
    """Seconds a step. Three more before it wake this process's threads, as in a training loop that runs for hours."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def hosts(found: dict[str, Any]) -> None:
    from tilewright_library import gemm_fp8_blockwise, load, torch_contract, torch_eager

    m, n, k = 1024, 4096, 4096
    x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    w = torch.randn(n, k, dtype=torch.bfloat16, device="cuda")
    dy = torch.randn(m, n, dtype=torch.bfloat16, device="cuda")
    a_q, a_s = torch_contract.quantise_rows(x)
    b_q, b_s = torch_contract.quantise_blocks(w)
    gemm = load("gemm_fp8_blockwise/gemm_nt")
    times = found["host_us"] = {}
    times["product through load"] = host(lambda: gemm(a_q, a_s, b_q, b_s))
    dual = load("gemm_fp8_blockwise/quant_dual")
    times["dual quantiser through load"] = host(lambda: dual(x))
    try:
        from torch.nn.functional import ScalingType, scaled_mm

        left, right = a_s.t(), F.pad(b_s, (0, -b_s.shape[1] % 4)).t()

        def vendor() -> torch.Tensor:
            return scaled_mm(
                a_q, b_q.t(), left, ScalingType.BlockWise1x128, right, ScalingType.BlockWise128x128,
                output_dtype=torch.bfloat16,
            )  # fmt: skip

        times["vendor product"] = host(vendor)
    except Exception as error:  # noqa: BLE001 - a peer that does not run is reported
        times["vendor product"] = repr(error)[:200]
    with torch.no_grad():
        times["inference op"] = host(lambda: gemm_fp8_blockwise(x, w))
        times["bf16 inference"] = host(lambda: F.linear(x, w))
    xg, wg = x.clone().requires_grad_(), w.clone().requires_grad_()
    times["forward of a step"] = host(lambda: gemm_fp8_blockwise(xg, wg))
    for count in (30, 100):
        times[f"forward and backward, {count} a burst"] = host(step_of(gemm_fp8_blockwise, xg, wg, dy), count)
        times[f"bf16 forward and backward, {count} a burst"] = host(step_of(F.linear, xg, wg, dy), count)
    ops = torch.ops.tilewright_library

    times["forward of a step, look-ups alone"] = host(lambda: torch_eager.entry(m, n, k, x.device, True))
    layer = torch_eager.entry(m, n, k, x.device, True)
    assert layer is not None
    times["forward's launches and allocations"] = host(lambda: layer.forward_jointly(x, w))
    _, kept = layer.forward_jointly(x, w)
    times["backward's launches and allocations"] = host(lambda: layer.backward_jointly(dy, kept, True, True))
    times["an allocation"] = host(lambda: torch.empty((m, n), dtype=torch.bfloat16, device="cuda"))

    def by_op(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.linear(x, w)[0]

    times["forward and backward by the registered ops"] = host(step_of(by_op, xg, wg, dy), count=50)
    print(json.dumps(times, indent=1), flush=True)  # noqa: T201


def torchao_product() -> Callable[..., Any]:
    from torchao.prototype.blockwise_fp8_training.linear import fp8_blockwise_mm

    tune_briefly()
    return lambda x, w: fp8_blockwise_mm.apply(x, w, 128, torch.bfloat16, False)


def steps(found: dict[str, Any], options: argparse.Namespace) -> None:
    from tilewright_library import gemm_fp8_blockwise

    plain: dict[str, Callable[..., Any]] = {"bf16": F.linear, "library": gemm_fp8_blockwise}
    peer = {"torchao": torchao_product()} if options.torchao else {}
    rows = found["steps"] = {}
    for m, n, k in STEPS:
        products = {**plain, **(peer if asked(options.torchao, m, n, k) else {})}
        x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda").requires_grad_()
        w = (torch.randn(n, k, dtype=torch.bfloat16, device="cuda") / 64).requires_grad_()
        dy = torch.randn(m, n, dtype=torch.bfloat16, device="cuda")
        ways: dict[str, Callable[[], Any]] = {}
        for name, product in products.items():
            try:
                ways[f"{name} eager"] = step_of(product, x, w, dy)
                ways[f"{name} eager"]()
                ways[f"{name} graph"] = captured(step_of(product, x, w, dy))
                if asked(options.compiled, m, n, k):
                    torch._dynamo.reset()
                    if name == "torchao":
                        keep_tuned()
                    way = step_of(torch.compile(product, fullgraph=True, dynamic=False), x, w, dy)
                    way()
                    ways[f"{name} compiled"] = way
            except Exception as error:  # noqa: BLE001 - reported beside the rest
                print(name, m, n, k, repr(error)[:300], flush=True)  # noqa: T201
        cost = 6 * m * n * k / 7e14
        count = max(4, min(200, int(0.06 / cost)))
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(4):
            for name in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
                taken[name].append(wall(ways[name], count))
        seconds = {name: statistics.median(values) for name, values in taken.items()}
        rows[f"{m}x{n}x{k}"] = {"seconds": seconds, "rounds": taken, "host load": os.getloadavg()[0]}
        text = "  ".join(f"{name} {6 * m * n * k / t / 1e12:.0f}" for name, t in seconds.items())
        ratio = seconds["bf16 eager"] / seconds["library eager"]
        print(f"{m}x{n}x{k}: {text}  eager {ratio:.3f} x bf16 (TFLOP/s, 6MNK, measured)", flush=True)  # noqa: T201
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        del x, w, dy, ways
        torch.cuda.empty_cache()


def asked(shapes: str, m: int, n: int, k: int) -> bool:
    return shapes == "all" or f"{m}x{n}x{k}" in shapes.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--torchao", default="", help="shapes, or all")
    parser.add_argument("--compiled", default="", help="shapes, or all")
    parser.add_argument("--no-host", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    found["host load"] = os.getloadavg()[0]
    if not options.no_host:
        hosts(found)
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    steps(found, options)


if __name__ == "__main__":
    main()
