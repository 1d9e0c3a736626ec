"""A small training step with a Triton softmax: what ``tilewright program`` is pointed at in the tutorial.

tilewright program examples/program.py:step --setup setup
"""

import torch
from softmax import softmax_kernel


class Softmax(torch.autograd.Function):
    """``softmax(x)`` over the rows of ``x [rows, columns]``, with its gradient."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], 1 << (x.shape[1] - 1).bit_length())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return y * (dy - (y * dy).sum(1, keepdim=True))


def setup():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, columns = (4096, 8192) if device == "cuda" else (8, 48)
    model = torch.nn.Linear(64, columns, device=device)
    return model, torch.randn(rows, 64, device=device)


def step(state):
    model, x = state
    model.zero_grad()
    loss = Softmax.apply(model(x)).square().sum()
    loss.backward()
    return loss
