"""Blockwise FP8 GEMM over groups of which the first count[g] rows count; the accumulator leaves as MXFP8. Persistent.

Every program walks over the tiles of all groups' counted rows, so what a mask leaves out costs nothing. With
``fused`` 0 the product leaves as bf16 and a second kernel quantises it: the baseline.
"""

import torch
import triton
import triton.language as tl

from tilewright.seeds.gemm_mxfp8_out.kernels.mx import store_tile

SPACE = {
    "block_m": (16, 32, 64, 128),
    "block_n": (32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
    "programs": (132, 264, 528),
    "fused": (0, 1),
}
DEFAULTS = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 4, "programs": 264, "fused": 1}
CONSTRAINTS = {
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
    count_ptr,
    d_ptr,
    ds_ptr,
    c_ptr,
    G,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    FUSED: tl.constexpr,
):
    num_n = tl.cdiv(N, BN)
    steps = K // 128
    depth = tl.arange(0, 128)
    programs = tl.num_programs(0)
    before = 0
    for g in range(G):
        count = tl.load(count_ptr + g)
        tall = tl.cdiv(count, BM)
        for t in range((tl.program_id(0) + programs - before % programs) % programs, tall * num_n, programs):
            pm = t % tall
            pn = t // tall
            row = pm * BM + tl.arange(0, BM)
            col = pn * BN + tl.arange(0, BN)
            # what lies past the end reads the last row or column; it is not stored
            safe = tl.minimum(row, count - 1).to(tl.int64)
            safe_n = tl.minimum(col, N - 1).to(tl.int64)
            a_at = a_ptr + (g * M + safe)[:, None] * K + depth[None, :]
            b_at = b_ptr + (g * N + safe_n)[None, :] * K + depth[:, None]
            as_at = as_ptr + g * steps * M + safe
            bs_at = bs_ptr + (g * tl.cdiv(N, 128) + pn * BN // 128) * steps
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for k in range(steps):
                scale = tl.load(as_at + k * M) * tl.load(bs_at + k)
                acc += tl.dot(tl.load(a_at + k * 128), tl.load(b_at + k * 128)) * scale[:, None]
            line = g * M + row.to(tl.int64)
            store_tile(acc, d_ptr, ds_ptr, c_ptr, line, row, pn * BN, count, N, BM, BN, FUSED)
        before += tall * num_n


@triton.jit
def quantise_kernel(c_ptr, count_ptr, d_ptr, ds_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    g = tl.program_id(1)
    count = tl.load(count_ptr + g)
    num_n = tl.cdiv(N, BN)
    pm = tl.program_id(0) // num_n
    if pm * BM < count:
        row = pm * BM + tl.arange(0, BM)
        left = (tl.program_id(0) % num_n) * BN
        col = left + tl.arange(0, BN)
        line = g.to(tl.int64) * M + row
        inside = (row < count)[:, None] & (col < N)[None, :]
        c = tl.load(c_ptr + line[:, None] * N + col[None, :], mask=inside, other=0.0).to(tl.float32)
        store_tile(c, d_ptr, ds_ptr, c_ptr, line, row, left, count, N, BM, BN, 1)


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    groups, m, k = a.shape
    n = b.shape[1]
    d = torch.empty((groups, m, n), dtype=torch.float8_e4m3fn)
    ds = torch.empty((groups, m, n // 32), dtype=torch.uint8)
    c = d if params["fused"] else torch.empty((groups, m, n), dtype=torch.bfloat16)
    gemm_kernel[(params["programs"],)](
        a,
        inputs["a_s"],
        b,
        inputs["b_s"],
        inputs["count"],
        d,
        ds,
        c,
        groups,
        m,
        n,
        k,
        params["block_m"],
        params["block_n"],
        params["fused"],
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    if not params["fused"]:
        tiles = triton.cdiv(m, 32) * triton.cdiv(n, 256)
        quantise_kernel[(tiles, groups)](c, inputs["count"], d, ds, m, n, 32, 256, num_warps=4)
    return (d, ds)
