"""Products of a mixture's experts whose group sizes stay on the device: no host read, so graphs and queues go on.

Rows are moved to where every expert begins at a multiple of 128, in a buffer whose size depends on nothing but the
number of rows and experts. Operands are rounded as the recipe says, by the promoted quantisers where there are any;
the three grouped products themselves are torch's, in bf16, until a grouped FP8 kernel is promoted.
"""

from __future__ import annotations

from typing import Any

import torch

from .torch_contract import BLOCK, dequantise_blocks, dequantise_rows
from .torch_ops import LAUNCHER, run

_REASON = "no grouped kernel has been promoted for group sizes on the device"


def grouped_linear(x: torch.Tensor, w: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """``x`` [T, K], rows sorted by expert, ``w`` [E, N, K], ``counts`` [E] whole numbers on x's device -> [T, N] bf16.

    Differentiable in x and w. K and N are multiples of 128. Counts that do not add up to T, or are negative, fail on
    the device (RuntimeError at the next synchronisation).
    """
    LAUNCHER.dispatcher.warn("grouped", _REASON)
    place, ends, rows = layout(counts, x.shape[0])
    padded = x.new_zeros((rows, x.shape[1])).index_copy(0, place, x)
    return _Grouped.apply(padded, w, ends).index_select(0, place)


def layout(counts: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Of a padded buffer: the place of each of ``total`` rows, ends [E] int32 of the experts' blocks, its rows."""
    counts = counts.to(torch.int64)
    torch._assert_async((counts.sum() == total) & (counts >= 0).all())
    ends = counts.cumsum(0)
    blocks = ((counts + BLOCK - 1) // BLOCK * BLOCK).cumsum(0)
    number = torch.arange(total, device=counts.device)
    expert = torch.searchsorted(ends, number, right=True).clamp_max(counts.shape[0] - 1)
    padded_ends = torch.cat((blocks.new_zeros(1), blocks))
    place = number - (ends - counts)[expert] + padded_ends[expert]
    rows = -(-total // BLOCK) * BLOCK + BLOCK * counts.shape[0]
    return place, blocks.to(torch.int32), rows


def _both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [R, C] rounded in blocks along its rows, and along its columns, in bf16."""
    q, s, q_t, s_t = run("quant_dual", (x.shape[0], x.shape[1]), {"x": x})
    return dequantise_rows(q, s).bfloat16(), dequantise_rows(q_t, s_t).t().bfloat16()


class _Grouped(torch.autograd.Function):
    """y, dx and dw of rows in blocks by expert; every operand rounded to FP8 along what it is summed over."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        experts, n, k = w.shape
        along_k, along_rows = _both(x)
        rounded = dequantise_blocks(
            *run("quant_128x128", (experts * n, k), {"x": w.reshape(experts * n, k).contiguous()})
        ).bfloat16()
        rounded = rounded.reshape(experts, n, k)
        ctx.save_for_backward(along_rows, rounded, ends)
        return _product(along_k, rounded.transpose(1, 2), ends)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        along_rows, rounded, ends = ctx.saved_tensors
        along_n, dy_along_rows = _both(gradients[0].contiguous())
        dx = _product(along_n, rounded, ends) if ctx.needs_input_grad[0] else None
        dw = None
        if ctx.needs_input_grad[1]:
            dw = _product(dy_along_rows.t().contiguous(), along_rows.contiguous(), ends)
        return dx, dw, None


def _product(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """torch's grouped product: rows of a, or columns of a and rows of b, end where ``ends`` says."""
    product: torch.Tensor = torch._grouped_mm(a, b, offs=ends)
    return product
