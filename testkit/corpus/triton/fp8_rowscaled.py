"""Blockwise scales, scaled right after each dot; indices from the loop counter."""

import torch
import triton
import triton.language as tl

SPACE = {"bm": (32, 64), "bn": (32,), "num_stages": (2, 3)}
DEFAULTS = {"bm": 32, "bn": 32, "num_stages": 2}
CONSTRAINTS = {"K % 128 == 0": "whole blocks"}


@triton.jit
def scaled_mm(aq, bq, ascale, bscale, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr):
    tile = tl.program_id(0)
    across = N // BN
    r = (tile // across) * BM + tl.arange(0, BM)
    c0 = (tile % across) * BN
    c = c0 + tl.arange(0, BN)
    d = tl.arange(0, 128)
    total = tl.zeros((BM, BN), tl.float32)
    nblocks = K // 128
    for t in range(nblocks):
        left = tl.load(aq + r[:, None] * K + d[None, :] + t * 128)
        right = tl.load(bq + c[None, :] * K + d[:, None] + t * 128)
        rs = tl.load(ascale + t * M + r)
        cs = tl.load(bscale + (c0 // 32) * nblocks + t)
        total += tl.dot(left, right) * rs[:, None] * cs
    tl.store(out + r[:, None] * N + c[None, :], total)


def launch(inputs, params):
    a, b = inputs["a"], inputs["b"]
    m, k = a.shape
    n = b.shape[0]
    out = torch.empty((m, n), dtype=torch.float32)
    scaled_mm[(m // params["bm"] * (n // params["bn"]),)](
        a,
        b,
        inputs["sa"],
        inputs["sb"],
        out,
        m,
        n,
        k,
        BM=params["bm"],
        BN=params["bn"],
        num_stages=params["num_stages"],
    )
    return (out,)
