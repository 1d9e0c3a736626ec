"""A small training step with a Triton activation: what ``tilewright program`` is pointed at in the tutorial.

tilewright program examples/program.py:step --setup setup
"""

import torch
import triton
import triton.language as tl


@triton.jit
def swish_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * tl.sigmoid(x), mask=at < n)


class Swish(torch.autograd.Function):
    """``x * sigmoid(x)``, with its gradient."""

    @staticmethod
    def forward(ctx, x):
        y, n = torch.empty_like(x), x.numel()
        swish_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, BLOCK=128)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return torch.ops.aten.silu_backward(dy, x)


def setup():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, columns = (4096, 8192) if device == "cuda" else (8, 48)
    model = torch.nn.Linear(64, columns, device=device)
    return model, torch.randn(rows, 64, device=device)


def step(state):
    model, x = state
    model.zero_grad()
    loss = Swish.apply(model(x)).square().mean()
    loss.backward()
    return loss
