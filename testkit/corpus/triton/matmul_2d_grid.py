"""Two-dimensional grid, accumulate after the dot, float32."""

import torch
import triton
import triton.language as tl

SPACE = {"bm": (32, 64), "bn": (32, 64), "bk": (32, 64)}
DEFAULTS = {"bm": 32, "bn": 32, "bk": 32}
CONSTRAINTS = {"K % bk == 0": "whole steps"}


@triton.jit
def gemm(X, Y, Z, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0)
    j = tl.program_id(1)
    rows = i * BM + tl.arange(0, BM)
    cols = j * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, K, BK):
        xs = tl.load(X + rows[:, None] * K + (step + inner)[None, :])
        ys = tl.load(Y + (step + inner)[:, None] * N + cols[None, :])
        acc += tl.dot(xs, ys, input_precision="ieee")
    tl.store(Z + rows[:, None] * N + cols[None, :], acc)


def launch(inputs, params):
    x, y = inputs["x"], inputs["y"]
    m, k = x.shape
    n = y.shape[1]
    z = torch.empty((m, n), dtype=torch.float32)
    gemm[(triton.cdiv(m, params["bm"]), triton.cdiv(n, params["bn"]))](
        x, y, z, m, n, k, params["bm"], params["bn"], params["bk"]
    )
    return (z,)
