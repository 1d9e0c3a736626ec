"""Persistent programs with tl.range over tiles."""

import torch
import triton
import triton.language as tl

SPACE = {"bm": (32, 64), "bn": (32, 64), "bk": (32, 64), "programs": (3, 132)}
DEFAULTS = {"bm": 32, "bn": 32, "bk": 32, "programs": 132}
CONSTRAINTS = {}


@triton.jit
def persistent(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    wide = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * wide
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        rm = (tile // wide) * BM + tl.arange(0, BM)
        rn = (tile % wide) * BN + tl.arange(0, BN)
        rk = tl.arange(0, BK)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in tl.range(0, K, BK, num_stages=2):
            a = tl.load(a_ptr + rm[:, None] * K + (k + rk)[None, :], mask=rm[:, None] < M, other=0.0)
            b = tl.load(b_ptr + (k + rk)[:, None] * N + rn[None, :], mask=rn[None, :] < N, other=0.0)
            acc = tl.dot(a, b, acc)
        tl.store(
            c_ptr + rm[:, None] * N + rn[None, :],
            acc.to(tl.float16),
            mask=(rm[:, None] < M) & (rn[None, :] < N),
        )


def launch(inputs, params):
    a, b = inputs["a"], inputs["b"]
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=torch.float16)
    persistent[(params["programs"],)](
        a, b, c, m, n, k, BM=params["bm"], BN=params["bn"], BK=params["bk"], num_warps=4
    )
    return (c,)
