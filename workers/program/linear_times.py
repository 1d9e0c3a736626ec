"""Seconds of linear layers in bf16 and in blockwise FP8 under steady load, as in a step that never pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

STEADY_SECONDS = 0.12
"""Each is repeated for so long before it counts: power, and with it the clock, settles meanwhile."""

MOST_SHAPES = 12

Row = tuple[int, int, int, bool]
"""Rows, output features, input features, whether gradients are wanted."""


def linear_seconds(rows: Iterable[Row]) -> list[tuple[Row, float, float]]:
    """Seconds of each layer (forward, and both gradients where they are wanted): in bf16, in FP8 with every
    quantisation. Empty on a machine whose library serves no such layer."""
    from tilewright.library.torch_operators import gemm_fp8_blockwise

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return []
    found = []
    for row in list(dict.fromkeys(rows))[:MOST_SHAPES]:
        if row[1] % 128 or row[2] % 128:
            continue
        seconds = [
            _steady(_layer(multiply, row)) for multiply in (torch.nn.functional.linear, gemm_fp8_blockwise)
        ]
        found.append((row, seconds[0], seconds[1]))
    torch.cuda.empty_cache()
    return found


def _layer(multiply: Callable[[Any, Any], Any], row: Row) -> Callable[[], object]:
    """The layer's replay as a CUDA graph: the host's time is not the layer's."""
    rows, out, into, trains = row
    x = torch.randn(rows, into, dtype=torch.bfloat16, device="cuda", requires_grad=trains)
    w = torch.randn(out, into, dtype=torch.bfloat16, device="cuda", requires_grad=trains)
    dy = torch.randn(rows, out, dtype=torch.bfloat16, device="cuda")

    def call() -> object:
        y = multiply(x, w)
        return torch.autograd.grad(y, (x, w), dy) if trains else y

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = call()

    def replayed() -> object:
        graph.replay()
        return held

    return replayed


def _steady(call: Callable[[], object]) -> float:
    def burst(count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / count

    once = burst(3)
    count = max(3, round(STEADY_SECONDS / once))
    burst(count)
    return burst(count)
