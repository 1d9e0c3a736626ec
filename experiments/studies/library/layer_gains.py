"""A converted linear layer beside bf16's, over rows and layers: where FP8 is faster. One GPU.

    PYTHONPATH=library python -m experiments.studies.library.layer_gains OUT.json [--rows 1,64] [--layers 4096x4096]
    PYTHONPATH=library python -m experiments.studies.library.layer_gains TABLE.json --table OUT.json

Per layer (N x K), rows and mode, the microseconds of a call of both: ``kept`` (inference, weights quantised before),
``infer`` (inference, weights quantised in the call) and ``train`` (forward and both gradients), each ``eager`` (wall
clock over many calls in a row, the least of rounds: other programs may hold the host) and as a CUDA ``graph`` (by the
device's clock, median of rounds). FP8 always. Calls walk over copies of the weights, more than the L2 holds. Contenders
take turns in reversed order. With ``--table`` a result's modes go into ``tilewright_library``'s ``layer_times.json``.
"""

import argparse
import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

LAYERS = {
    "llama3-8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "llama3-70b": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "qwen2.5-7b": ((4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)),
    "qwen2.5-72b": ((59136, 8192), (8192, 29568)),
    "deepseek-v3": ((24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)),
    "mixtral": ((14336, 4096), (5120, 5120), (2048, 2048), (8192, 2048), (1024, 1024)),
}
"""(N, K) of products of public models, and small ones."""

ROWS = (
    1,
    2,
    4,
    7,
    8,
    16,
    24,
    33,
    48,
    64,
    65,
    96,
    100,
    128,
    192,
    200,
    256,
    300,
    384,
    512,
    640,
    768,
    1000,
    1024,
    1500,
    2048,
    3000,
    4000,
    4096,
    8191,
    8192,
)
HELD_BYTES = 160 << 20
"""Of weights that calls walk over: three times the L2."""

Calls = list[Callable[[], Any]]


def eager(calls: Calls, count: int) -> float:
    """Seconds a call by the wall clock."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(count):
        calls[number % len(calls)]()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / count


def replayed(replay: Callable[[], Any]) -> float:
    """Seconds of a graph by the device's clock."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000)  # 0.2 ms, in which the host queues what follows
    begun.record()
    replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3


def captured(calls: Calls, count: int) -> Callable[[], Any]:
    """So many calls as one graph."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for number in range(count):
            calls[number % len(calls)]()
    return graph.replay


def calls_of(layers: list[torch.nn.Module], m: int, mode: str) -> Calls:
    """A call of each layer."""
    n, k = layers[0].weight.shape
    x = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    if mode != "train":
        return [lambda layer=layer: layer(x) for layer in layers]  # type: ignore[misc]
    x.requires_grad_()
    dy = torch.randn(m, n, dtype=torch.bfloat16, device="cuda")
    return [lambda layer=layer: torch.autograd.grad(layer(x), (x, layer.weight), dy) for layer in layers]  # type: ignore[misc]


def measure(contenders: dict[str, Calls], rounds: int, budget: float) -> dict[str, dict[str, float]]:
    """Microseconds a call by way and contender; ``budget``: seconds of one burst."""
    times: dict[tuple[str, str], list[float]] = {}
    graphs: dict[str, Callable[[], Any]] = {}
    counts: dict[str, int] = {}
    for name, calls in contenders.items():
        for call in calls * 2:  # launches are kept for addresses that come again
            call()
        counts[name] = max(4, min(4 * len(calls), round(budget / eager(calls, len(calls)))))
        graphs[name] = captured(calls, counts[name])
        graphs[name]()
    for turn in range(rounds):
        for name in list(contenders) if turn % 2 == 0 else list(contenders)[::-1]:
            times.setdefault(("eager", name), []).append(eager(contenders[name], counts[name]))
            times.setdefault(("graph", name), []).append(replayed(graphs[name]) / counts[name])
    found: dict[str, dict[str, float]] = {"eager": {}, "graph": {}}
    for (way, name), values in times.items():
        middle = min(values) if way == "eager" else statistics.median(values)
        found[way][name] = round(middle * 1e6, 2)
    return found


def table(found: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """A table for ``tilewright_library.layer_rows``: a result's times in the place of an old table's of its rows."""
    from tilewright_library import layer_rows, store

    rows = [row for row in found["rows"] if "error" not in row]
    times: dict[str, Any] = {mode: {k: dict(v) for k, v in layers.items()} for mode, layers in old["us"].items()}
    for row in rows:
        layer = times.setdefault(row["mode"], {}).setdefault(f"{row['n']}x{row['k']}", {})
        layer[str(row["m"])] = [row["graph"]["fp8"], row["graph"]["bf16"]]
    few = [row for row in rows if row["m"] <= 16 and row["n"] * row["k"] <= 1 << 24]
    host = {
        mode: [statistics.median(row["eager"][c] for row in few if row["mode"] == mode) for c in ("fp8", "bf16")]
        for mode in {row["mode"] for row in few}
    }
    measured = {row["mode"]: {key: found[key] for key in ("date", "device", "torch")} for row in rows}
    operators = [name for name in store.operators() if name.startswith(layer_rows.FAMILY)]
    return {
        "kind": "measured",
        "device": "cuda:9.0",
        "measured": {**old["measured"], **measured},
        "versions": {name.split("/")[1]: store.current_version(name).name for name in operators},
        "host_us": {**old["host_us"], **host},
        "us": times,
    }


def main() -> None:
    from tilewright_library import Linear, layer_rows

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--layers", default="", help="NxK,… (default: those of six models)")
    parser.add_argument("--modes", default="kept,infer,train")
    parser.add_argument("--seconds", type=float, default=500.0, help="stop after")
    parser.add_argument("--table", type=Path, help="a result: its times go into OUT, a table that is there")
    options = parser.parse_args()
    if options.table:
        read = [json.loads(path.read_text()) for path in (options.table, options.out)]
        options.out.write_text(json.dumps(table(*read), sort_keys=True, separators=(",", ":")) + "\n")
        return
    layer_rows.FILLED_ROWS = 1  # so that all rows are measured
    layers = [tuple(map(int, text.split("x"))) for text in options.layers.split(",") if text]
    layers = layers or [layer for group in LAYERS.values() for layer in group]
    begun = time.monotonic()
    found: dict[str, Any] = {
        **{"kind": "measured", "device": torch.cuda.get_device_name(), "torch": torch.__version__},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "unit": "us a call",
        "rows": [],
    }
    for n, k in layers:
        copies = max(2, min(24, math.ceil(HELD_BYTES / (n * k))))
        make = functools.partial(torch.nn.Linear, k, n, bias=False, dtype=torch.bfloat16, device="cuda")
        plain = [make() for _ in range(copies)]
        for mode in options.modes.split(","):
            ours = [Linear.from_linear(layer, only_faster=False) for layer in plain]
            for layer in ours:
                layer._keeping, layer._calls = mode == "kept", {}
            for m in map(int, options.rows.split(",")):
                if time.monotonic() - begun > options.seconds:
                    break
                row: dict[str, Any] = {"n": n, "k": k, "m": m, "mode": mode}
                try:
                    with torch.set_grad_enabled(mode == "train"):
                        both = {"fp8": calls_of(ours, m, mode), "bf16": calls_of(plain, m, mode)}
                        row |= measure(both, 3, 0.0012)
                except Exception as error:  # noqa: BLE001 - a size that does not run is reported and left out
                    row["error"] = repr(error)[:300]
                found["rows"].append(row)
            del ours
            torch.cuda.empty_cache()
        options.out.write_text(json.dumps(found) + "\n")
        sys.stdout.write(f"{n} x {k}: {time.monotonic() - begun:.0f} s\n")


if __name__ == "__main__":
    main()
