"""Blockwise FP8 GEMM (NT) in plain Triton with TMA descriptors, one program per tile or persistent.

Scales: A one per row and 128-wide step of K ([K/128, M]), B one per 128 x 128 block ([N/128, K/128]). With
``skew`` the partial of one step is promoted while the product of the next is under way; ``store`` writes C
through a descriptor or through pointers.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SPACE = {
    "block_m": (64, 128),
    "block_n": (64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
    "group_m": (1, 4, 8, 16, 32),
    "skew": (False, True),
    "store": ("descriptor", "pointer"),
    "programs": (132, 264, 1048576),
}
DEFAULTS = {
    "block_m": 64,
    "block_n": 128,
    "num_warps": 4,
    "num_stages": 4,
    "group_m": 8,
    "skew": True,
    "store": "descriptor",
    "programs": 1048576,
}
CONSTRAINTS = {
    "(block_m + block_n) * 128 * num_stages <= 200000": "the stages and the store share 227 KB of shared memory",
    "N % 128 == 0": "B's scales come in whole 128 x 128 blocks",
    "K % 128 == 0": "a step of K is one scale block",
}


@triton.jit
def gemm_kernel(
    a_desc,
    as_ptr,
    b_desc,
    bs_ptr,
    c_desc,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    GROUP: tl.constexpr,
    SKEW: tl.constexpr,
    BY_DESCRIPTOR: tl.constexpr,
):
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    per = GROUP * num_n
    steps = K // 128
    for t in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        first = (t // per) * GROUP
        tall = min(num_m - first, GROUP)
        inside = t % per
        pm = first + inside % tall
        pn = inside // tall
        row = pm * BM + tl.arange(0, BM)
        as_at = as_ptr + tl.minimum(row, M - 1)
        bs_at = bs_ptr + (pn * BN // 128) * steps
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        before = tl.zeros((BM, BN), dtype=tl.float32)
        before_scale = tl.zeros((BM,), dtype=tl.float32)
        for k in range(steps):
            a = a_desc.load([pm * BM, k * 128])
            b = b_desc.load([pn * BN, k * 128])
            scale = tl.load(as_at + k * M) * tl.load(bs_at + k)
            partial = tl.dot(a, tl.trans(b))
            if SKEW:
                acc += before * before_scale[:, None]
                before = partial
                before_scale = scale
            else:
                acc += partial * scale[:, None]
        if SKEW:
            acc += before * before_scale[:, None]
        c = acc.to(tl.bfloat16)
        if BY_DESCRIPTOR:
            c_desc.store([pm * BM, pn * BN], c)
        else:
            col = pn * BN + tl.arange(0, BN)
            tl.store(c_ptr + row.to(tl.int64)[:, None] * N + col[None, :], c, mask=(row < M)[:, None])


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
        TensorDescriptor(out, [m, n], [n, 1], [bm, bn]),
        out,
        m,
        n,
        k,
        bm,
        bn,
        params["group_m"],
        params["skew"],
        params["store"] == "descriptor",
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    return (out,)
