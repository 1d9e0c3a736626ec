"""FP8 GEMM (NT) under 2D block scales, persistent, through descriptors. ``scaling`` says where the scales are applied.

``step``: every partial product by its own scales. ``boundary``: partials of one scale block are summed first.
``ratio``: the accumulator is brought from the scales of one block to those of the next where they change.
Scales are those that multiplied at quantisation, so the product divides by them.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SPACE = {
    "block_m": (64, 128),
    "block_n": (64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
    "group_m": (1, 4, 8, 16),
    "scaling": ("step", "boundary", "ratio"),
    "programs": (132, 264, 1048576),
    "edge": (128, 256),
}
DEFAULTS = {
    "block_m": 64,
    "block_n": 128,
    "num_warps": 4,
    "num_stages": 3,
    "group_m": 8,
    "scaling": "boundary",
    "programs": 132,
    "edge": 256,
}
CONSTRAINTS = {
    "edge == block": "the recipe's block",
    "(block_m + block_n) * 128 * num_stages <= 200000": "the stages share 227 KB of shared memory",
    "K % 128 == 0": "a step of K is 128",
    "block_m * block_n <= num_warps * 2048": "the accumulators stay in registers",
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
    EDGE: tl.constexpr,
    GROUP: tl.constexpr,
    SCALING: tl.constexpr,
):
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    per = GROUP * num_n
    steps = K // 128
    blocks = tl.cdiv(K, EDGE)
    for t in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        first = (t // per) * GROUP
        tall = min(num_m - first, GROUP)
        inside = t % per
        pm = first + inside % tall
        pn = inside // tall
        as_at = as_ptr + (pm * BM // EDGE) * blocks
        bs_at = bs_ptr + (pn * BN // EDGE) * blocks
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        if SCALING == "boundary":
            for block in range(blocks):
                part = tl.zeros((BM, BN), dtype=tl.float32)
                for k in range(block * (EDGE // 128), min((block + 1) * (EDGE // 128), steps)):
                    part = tl.dot(
                        a_desc.load([pm * BM, k * 128]), tl.trans(b_desc.load([pn * BN, k * 128])), part
                    )
                acc += part * tl.div_rn(1.0, tl.load(as_at + block) * tl.load(bs_at + block))
        else:
            held = tl.load(as_at) * tl.load(bs_at)
            for k in range(steps):
                block = k * 128 // EDGE
                scale = tl.load(as_at + block) * tl.load(bs_at + block)
                a = a_desc.load([pm * BM, k * 128])
                b = b_desc.load([pn * BN, k * 128])
                if SCALING == "ratio":
                    if k * 128 % EDGE == 0:
                        acc = acc * tl.div_rn(scale, held)
                    acc = tl.dot(a, tl.trans(b), acc)
                    held = scale
                else:
                    acc += tl.dot(a, tl.trans(b)) * tl.div_rn(1.0, scale)
            if SCALING == "ratio":
                acc = acc * tl.div_rn(1.0, held)
        row = pm * BM + tl.arange(0, BM)
        col = pn * BN + tl.arange(0, BN)
        mask = (row < M)[:, None] & (col < N)[None, :]
        tl.store(c_ptr + row.to(tl.int64)[:, None] * N + col[None, :], acc.to(tl.bfloat16), mask=mask)


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    bm, bn = params["block_m"], params["block_n"]
    out = torch.empty((m, n), dtype=torch.bfloat16)
    grid = (min(triton.cdiv(m, bm) * triton.cdiv(n, bn), params["programs"]),)
    gemm_kernel[grid](
        TensorDescriptor(a, [m, k], [k, 1], [bm, 128]),
        inputs["a_s"],
        TensorDescriptor(b, [n, k], [k, 1], [bn, 128]),
        inputs["b_s"],
        out,
        m,
        n,
        k,
        bm,
        bn,
        params["edge"],
        params["group_m"],
        params["scaling"],
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    return (out,)
