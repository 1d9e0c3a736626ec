"""Blockwise FP8 products in groups of rows in plain Triton: persistent programs over the tiles of every group.

A [M, K]: rows are dealt to groups in order, ``count[g]`` to group g. A [G, M, K]: the first ``count[g]`` of the M rows
of group g count.
"""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_m": (16, 32, 64, 128),
    "block_n": (64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
    "programs": (132, 264, 528),
}
DEFAULTS = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 4, "programs": 264}
CONSTRAINTS = {
    "(block_m + block_n) * 128 * num_stages <= 229376": "the stages share 227 KB of shared memory",
    "K % 128 == 0": "a step of K is one scale block",
    "block_m >= 64 or num_warps == 4": "a small tile has work for four warps",
}


@triton.jit
def gemm_kernel(
    a_ptr,
    as_ptr,
    b_ptr,
    bs_ptr,
    count_ptr,
    c_ptr,
    G,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    MASKED: tl.constexpr,
):
    num_n = tl.cdiv(N, BN)
    steps = K // 128
    depth = tl.arange(0, 128)
    programs = tl.num_programs(0)
    tiles = 0
    begin = 0
    for g in range(G):
        count = tl.load(count_ptr + g)
        if MASKED:
            begin = g * M
        tall = tl.cdiv(count, BM)
        for t in range((tl.program_id(0) + programs - tiles % programs) % programs, tall * num_n, programs):
            row = (t % tall) * BM + tl.arange(0, BM)
            col = (t // tall) * BN + tl.arange(0, BN)
            there, wide = row < count, col < N
            at = (begin + row).to(tl.int64)
            a_at = a_ptr + at[:, None] * K + depth[None, :]
            b_at = b_ptr + (g * N + col).to(tl.int64)[None, :] * K + depth[:, None]
            as_at = as_ptr + (begin * steps if MASKED else begin) + row
            bs_at = bs_ptr + (g * tl.cdiv(N, 128) + col // 128) * steps
            acc = tl.zeros((BM, BN), tl.float32)
            for k in range(steps):
                a = tl.load(a_at + k * 128, mask=there[:, None], other=0.0)
                b = tl.load(b_at + k * 128, mask=wide[None, :], other=0.0)
                sa = tl.load(as_at + k * M, mask=there, other=0.0)
                sb = tl.load(bs_at + k, mask=wide, other=0.0)
                acc += tl.dot(a, b) * sa[:, None] * sb[None, :]
            tl.store(
                c_ptr + at[:, None] * N + col[None, :],
                acc.to(tl.bfloat16),
                mask=there[:, None] & wide[None, :],
            )
        tiles += tall * num_n
        if not MASKED:
            begin += count


def launch(inputs, params):
    a, b, count = inputs["a_q"], inputs["b_q"], inputs["count"]
    masked = len(a.shape) == 3
    m, k = a.shape[-2], a.shape[-1]
    g, n = b.shape[0], b.shape[1]
    out = torch.empty((g, m, n) if masked else (m, n), dtype=torch.bfloat16)
    gemm_kernel[(params["programs"],)](
        a,
        inputs["a_s"],
        b,
        inputs["b_s"],
        count,
        out,
        g,
        m,
        n,
        k,
        params["block_m"],
        params["block_n"],
        masked,
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    return (out,)
