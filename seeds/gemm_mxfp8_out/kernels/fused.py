"""Blockwise FP8 GEMM (NT) that quantises its accumulator to MXFP8 before it leaves the registers.

Scales: A one per row and 128-wide step of K ([K/128, M]), B one per 128 x 128 block. With ``grouped`` every 128 rows
of A belong to one of several B's. Exponents come from the accumulator's bits, never from a logarithm. With ``fused`` 0
the product leaves as bf16 and a second kernel quantises it: the baseline.
"""

import torch
import triton
import triton.language as tl

from tilewright.seeds.gemm_mxfp8_out.kernels.mx import quantised, store_tile

SPACE = {
    "block_m": (16, 32, 64, 128),
    "block_n": (32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
    "group_m": (1, 4, 8, 16, 32),
    "skew": (False, True),
    "grouped": (0, 1),
    "fused": (0, 1),
}
DEFAULTS = {
    "block_m": 64,
    "block_n": 128,
    "num_warps": 4,
    "num_stages": 4,
    "group_m": 8,
    "skew": False,
    "grouped": 0,
    "fused": 1,
}
CONSTRAINTS = {
    "grouped == by_groups": "the recipe's operands",
    "(block_m + block_n) * 128 * num_stages <= 229376": "the stages share 227 KB of shared memory",
    "N % 32 == 0": "an exponent serves 32 columns",
    "K % 128 == 0": "a step of K is one scale block",
    "block_m >= 64 or num_warps == 4": "a small tile has work for four warps",
}


@triton.jit
def gemm_kernel(
    a_ptr,
    as_ptr,
    b_ptr,
    bs_ptr,
    g_ptr,
    d_ptr,
    ds_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    GROUP: tl.constexpr,
    SKEW: tl.constexpr,
    GROUPED: tl.constexpr,
    FUSED: tl.constexpr,
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
    # what lies past the end reads the last row or column; it is not stored
    safe = tl.minimum(row, M - 1)
    a_at = a_ptr + safe.to(tl.int64)[:, None] * K + depth[None, :]
    b_at = b_ptr + tl.minimum(col, N - 1).to(tl.int64)[None, :] * K + depth[:, None]
    as_at = as_ptr + safe
    bs_at = bs_ptr + (pn * BN // 128) * steps
    if GROUPED:
        group = tl.load(g_ptr + pm * BM // 128).to(tl.int64)
        b_at += group * N * K
        bs_at += group * tl.cdiv(N, 128) * steps
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    before = tl.zeros((BM, BN), dtype=tl.float32)
    before_scale = tl.zeros((BM,), dtype=tl.float32)
    for k in range(steps):
        scale = tl.load(as_at + k * M) * tl.load(bs_at + k)
        partial = tl.dot(tl.load(a_at + k * 128), tl.load(b_at + k * 128))
        if SKEW:
            acc += before * before_scale[:, None]
            before = partial
            before_scale = scale
        else:
            acc += partial * scale[:, None]
    if SKEW:
        acc += before * before_scale[:, None]
    store_tile(acc, d_ptr, ds_ptr, d_ptr, row.to(tl.int64), row, pn * BN, M, N, BM, BN, FUSED)


def product(inputs, params, ds):
    """Payloads, with exponents into ``ds``; or the product in bf16 where ``fused`` is 0."""
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[-2]
    out = torch.empty((m, n), dtype=torch.float8_e4m3fn if params["fused"] else torch.bfloat16)
    grid = (triton.cdiv(m, params["block_m"]) * triton.cdiv(n, params["block_n"]),)
    gemm_kernel[grid](
        a,
        inputs["a_s"],
        b,
        inputs["b_s"],
        inputs["group"] if params["grouped"] else a,
        out,
        ds,
        m,
        n,
        k,
        params["block_m"],
        params["block_n"],
        params["group_m"],
        params["skew"],
        params["grouped"],
        params["fused"],
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    return out


def launch(inputs, params):
    m, n = inputs["a_q"].shape[0], inputs["b_q"].shape[-2]
    ds = torch.empty((m, n // 32), dtype=torch.uint8)
    made = product(inputs, params, ds)
    if params["fused"]:
        return (made, ds)
    d = torch.empty((m, n), dtype=torch.float8_e4m3fn)
    quantised(made, d, ds, m, 1)
    return (d, ds)
