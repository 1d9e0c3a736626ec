"""GEMM (NT) of microscaled operands by ``tl.dot_scaled``: MXFP8, MXFP4 or NVFP4 in, bf16 out.

Blackwell (tcgen05) and CDNA4 (v_mfma_scale) multiply scaled blocks themselves. Elsewhere the compiler *emulates* it: it
brings payloads and scales to bf16 and multiplies those, at bf16's rate. ``form`` is the recipe's: 0, 1, 2.
"""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_m": (64, 128),
    "block_n": (64, 128, 256),
    "block_k": (128, 256),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
    "group_m": (1, 8),
    "form": (0, 1, 2),
}
DEFAULTS = {"block_m": 128, "block_n": 128, "block_k": 128, "num_warps": 8, "num_stages": 3, "group_m": 8, "form": 0}
CONSTRAINTS = {
    "form == format": "the recipe's operands",
    "K % block_k == 0": "steps of K are whole",
    "(block_m + block_n) * block_k * num_stages <= 200000": "the stages share 227 KB of shared memory",
    "block_m * block_n <= num_warps * 4096": "the accumulators stay in registers",
}


@triton.jit
def gemm_kernel(
    a_ptr,
    as_ptr,
    b_ptr,
    bs_ptr,
    ta_ptr,
    tb_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    FORM: tl.constexpr,
):
    PACK: tl.constexpr = 1 if FORM == 0 else 2
    EACH: tl.constexpr = 16 if FORM == 2 else 32
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    per = GROUP * num_n
    first = (tl.program_id(0) // per) * GROUP
    tall = min(num_m - first, GROUP)
    inside = tl.program_id(0) % per
    row = (first + inside % tall) * BM + tl.arange(0, BM)
    col = (inside // tall) * BN + tl.arange(0, BN)
    # what lies past the end reads the last row or column; it is not stored
    safe_m = tl.minimum(row, M - 1).to(tl.int64)
    safe_n = tl.minimum(col, N - 1).to(tl.int64)
    depth = tl.arange(0, BK // PACK)
    block = tl.arange(0, BK // EACH)
    a_at = a_ptr + safe_m[:, None] * (K // PACK) + depth[None, :]
    b_at = b_ptr + safe_n[None, :] * (K // PACK) + depth[:, None]
    as_at = as_ptr + safe_m[:, None] * (K // EACH) + block[None, :]
    bs_at = bs_ptr + safe_n[:, None] * (K // EACH) + block[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(K // BK):
        a = tl.load(a_at + k * (BK // PACK))
        b = tl.load(b_at + k * (BK // PACK))
        a_scale = tl.load(as_at + k * (BK // EACH))
        b_scale = tl.load(bs_at + k * (BK // EACH))
        if FORM == 0:
            acc = tl.dot_scaled(a, a_scale, "e4m3", b, b_scale, "e4m3", acc)
        elif FORM == 1:
            acc = tl.dot_scaled(a, a_scale, "e2m1", b, b_scale, "e2m1", acc)
        else:
            a_scale = a_scale.to(tl.float8e4nv, bitcast=True)
            b_scale = b_scale.to(tl.float8e4nv, bitcast=True)
            acc = tl.dot_scaled(a, a_scale, "e2m1", b, b_scale, "e2m1", acc)
    if FORM == 2:
        acc = acc * (tl.load(ta_ptr) * tl.load(tb_ptr))
    stored = (row < M)[:, None] & (col < N)[None, :]
    tl.store(c_ptr + row.to(tl.int64)[:, None] * N + col[None, :], acc.to(tl.bfloat16), mask=stored)


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, n = a.shape[0], b.shape[0]
    form = params["form"]
    k = a.shape[1] * (2 if form else 1)
    c = torch.empty((m, n), dtype=torch.bfloat16)
    gemm_kernel[(triton.cdiv(m, params["block_m"]) * triton.cdiv(n, params["block_n"]),)](
        a,
        inputs["a_s"],
        b,
        inputs["b_s"],
        inputs["a_t"] if form == 2 else inputs["a_s"],
        inputs["b_t"] if form == 2 else inputs["b_s"],
        c,
        m,
        n,
        k,
        params["block_m"],
        params["block_n"],
        params["block_k"],
        params["group_m"],
        form,
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
    )
    return (c,)
