"""Blockwise FP8 GEMM (NT) for few rows, in plain Triton: programs share a tile's K, a second kernel adds their sums.

With M of 4 to 128 there are too few output tiles to keep 132 multiprocessors reading. ``split`` programs per tile
read different stretches of K and write float32 partial sums [split, M, N], which cost 4 M N split bytes each way:
little beside the weights while M is small.
"""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_m": (16, 32, 64, 128),
    "block_n": (32, 64, 128),
    "split": (1, 2, 4, 8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5, 6),
    "reduce_block": (512, 1024, 2048),
}
DEFAULTS = {
    "block_m": 64,
    "block_n": 64,
    "split": 4,
    "num_warps": 4,
    "num_stages": 4,
    "reduce_block": 1024,
}
CONSTRAINTS = {
    "(block_m + block_n) * 128 * num_stages <= 229376": "the stages share 227 KB of shared memory",
    "N % 128 == 0": "B's scales come in whole 128 x 128 blocks",
    "K % 128 == 0": "a step of K is one scale block",
    "split <= K // 128": "every program has a step of K",
    "block_m >= 64 or num_warps == 4": "a small tile has work for four warps",
}


@triton.jit
def partial_kernel(a_ptr, as_ptr, b_ptr, bs_ptr, sum_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr):
    pn = tl.program_id(0)
    pm = tl.program_id(1)
    part = tl.program_id(2)
    steps = K // 128
    begin = steps * part // tl.num_programs(2)
    end = steps * (part + 1) // tl.num_programs(2)
    row = pm * BM + tl.arange(0, BM)
    col = pn * BN + tl.arange(0, BN)
    depth = tl.arange(0, 128)
    # rows past the end read the last row; they are not stored
    safe = tl.minimum(row, M - 1)
    a_at = a_ptr + safe.to(tl.int64)[:, None] * K + depth[None, :]
    b_at = b_ptr + col.to(tl.int64)[None, :] * K + depth[:, None]
    bs_at = bs_ptr + (pn * BN // 128) * steps
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(begin, end):
        scale = tl.load(as_ptr + k * M + safe) * tl.load(bs_at + k)
        acc += tl.dot(tl.load(a_at + k * 128), tl.load(b_at + k * 128)) * scale[:, None]
    at = part.to(tl.int64) * M * N + row.to(tl.int64)[:, None] * N + col[None, :]
    tl.store(sum_ptr + at, acc, mask=(row < M)[:, None])


@triton.jit
def add_kernel(sum_ptr, c_ptr, count, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(PARTS):
        total += tl.load(sum_ptr + part * count + at, mask=inside, other=0.0)
    tl.store(c_ptr + at, total.to(tl.bfloat16), mask=inside)


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    parts = params["split"]
    sums = torch.empty((parts, m, n), dtype=torch.float32)
    out = torch.empty((m, n), dtype=torch.bfloat16)
    grid = (n // params["block_n"], triton.cdiv(m, params["block_m"]), parts)
    partial_kernel[grid](
        a,
        inputs["a_s"],
        b,
        inputs["b_s"],
        sums,
        m,
        n,
        k,
        params["block_m"],
        params["block_n"],
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    add_kernel[(triton.cdiv(m * n, params["reduce_block"]),)](sums, out, m * n, parts, params["reduce_block"])
    return (out,)
