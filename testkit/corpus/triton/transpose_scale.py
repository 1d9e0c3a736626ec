"""Scaled transpose; the scale is read inside the loop over column tiles."""

import torch
import triton
import triton.language as tl

SPACE = {"B": (32, 64)}
DEFAULTS = {"B": 32}
CONSTRAINTS = {}


@triton.jit
def tscale(x, s, y, M, N, B: tl.constexpr):
    pid = tl.program_id(0)
    r = pid * B + tl.arange(0, B)
    for j in range(0, N, B):
        c = j + tl.arange(0, B)
        f = tl.load(s)
        v = tl.load(x + r[:, None] * N + c[None, :], mask=(r[:, None] < M) & (c[None, :] < N), other=0.0)
        tl.store(y + c[None, :] * M + r[:, None], v / f, mask=(r[:, None] < M) & (c[None, :] < N))


def launch(inputs, params):
    x, s = inputs["x"], inputs["s"]
    m, n = x.shape
    y = torch.empty((n, m), dtype=torch.float32)
    tscale[(triton.cdiv(m, params["B"]),)](x, s, y, m, n, params["B"])
    return (y,)
