"""A decoder of Llama-3.1-8B's layer sizes, its data, and three ways to multiply its linear layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD = 4096, 14336, 32, 8, 128
SYMBOLS, SEQUENCE, NOISE = 1024, 2048, 0.25


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


def made(kind: str, layers: int, seed: int) -> Decoder:
    """``kind``: ``bf16``, ``library`` or ``torchao``. The same parameters for everyone of a seed."""
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = Decoder(layers).to(torch.bfloat16)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(
                    parameter, std=0.02 / ((2 * layers) ** 0.5 if "out" in name or "down" in name else 1)
                )
    if kind == "library":
        from tilewright_library import convert

        convert(model, lambda name, module: not name.endswith("head"))
    elif kind == "torchao":
        from torchao.prototype.blockwise_fp8_training.linear import Float8BlockwiseLinear

        for block in model.blocks:
            for name, child in list(block.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(block, name, Float8BlockwiseLinear.from_float(child))
    return model


def batches(tokens: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (inputs, targets): the next symbol is a fixed function of the last, or, one time in four, any.

    The least loss there is: -0.75 log(0.75 + 0.25 / SYMBOLS) - 0.25 log(0.25 / SYMBOLS) nats, 2.30 for 1,024.
    """
    generator = torch.Generator("cuda").manual_seed(seed)
    after = torch.randint(
        SYMBOLS, (SYMBOLS,), generator=torch.Generator("cuda").manual_seed(99), device="cuda"
    )
    rows = tokens // SEQUENCE
    while True:
        ids = torch.empty(rows, SEQUENCE + 1, dtype=torch.long, device="cuda")
        ids[:, 0] = torch.randint(SYMBOLS, (rows,), generator=generator, device="cuda")
        noise = torch.randint(SYMBOLS, (rows, SEQUENCE), generator=generator, device="cuda")
        free = torch.rand(rows, SEQUENCE, generator=generator, device="cuda") < NOISE
        # forty rounds settle every run of steps that is likely, without a loop over positions
        start = noise.clone()
        for _ in range(40):
            follow = after[torch.cat([ids[:, :1], start[:, :-1]], dim=1)]
            start = torch.where(free, noise, follow)
        ids[:, 1:] = start
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
