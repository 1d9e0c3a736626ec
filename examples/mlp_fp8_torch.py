"""Train a transformer's MLP in FP8 and in bf16 from the same start, and compare loss curves and step times.

    PYTHONPATH=library python examples/mlp_fp8_torch.py [--device cuda --width 4096 --tokens 8192 --compile]

The student learns the outputs of a fixed teacher of the same form (RMS norm, two linear layers with a SiLU gate,
residual). Everything but the linear layers' products is the same in both runs. On a CPU, or for shapes that
no promoted kernel serves, the library uses the recipe's reference products: same numbers, no speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Mlp(nn.Module):
    """x + down(silu(gate(norm x)) * up(norm x)), weights in bf16; ``product(x, w)`` multiplies."""

    def __init__(self, width: int, hidden: int, product: Product) -> None:
        super().__init__()
        self.product = product
        self.norm = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))
        self.gate_up = self._weight(2 * hidden, width)
        self.down = self._weight(width, hidden)

    @staticmethod
    def _weight(rows: int, cols: int) -> nn.Parameter:
        return nn.Parameter((torch.randn(rows, cols) / cols**0.5).to(torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = F.rms_norm(x, (x.shape[-1],), self.norm)
        gate, up = self.product(normal, self.gate_up).chunk(2, dim=-1)
        return x + self.product(F.silu(gate) * up, self.down)


PARTS = ("forward and backward", "whole step")
Run = tuple[list[float], list[float], list[float]]


def train(product: Product, args: argparse.Namespace, seed: int) -> Run:
    """Per step: loss, seconds of forward and backward, seconds in all. The master weights are float32."""
    torch.manual_seed(10_000)
    teacher = Mlp(args.width, args.hidden, F.linear)
    torch.manual_seed(seed)
    student = Mlp(args.width, args.hidden, product)
    masters = [p.detach().float() for p in student.parameters()]
    optimiser = torch.optim.AdamW(masters, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    forward = torch.compile(student, fullgraph=True) if args.compile else student
    losses, passes, steps = [], [], []
    for step in range(args.steps):
        torch.manual_seed(1000 + step)
        x = torch.randn(args.tokens, args.width, dtype=torch.bfloat16)
        with torch.no_grad():
            wanted = teacher(x)
        synchronise(args.device)
        began = time.perf_counter()
        loss = F.mse_loss(forward(x).float(), wanted.float())
        loss.backward()
        synchronise(args.device)
        passes.append(time.perf_counter() - began)
        for master, weight in zip(masters, student.parameters(), strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        optimiser.step()
        with torch.no_grad():
            for master, weight in zip(masters, student.parameters(), strict=True):
                weight.copy_(master)
        losses.append(loss.item())
        synchronise(args.device)
        steps.append(time.perf_counter() - began)
    return losses, passes, steps


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def tail(losses: list[float]) -> float:
    """Mean loss of the last fifth."""
    return statistics.fmean(losses[-max(1, len(losses) // 5) :])


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Both runs from one start, and bf16 from a second one, whose difference is the noise of training."""
    from tilewright_library import FallbackWarning, gemm_fp8_blockwise

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        fp8, *fp8_seconds = train(gemm_fp8_blockwise, args, 0)
    bf16, *bf16_seconds = train(F.linear, args, 0)
    other, *_ = train(F.linear, args, 1)
    late = slice(max(1, args.steps // 3), None)
    return {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "shape": {"tokens": args.tokens, "width": args.width, "hidden": args.hidden, "steps": args.steps},
        "first_loss": {"fp8": fp8[0], "bf16": bf16[0]},
        "last_loss": {"fp8": tail(fp8), "bf16": tail(bf16), "bf16 from another start": tail(other)},
        "relative_difference": tail(fp8) / tail(bf16) - 1,
        "noise": abs(tail(other) / tail(bf16) - 1),
        "seconds": {
            part: {"fp8": statistics.median(ours[late]), "bf16": statistics.median(theirs[late])}
            for part, ours, theirs in zip(PARTS, fp8_seconds, bf16_seconds, strict=True)
        },
        "curves": {"fp8": fp8, "bf16": bf16},
        "fallbacks": [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)],
    }


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--width", type=int, default=256, help="model width, a multiple of 128")
    parser.add_argument("--hidden", type=int, help="of the MLP, a multiple of 128 (default: 2 x width)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens a step, a multiple of 128")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--compile", action="store_true", help="torch.compile(fullgraph=True) both runs")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    args = parser.parse_args(given)
    args.hidden = args.hidden or 2 * args.width
    return args


def main() -> None:
    args = arguments()
    torch.set_default_device(args.device)
    found = compare(args)
    if args.json:
        json.dump(found, sys.stdout)
        return
    print(f"{found['device']}, {found['shape']}")
    for name, value in found["last_loss"].items():
        print(f"loss at the end, {name}: {value:.5f}")
    print(f"FP8 against bf16: {found['relative_difference']:+.2%}; two bf16 starts differ by {found['noise']:.2%}")
    for part, seconds in found["seconds"].items():
        fp8, bf16 = seconds["fp8"], seconds["bf16"]
        print(f"{part}: fp8 {fp8 * 1e3:.2f} ms, bf16 {bf16 * 1e3:.2f} ms, {bf16 / fp8:.2f} x (measured)")
    for reason in found["fallbacks"]:
        print(f"fallback: {reason}")


if __name__ == "__main__":
    main()
