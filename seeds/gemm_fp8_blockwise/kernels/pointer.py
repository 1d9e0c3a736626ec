"""Blockwise FP8 GEMM (NT) in plain Triton with pointer loads: the seed a user would write first.

Scales: A one per row and 128-wide step of K ([K/128, M]), B one per 128 x 128 block ([N/128, K/128]) or, as A,
one per row and step ([K/128, N]). With ``skew`` the partial of one step is promoted while the product of the
next is under way.
"""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_m": (16, 32, 64, 128),
    "block_n": (32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
    "group_m": (1, 4, 8, 16, 32),
    "skew": (False, True),
}
DEFAULTS = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 4, "group_m": 8, "skew": True}
CONSTRAINTS = {
    "(block_m + block_n) * 128 * num_stages <= 229376": "the stages share 227 KB of shared memory",
    "N % block_n == 0": "tiles are whole along N",
    "K % 128 == 0": "a step of K is one scale block",
    "block_m >= 64 or num_warps == 4": "a small tile has work for four warps",
}


@triton.jit
def gemm_kernel(
    a_ptr,
    as_ptr,
    b_ptr,
    bs_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    GROUP: tl.constexpr,
    SKEW: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    per = GROUP * num_n
    first = (tl.program_id(0) // per) * GROUP
    tall = min(num_m - first, GROUP)
    inside = tl.program_id(0) % per
    pm = first + inside % tall
    pn = inside // tall
    steps = K // 128
    row = pm * BM + tl.arange(0, BM)
    col = pn * BN + tl.arange(0, BN)
    depth = tl.arange(0, 128)
    # rows past the end read the last row; they are not stored
    safe = tl.minimum(row, M - 1)
    a_at = a_ptr + safe.to(tl.int64)[:, None] * K + depth[None, :]
    b_at = b_ptr + col.to(tl.int64)[None, :] * K + depth[:, None]
    as_at = as_ptr + safe
    bs_at = bs_ptr + (col if COLUMNS else (pn * BN // 128) * steps)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    before = tl.zeros((BM, BN), dtype=tl.float32)
    before_scale = tl.zeros((BM,), dtype=tl.float32)
    for k in range(steps):
        scale = tl.load(as_at + k * M)
        partial = tl.dot(tl.load(a_at + k * 128), tl.load(b_at + k * 128))
        if COLUMNS:
            partial *= tl.load(bs_at + k * N)[None, :]
        else:
            scale *= tl.load(bs_at + k)
        if SKEW:
            acc += before * before_scale[:, None]
            before = partial
            before_scale = scale
        else:
            acc += partial * scale[:, None]
    if SKEW:
        acc += before * before_scale[:, None]
    c_at = c_ptr + row.to(tl.int64)[:, None] * N + col[None, :]
    tl.store(c_at, acc.to(tl.bfloat16), mask=(row < M)[:, None])


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    out = torch.empty((m, n), dtype=torch.bfloat16)
    grid = (triton.cdiv(m, params["block_m"]) * triton.cdiv(n, params["block_n"]),)
    gemm_kernel[grid](
        a,
        inputs["a_s"],
        b,
        inputs["b_s"],
        out,
        m,
        n,
        k,
        params["block_m"],
        params["block_n"],
        params["group_m"],
        params["skew"],
        inputs["b_s"].shape[0] == k // 128 and inputs["b_s"].shape[1] == n,
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    return (out,)
