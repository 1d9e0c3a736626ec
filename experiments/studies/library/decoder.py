"""Training a decoder of Llama-3.1-8B's layer sizes in bf16, with torchao's blockwise FP8, and with the library.

    PYTHONPATH=library python experiments/studies/library/decoder.py OUT.json [--runs KIND:MODE:SEED,... --steps 40 ...]

KIND: bf16, library, torchao. MODE: eager, compiled (each block by torch.compile, as one graph; torchao's product
calls what Dynamo cannot trace, and breaks it), graph (a whole step in a CUDA graph). Data: sequences of a noisy
Markov chain (learnable, never to zero), fresh each step, the same for everyone of a seed. The bf16 parameters are the
master weights; AdamW. Everyone starts from the same parameters of a seed. At the end: how far the library's loss
curves are from bf16's, beside the spread of bf16's seeds.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from decoder_model import batches, made
from torchao_ahead import keep_tuned, tune_briefly

WINDOW = 10
"""Steps over which a loss curve is averaged before curves are compared."""


def train(kind: str, mode: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch._dynamo.reset()
    began_all = time.perf_counter()
    model = made(kind, options.layers, seed)
    if mode == "compiled":
        if kind == "torchao":
            keep_tuned()
        for (
            block
        ) in model.blocks:  # torchao's product calls what Dynamo cannot trace in torch 2.11: its graph breaks
            block.compile(fullgraph=kind != "torchao")
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=options.rate, betas=(0.9, 0.95), fused=True, capturable=mode == "graph"
    )
    data = batches(options.tokens, 7 + seed)
    ids, targets = next(data)
    losses: list[torch.Tensor] = []
    seconds = []

    def step() -> torch.Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimiser.step()
        return loss.detach()

    run = step
    if mode == "graph":
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                losses.append(step())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = step()

        def run() -> torch.Tensor:
            graph.replay()
            return held.clone()

    while len(losses) < options.steps:
        fresh = next(data)
        ids.copy_(fresh[0]), targets.copy_(fresh[1])
        if mode != "graph":
            for group in optimiser.param_groups:
                group["lr"] = options.rate * min(1.0, (len(losses) + 1) / options.warm_up)
        torch.cuda.synchronize()
        began = time.perf_counter()
        losses.append(run())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    warm = seconds[3:]
    found = {
        "kind": kind,
        "mode": mode,
        "seed": seed,
        "losses": [round(float(loss), 4) for loss in losses],
        "step seconds": statistics.median(warm),
        "tokens/s": options.tokens / statistics.median(warm),
        "peak GB": torch.cuda.max_memory_allocated() / 1e9,
        "first step seconds": seconds[0],
        "whole run seconds": time.perf_counter() - began_all,
    }
    return found


def averaged(losses: Sequence[float]) -> list[float]:
    return [statistics.mean(losses[i : i + WINDOW]) for i in range(0, len(losses) - WINDOW + 1, WINDOW)]


def curves(rows: Sequence[Mapping[str, Any]], other: str) -> dict[str, Any] | None:
    """By window of steps: the spread of bf16's seeds, and how far ``other`` of a seed is from bf16 of that seed."""
    by_seed = {
        kind: {
            r["seed"]: averaged(r["losses"])
            for r in rows
            if (r["kind"], r["mode"]) == (kind, "eager") and "losses" in r
        }
        for kind in ("bf16", other)
    }
    plain, ours = by_seed["bf16"], by_seed[other]
    if len(plain) < 3 or not ours:
        return None
    low, high = ([edge(values) for values in zip(*plain.values(), strict=True)] for edge in (min, max))
    spread = [b - a for a, b in zip(low, high, strict=True)]
    off = {s: [a - b for a, b in zip(c, plain[s], strict=True)] for s, c in ours.items() if s in plain}
    means = [[statistics.mean(v) for v in zip(*c.values(), strict=True)] for c in (plain, ours)]
    return {
        "window": WINDOW,
        "spread of bf16": spread,
        "from bf16 of the same seed": off,
        "mean over seeds, from that of bf16": [b - a for a, b in zip(*means, strict=True)],
        "windows outside of bf16's lowest and highest": {
            s: sum(not a <= v <= b for a, v, b in zip(low, c, high, strict=True)) for s, c in ours.items()
        },
        "windows farther from bf16 of the seed than bf16's spread": {
            s: sum(abs(d) > w for d, w in zip(c, spread, strict=True)) for s, c in off.items()
        },
        "windows": len(spread),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--warm-up", type=int, default=10, help="steps in which the rate grows to --rate")
    parser.add_argument(
        "--runs", default="bf16:eager:0,library:eager:0,torchao:eager:0,bf16:eager:1,bf16:eager:2"
    )
    options = parser.parse_args()
    if "torchao" in options.runs:
        tune_briefly()
    rows: list[dict[str, Any]] = []
    for run in options.runs.split(","):
        kind, mode, seed = run.split(":")
        try:
            rows.append(train(kind, mode, int(seed), options))
        except Exception as error:  # noqa: BLE001 - one way that does not run leaves the others
            rows.append({"kind": kind, "mode": mode, "seed": int(seed), "error": repr(error)[:300]})
        shown = {name: value for name, value in rows[-1].items() if name != "losses"}
        last = rows[-1].get("losses", [None])[-1]
        print(json.dumps(shown), "last loss", last, flush=True)  # noqa: T201
        found = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "runs": rows}
        for other in ("library", "torchao"):
            compared = curves(rows, other)
            if compared is not None:
                found[f"curves of {other}"] = compared
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
