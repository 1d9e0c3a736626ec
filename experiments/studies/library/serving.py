"""The library as a serving program calls it, a few rows at a time, beside bf16 and DeepGEMM. One GPU.

    PYTHONPATH=library python experiments/studies/library/serving.py OUT.json [--rows 1,4,16] [--rounds 5]

Microseconds a call, everything Python does included: ``eager`` is wall clock over many calls in a row, ``graph`` the
same calls replayed as one CUDA graph, ``host`` what a call costs the host while the device is busy (least of bursts).
They walk over copies of the weights, more than the L2 holds, so that weights come from memory as in a model of layers.
Contenders take turns in rounds of reversed order; medians of rounds. Outputs are held to the recipe's product first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[3]))
from experiments.studies.h200.stamp import stamp
from experiments.studies.records.say import say

WEIGHTS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
"""(N, K) of DeepSeek-V3's projections; 2112 is no multiple of 128, so that no layer has it, only the product."""

WIDTHS = (4096, 7168)
"""K of the norms."""

DEVICE = "cuda"
"""Told with each tensor: a default device makes torch look at every attribute of a tensor in Python."""

HELD_BYTES = 160 << 20
"""Of weights that calls walk over: three times the L2."""

MOST_COPIES = 32
SPIN_CYCLES = 6_000_000
LEAST_DB = 45.0

Calls = list[Callable[[], Any]]


def copies_of(size: int) -> int:
    """How many copies of so many bytes."""
    return max(2, min(MOST_COPIES, math.ceil(HELD_BYTES / size)))


def host(calls: Calls, count: int = 60, bursts: int = 7) -> float:
    """Microseconds of host time a call."""
    best = math.inf
    for _ in range(bursts):
        torch.cuda.synchronize()
        torch.cuda._sleep(SPIN_CYCLES)
        begun = time.perf_counter()
        for number in range(count):
            calls[number % len(calls)]()
        best = min(best, (time.perf_counter() - begun) / count)
    torch.cuda.synchronize()
    return best * 1e6


def eager(calls: Calls, count: int) -> float:
    """Microseconds a call by the wall clock."""
    for call in calls[:4]:
        call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(count):
        calls[number % len(calls)]()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / count * 1e6


def captured(calls: Calls, count: int) -> Callable[[], Any]:
    """So many calls as one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(count):
            calls[number % len(calls)]()
    return graph.replay


def replayed(replay: Callable[[], Any], count: int) -> float:
    """Microseconds a call of a graph of so many."""
    replay()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    replay()
    replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / (2 * count) * 1e6


def snr_db(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of a result against the recipe's."""
    noise = (found.float() - wanted.float()).square().sum().item()
    return math.inf if noise == 0.0 else 10 * math.log10(wanted.float().square().sum().item() / noise)


def timed(contenders: dict[str, Calls], rounds: int) -> dict[str, dict[str, float]]:
    """Figures by contender, all in turns."""
    found: dict[str, dict[str, float]] = {}
    graphs: dict[str, tuple[Callable[[], Any], int]] = {}
    for name, calls in list(contenders.items()):
        try:
            for call in calls * 3:  # launches are kept for addresses that come again
                call()
            count = len(calls) * max(1, 48 // len(calls))
            graphs[name] = captured(calls, count), count
            found[name] = {"host": host(calls)}
        except Exception as error:  # noqa: BLE001 - a peer that does not run is reported and left out
            say(f"  {name}: {repr(error)[:200]}")
            del contenders[name]
    taken: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds):
        for name in list(contenders) if turn % 2 == 0 else list(contenders)[::-1]:
            calls = contenders[name]
            taken.setdefault((name, "eager"), []).append(eager(calls, max(96, len(calls))))
            taken.setdefault((name, "graph"), []).append(replayed(*graphs[name]))
    for (name, way), values in taken.items():
        found[name][way] = statistics.median(values)
    return found


def products(m: int, n: int, k: int, gemm: Any) -> tuple[dict[str, Calls], dict[str, float]]:
    """Contenders at a shape, and the library's SNR in dB."""
    from tilewright_library import Linear, torch_contract

    x = torch.randn(m, k, dtype=torch.bfloat16, device=DEVICE)
    rows = -(-n // 128) * 128
    w = torch.randn(rows, k, dtype=torch.bfloat16, device=DEVICE) / 64
    w[n:] = 0
    a_q, a_s = torch_contract.quantise_rows(x)
    b_q, b_s = torch_contract.quantise_blocks(w)
    b_q, w = b_q[:n].contiguous(), w[:n].contiguous()
    wanted = (
        torch_contract.dequantise_rows(a_q, a_s)
        @ (b_q.float() * b_s.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)).T
    )
    copies = copies_of(n * k)
    quantised = [(b_q.clone(), b_s.clone()) for _ in range(copies)]
    plain = [w.clone() for _ in range(copies)]
    contenders: dict[str, Calls] = {
        "product": [lambda q=q, s=s: gemm(a_q, a_s, q, s) for q, s in quantised],
        "bf16": [lambda w=w: F.linear(x, w) for w in plain],
    }
    right = {"product": snr_db(contenders["product"][0](), wanted)}
    if n % 128 == 0:
        layers = []
        for weight in plain:
            with torch.device("meta"):
                layer = Linear(k, n, bias=False, dtype=torch.bfloat16)
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
            layer._keeping = True
            layer(x)
            layers.append(layer)
        contenders["layer"] = [lambda layer=layer: layer(x) for layer in layers]
        right["layer"] = snr_db(layers[0](x), wanted)
    try:
        import deep_gemm

        scales = deep_gemm.get_mn_major_tma_aligned_tensor(a_s.T.contiguous())

        def peer(q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
            out = torch.empty((m, n), dtype=torch.bfloat16, device=DEVICE)
            deep_gemm.fp8_gemm_nt((a_q, scales), (q, s), out)
            return out

        peer(*quantised[0])
        contenders["DeepGEMM"] = [lambda q=q, s=s: peer(q, s) for q, s in quantised]
    except Exception as error:  # noqa: BLE001 - likewise
        say(f"  DeepGEMM: {repr(error)[:160]}")
    return contenders, right


def norms(m: int, k: int, norm: Any) -> tuple[dict[str, Calls], dict[str, float]]:
    """RMSNorm with its cast, and torch's norm alone, over as many activations as there are copies."""
    from tilewright_library import torch_contract

    x = torch.randn(m, k, dtype=torch.bfloat16, device=DEVICE)
    g = torch.ones(k, dtype=torch.bfloat16, device=DEVICE)
    inputs = [x.clone() for _ in range(8)]
    wanted = torch_contract.quantise_rows(F.rms_norm(x, (k,), g, 1e-6))
    q, s = norm(x, g)
    right = {"library": snr_db(torch_contract.dequantise_rows(q, s), torch_contract.dequantise_rows(*wanted))}
    contenders: dict[str, Calls] = {
        "library": [lambda x=x: norm(x, g) for x in inputs],
        "bf16 norm, no cast": [lambda x=x: F.rms_norm(x, (k,), g, 1e-6) for x in inputs],
    }
    return contenders, right


def told(name: str, figures: dict[str, dict[str, float]], right: dict[str, float]) -> str:
    """A line for a shape."""
    parts = [
        f"{who} {f['eager']:.1f} / {f['graph']:.1f} / {f['host']:.1f}" for who, f in figures.items() if f
    ]
    bad = [who for who, db in right.items() if not db >= LEAST_DB]
    return f"{name}: {', '.join(parts)}" + (f"  WRONG: {bad}" if bad else "")


def mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(entries: list[dict[str, Any]]) -> None:
    """Ratios by number of rows."""
    for m in dict.fromkeys(e["m"] for e in entries):
        mine = [e["us"] for e in entries if e["m"] == m]
        for ours in ("product", "layer"):
            for other in ("bf16", "DeepGEMM"):
                both = [f for f in mine if ours in f and other in f]
                if both:
                    ratios = {way: [f[other][way] / f[ours][way] for f in both] for way in ("eager", "graph")}
                    text = ", ".join(f"{way} {mean(r):.3f} (least {min(r):.3f})" for way, r in ratios.items())
                    say(f"M={m}: {ours} x faster than {other}: {text}, {len(both)} shapes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", default="1,4,16,32,64,128,256")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    from tilewright_library import load

    found: dict[str, Any] = {**stamp("experiments/studies/library/serving.py"), "unit": "us a call"}
    found |= {"host load": os.getloadavg()[0], "products": [], "norms": []}
    gemm = load("gemm_fp8_blockwise/gemm_nt")
    rows = [int(m) for m in options.rows.split(",")]
    say("us a call, measured: eager / graph / host alone")
    for m in rows:
        for n, k in WEIGHTS:
            contenders, right = products(m, n, k, gemm)
            figures = timed(contenders, options.rounds)
            found["products"].append({"m": m, "n": n, "k": k, "us": figures, "snr_db": right})
            say(told(f"{m}x{n}x{k}", figures, right))
            options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
            del contenders
            torch.cuda.empty_cache()
    summary(found["products"])
    try:
        norm = load("fused_quant/rmsnorm_1x128")
    except Exception as error:  # noqa: BLE001 - a library without it
        say(f"no norm: {error}")
        return
    for m in rows:
        for k in WIDTHS:
            contenders, right = norms(m, k, norm)
            figures = timed(contenders, options.rounds)
            found["norms"].append({"m": m, "k": k, "us": figures, "snr_db": right})
            say(told(f"norm {m}x{k}", figures, right))
    options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
