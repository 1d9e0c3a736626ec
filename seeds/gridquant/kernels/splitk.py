"""FP8 GEMM (NT) under 2D block scales for few rows: K is split over programs, a second kernel adds the parts."""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_m": (16, 32, 64),
    "block_n": (32, 64, 128),
    "split": (1, 2, 4, 8),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
    "edge": (128, 256),
}
DEFAULTS = {"block_m": 16, "block_n": 64, "split": 4, "num_warps": 4, "num_stages": 3, "edge": 256}
CONSTRAINTS = {
    "edge == block": "the recipe's block",
    "(block_m + block_n) * 128 * num_stages <= 200000": "the stages share 227 KB of shared memory",
    "K % 128 == 0": "a step of K is 128",
}


@triton.jit
def part_kernel(
    a_ptr,
    as_ptr,
    b_ptr,
    bs_ptr,
    part_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    EDGE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    num_n = tl.cdiv(N, BN)
    pm = tl.program_id(0) // num_n
    pn = tl.program_id(0) % num_n
    share = tl.program_id(1)
    steps = K // 128
    blocks = tl.cdiv(K, EDGE)
    row = pm * BM + tl.arange(0, BM)
    col = pn * BN + tl.arange(0, BN)
    depth = tl.arange(0, 128)
    a_at = a_ptr + tl.minimum(row, M - 1).to(tl.int64)[:, None] * K + depth[None, :]
    b_at = b_ptr + tl.minimum(col, N - 1).to(tl.int64)[None, :] * K + depth[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(share * steps // SPLIT, (share + 1) * steps // SPLIT):
        block = k * 128 // EDGE
        scale = tl.load(as_ptr + (pm * BM // EDGE) * blocks + block)
        scale = scale * tl.load(bs_ptr + (pn * BN // EDGE) * blocks + block)
        acc += tl.dot(tl.load(a_at + k * 128), tl.load(b_at + k * 128)) * tl.div_rn(1.0, scale)
    mask = (row < M)[:, None] & (col < N)[None, :]
    at = (share * M + row).to(tl.int64)[:, None] * N + col[None, :]
    tl.store(part_ptr + at, acc, mask=mask)


@triton.jit
def sum_kernel(part_ptr, c_ptr, SIZE, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for share in tl.static_range(SPLIT):
        acc += tl.load(part_ptr + share * SIZE + at, mask=at < SIZE, other=0.0)
    tl.store(c_ptr + at, acc.to(tl.bfloat16), mask=at < SIZE)


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    bm, bn, split = params["block_m"], params["block_n"], params["split"]
    parts = torch.empty((split, m, n), dtype=torch.float32)
    out = torch.empty((m, n), dtype=torch.bfloat16)
    part_kernel[(triton.cdiv(m, bm) * triton.cdiv(n, bn), split)](
        a,
        inputs["a_s"],
        b,
        inputs["b_s"],
        parts,
        m,
        n,
        k,
        bm,
        bn,
        params["edge"],
        split,
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    sum_kernel[(triton.cdiv(m * n, 1024),)](parts, out, m * n, split, 1024)
    return (out,)
