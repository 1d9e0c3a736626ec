"""Training a decoder of Llama-3.1-8B's layer sizes in bf16, with torchao's blockwise FP8, and with the library.

    PYTHONPATH=library python experiments/studies/library/decoder.py OUT.json [--layers 8 --tokens 8192 --steps 40 ...]

Data: sequences of a noisy Markov chain over 4,096 symbols (learnable, never to zero), fresh each step and the same for
everyone. Master weights are the bf16 parameters; AdamW. Everyone starts from the same parameters of a seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD = 4096, 14336, 32, 8, 128
SYMBOLS, SEQUENCE = 4096, 2048


class Block(nn.Module):
    """Grouped-query attention and a gated MLP, each behind an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], dim=-1)
        q, k, v = (t.view(batch, length, -1, HEAD).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Embedding, blocks, head; the head stays in bf16 for everyone."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made(kind: str, layers: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = Decoder(layers).to(torch.bfloat16)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / ((2 * layers) ** 0.5 if "out" in name or "down" in name else 1))
    chosen = lambda name, module: not name.endswith("head")  # noqa: E731
    if kind == "library":
        from tilewright_library import convert

        convert(model, chosen)
    elif kind == "torchao":
        from torchao.prototype.blockwise_fp8_training.linear import Float8BlockwiseLinear

        for block in model.blocks:
            for name, child in list(block.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(block, name, Float8BlockwiseLinear.from_float(child))
    return model


def batches(tokens: int, seed: int) -> Any:
    """Endless (inputs, targets): the next symbol is a fixed function of the last, or, one time in four, any."""
    generator = torch.Generator("cuda").manual_seed(seed)
    after = torch.randint(SYMBOLS, (SYMBOLS,), generator=torch.Generator("cuda").manual_seed(99), device="cuda")
    rows = tokens // SEQUENCE
    while True:
        ids = torch.empty(rows, SEQUENCE + 1, dtype=torch.long, device="cuda")
        ids[:, 0] = torch.randint(SYMBOLS, (rows,), generator=generator, device="cuda")
        noise = torch.randint(SYMBOLS, (rows, SEQUENCE), generator=generator, device="cuda")
        free = torch.rand(rows, SEQUENCE, generator=generator, device="cuda") < 0.25
        # forty rounds settle every run of steps that is likely, without a loop over positions
        start = noise.clone()
        for _ in range(40):
            follow = after[torch.cat([ids[:, :1], start[:, :-1]], dim=1)]
            start = torch.where(free, noise, follow)
        ids[:, 1:] = start
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def train(kind: str, mode: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = made(kind, options.layers, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True, capturable=mode == "graph")
    forward = torch.compile(model, fullgraph=True) if mode == "compiled" else model
    data = batches(options.tokens, 7)
    ids, targets = next(data)
    losses: list[torch.Tensor] = []
    seconds = []

    def step() -> torch.Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(forward(ids).flatten(0, 1), targets.flatten())
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
    }
    del model, optimiser, forward, run
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--runs", default="bf16:eager:0,library:eager:0,torchao:eager:0,bf16:eager:1,bf16:eager:2")
    options = parser.parse_args()
    rows = []
    for run in options.runs.split(","):
        kind, mode, seed = run.split(":")
        try:
            rows.append(train(kind, mode, int(seed), options))
        except Exception as error:  # noqa: BLE001 - one way that does not run leaves the others
            rows.append({"kind": kind, "mode": mode, "seed": int(seed), "error": repr(error)[:300]})
        shown = {name: value for name, value in rows[-1].items() if name != "losses"}
        last = rows[-1].get("losses", [None])[-1]
        print(json.dumps(shown), "last loss", last, flush=True)  # noqa: T201
        options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
