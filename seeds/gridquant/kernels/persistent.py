"""FP8 GEMM (NT) under 2D block scales, persistent, through descriptors. ``scaling`` says where the scales are applied.

``step``: every partial product by its own scales; with ``block_k`` as long as a scale block's edge, once per block.
``ratio``: the accumulator is brought from the scales of one block to those of the next where they change.
Scales are those that multiplied at quantisation, so the product divides by them. ``swap`` multiplies B by A transposed:
few rows of A then are the narrow side of a matrix instruction, not its 64 rows.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SPACE = {
    "block_m": (16, 32, 64, 128),
    "block_n": (32, 64, 128),
    "block_k": (128, 256),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 6, 8),
    "group_m": (1, 4, 8, 16),
    "scaling": ("step", "ratio"),
    "swap": (False, True),
    "programs": (132, 264, 1048576),
    "edge": (128, 256),
}
DEFAULTS = {
    "block_m": 64,
    "block_n": 128,
    "block_k": 128,
    "num_warps": 4,
    "num_stages": 3,
    "group_m": 8,
    "scaling": "step",
    "swap": False,
    "programs": 132,
    "edge": 256,
}
CONSTRAINTS = {
    "edge == block": "the recipe's block",
    "(block_m + block_n) * block_k * num_stages <= 200000": "the stages share 227 KB of shared memory",
    "block_k <= edge": "a step of K has one scale",
    "K % 128 == 0": "a step of K is 128, or 256 with zeros past the end",
    "block_m * block_n <= num_warps * 2048": "the accumulators stay in registers",
    "block_n >= 64 or not swap": "64 rows of a matrix instruction",
}


@triton.jit
def gemm_kernel(
    a_desc,
    as_ptr,
    b_desc,
    bs_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    EDGE: tl.constexpr,
    GROUP: tl.constexpr,
    SCALING: tl.constexpr,
    SWAP: tl.constexpr,
):
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    per = GROUP * num_n
    blocks = tl.cdiv(K, EDGE)
    for t in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        first = (t // per) * GROUP
        tall = min(num_m - first, GROUP)
        inside = t % per
        pm = first + inside % tall
        pn = inside // tall
        as_at = as_ptr + (pm * BM // EDGE) * blocks
        bs_at = bs_ptr + (pn * BN // EDGE) * blocks
        acc = tl.zeros((BN, BM) if SWAP else (BM, BN), dtype=tl.float32)
        held = tl.load(as_at) * tl.load(bs_at)
        for k in range(tl.cdiv(K, BK)):
            block = k * BK // EDGE
            scale = tl.load(as_at + block) * tl.load(bs_at + block)
            a = a_desc.load([pm * BM, k * BK])
            b = b_desc.load([pn * BN, k * BK])
            if SCALING == "ratio":
                if k * BK % EDGE == 0:
                    acc = acc * tl.div_rn(scale, held)
                acc = tl.dot(b, tl.trans(a), acc) if SWAP else tl.dot(a, tl.trans(b), acc)
                held = scale
            else:
                part = tl.dot(b, tl.trans(a)) if SWAP else tl.dot(a, tl.trans(b))
                acc += part * tl.div_rn(1.0, scale)
        if SCALING == "ratio":
            acc = acc * tl.div_rn(1.0, held)
        if SWAP:
            acc = tl.trans(acc)
        row = pm * BM + tl.arange(0, BM)
        col = pn * BN + tl.arange(0, BN)
        mask = (row < M)[:, None] & (col < N)[None, :]
        tl.store(c_ptr + row.to(tl.int64)[:, None] * N + col[None, :], acc.to(tl.bfloat16), mask=mask)


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    bm, bn, bk = params["block_m"], params["block_n"], params["block_k"]
    out = torch.empty((m, n), dtype=torch.bfloat16)
    grid = (min(triton.cdiv(m, bm) * triton.cdiv(n, bn), params["programs"]),)
    gemm_kernel[grid](
        TensorDescriptor(a, [m, k], [k, 1], [bm, bk]),
        inputs["a_s"],
        TensorDescriptor(b, [n, k], [k, 1], [bn, bk]),
        inputs["b_s"],
        out,
        m,
        n,
        k,
        bm,
        bn,
        bk,
        params["edge"],
        params["group_m"],
        params["scaling"],
        params["swap"],
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    return (out,)
