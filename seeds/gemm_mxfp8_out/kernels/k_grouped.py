"""Blockwise FP8 GEMM over groups of K: d[g] = A . B^T over the steps of group g, as MXFP8; zeros for no steps.

Both operands have 1 x 128 scales, as a weight gradient's have. With ``fused`` 0 the product leaves as bf16 and a
second kernel quantises it: the baseline.
"""

import torch
import triton
import triton.language as tl

from tilewright.seeds.gemm_mxfp8_out.kernels.mx import quantised, store_tile

SPACE = {
    "block_m": (64, 128),
    "block_n": (32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
    "group_m": (1, 4, 8, 16),
    "fused": (0, 1),
}
DEFAULTS = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 4, "group_m": 8, "fused": 1}
CONSTRAINTS = {
    "(block_m + block_n) * 128 * num_stages <= 229376": "the stages share 227 KB of shared memory",
    "N % 32 == 0": "an exponent serves 32 columns",
    "K % 128 == 0": "a step of K is one scale block",
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
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    GROUP: tl.constexpr,
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
    g = tl.program_id(1)
    begin = 0
    for before in range(g):
        begin += tl.load(count_ptr + before)
    end = begin + tl.load(count_ptr + g)
    row = pm * BM + tl.arange(0, BM)
    col = pn * BN + tl.arange(0, BN)
    depth = tl.arange(0, 128)
    # what lies past the end reads the last row or column; it is not stored
    safe_m = tl.minimum(row, M - 1)
    safe_n = tl.minimum(col, N - 1)
    a_at = a_ptr + safe_m.to(tl.int64)[:, None] * K + depth[None, :]
    b_at = b_ptr + safe_n.to(tl.int64)[None, :] * K + depth[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(begin, end):
        a_scale = tl.load(as_ptr + k * M + safe_m)
        b_scale = tl.load(bs_ptr + k * N + safe_n)
        partial = tl.dot(tl.load(a_at + k * 128), tl.load(b_at + k * 128))
        acc += partial * a_scale[:, None] * b_scale[None, :]
    store_tile(acc, d_ptr, ds_ptr, c_ptr, g.to(tl.int64) * M + row, row, pn * BN, M, N, BM, BN, FUSED)


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n, groups = b.shape[0], inputs["count"].shape[0]
    d = torch.empty((groups, m, n), dtype=torch.float8_e4m3fn)
    ds = torch.empty((groups, m, n // 32), dtype=torch.uint8)
    c = d if params["fused"] else torch.empty((groups, m, n), dtype=torch.bfloat16)
    tiles = triton.cdiv(m, params["block_m"]) * triton.cdiv(n, params["block_n"])
    gemm_kernel[(tiles, groups)](
        a,
        inputs["a_s"],
        b,
        inputs["b_s"],
        inputs["count"],
        d,
        ds,
        c,
        m,
        n,
        k,
        params["block_m"],
        params["block_n"],
        params["group_m"],
        params["fused"],
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    if not params["fused"]:
        quantised(c, d, ds, groups * m, 1)
    return (d, ds)
