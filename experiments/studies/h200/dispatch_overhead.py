"""Host time that a call through the library costs on this CPU, without any kernel's: ``python -m …dispatch_overhead``.

Measured figures of this machine's CPU in microseconds a call; kernels are replaced by functions that return an answer
made before. ``--out`` writes them as Markdown. Needs torch and the library in ``library/``.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from testkit import ROOT

LIBRARY = ROOT / "library"
ROUNDS, BATCH_SECONDS = 60, 0.02
SHAPE = (256, 384, 512)
"""M, N, K of the torch calls: small, since nothing is computed."""
PROMOTED, DEVICE = "gemm_fp8_fused/g512", "tpu:TPU7x"


def microseconds(call: Callable[[], Any]) -> tuple[float, float, float]:
    """(least, median, 95th percentile) over rounds of many calls each, in microseconds a call."""
    call()
    count, began = 1, time.perf_counter()
    while time.perf_counter() - began < BATCH_SECONDS:
        call()
        count += 1
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - began) / count * 1e6)
    return min(times), float(np.median(times)), float(np.percentile(times, 95))


def torch_calls() -> dict[str, Callable[[], Any]]:
    """What a torch program pays, by name."""
    import torch
    from tilewright_library import gemm_fp8_blockwise, torch_ops
    from tilewright_library.torch_contract import REFERENCES

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    m, n, k = SHAPE
    x, w = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16)

    def canned(operator: str, dims: tuple[int, ...], device: torch.device) -> Callable[[Any], Any]:
        answers: list[Any] = []

        def answer(inputs: Any) -> Any:
            if not answers:
                answers.append(REFERENCES[operator](inputs))
            return answers[0]

        return answer

    torch_ops._choose = canned
    torch_ops._CHOSEN["nothing", SHAPE, x.device] = lambda inputs: ()
    inputs, out = {"x": x}, torch.zeros(m, n, dtype=torch.bfloat16)

    @torch.library.custom_op(
        "tilewright_benchmark::empty", mutates_args=(), schema="(Tensor x, Tensor w) -> Tensor"
    )
    def empty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return out

    return {
        "look-up of a shape seen before": lambda: torch_ops.run("nothing", SHAPE, inputs),
        "a torch custom op that does nothing": lambda: empty(x, w),
        "gemm_fp8_blockwise, inference: checks, one custom op, three look-ups": lambda: gemm_fp8_blockwise(
            x, w
        ),
    }


def library_calls() -> dict[str, Callable[[], Any]]:
    """What the first call of a shape pays beside compiling its kernel."""
    from tilewright_library import store

    kernels = LIBRARY / "tilewright_library" / "kernels"
    table = store.load_table(PROMOTED, DEVICE, kernels)
    return {
        "first call of a shape: the nearest region": lambda: table.choose((3072, 4096, 4096)),
        "first call of an operator: files read and their hashes checked": lambda: store.load_table(
            PROMOTED, DEVICE, kernels
        ),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.studies.h200.dispatch_overhead", description=__doc__
    )
    parser.add_argument("--out", type=Path, help="Markdown file to write (default: standard output)")
    arguments = parser.parse_args(argv)
    sys.path.insert(0, str(LIBRARY))
    calls = {"a Python call of nothing": lambda: None, **torch_calls(), **library_calls()}
    rows = [(name, *microseconds(call)) for name, call in calls.items()]
    text = _page(rows)
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.write_text(text, encoding="utf-8")
    return 0


def _page(rows: Sequence[tuple[str, float, float, float]]) -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    day = time.strftime("%Y-%m-%d", time.gmtime())
    versions = f"Python {platform.python_version()}, torch {metadata.version('torch')}"
    lines = [
        "# What a call through the library costs the host",
        "",
        f"`python -m experiments.studies.h200.dispatch_overhead`, {day}. Measured on a CPU: {_cpu()}, "
        f"{len(os.sched_getaffinity(0))} cores, load averages {load}. {versions}. No kernel runs; each figure is of "
        f"{ROUNDS} rounds of at least {BATCH_SECONDS * 1e3:.0f} ms.",
        "",
        "| call | least, µs | median, µs | 95th percentile, µs |",
        "| --- | --: | --: | --: |",
    ]
    lines += [f"| {name} | {low:.2f} | {middle:.2f} | {high:.2f} |" for name, low, middle, high in rows]
    lines += ["", "The least is what the code costs; what lies above it is what else ran on the machine."]
    return "\n".join(lines) + "\n"


def _cpu() -> str:
    """The processor's name as the kernel tells it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
