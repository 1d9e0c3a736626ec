"""Layer normalisation in blocks of columns: three loops, an int64 row offset."""

import torch
import triton
import triton.language as tl

SPACE = {"BLOCK": (64, 128, 256)}
DEFAULTS = {"BLOCK": 64}
CONSTRAINTS = {}


@triton.jit
def ln(X, Y, W, B, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    X += row * N
    Y += row * N
    mean = tl.zeros((BLOCK,), dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mean += tl.load(X + cols, mask=cols < N, other=0.0)
    mu = tl.sum(mean, axis=0) / N
    var = tl.zeros((BLOCK,), dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=0.0)
        x = tl.where(cols < N, x - mu, 0.0)
        var += x * x
    rstd = 1.0 / tl.sqrt(tl.sum(var, axis=0) / N + eps)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        keep = cols < N
        w = tl.load(W + cols, mask=keep)
        b = tl.load(B + cols, mask=keep)
        x = tl.load(X + cols, mask=keep, other=0.0)
        tl.store(Y + cols, (x - mu) * rstd * w + b, mask=keep)


def launch(inputs, params):
    x = inputs["x"]
    y = torch.empty(x.shape, dtype=torch.float32)
    ln[(x.shape[0],)](x, y, inputs["w"], inputs["b"], x.shape[1], 1e-5, BLOCK=params["BLOCK"])
    return (y,)
