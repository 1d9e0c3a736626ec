"""FP8 forward product (NT) with the tile and the matrix instruction open, for AMD's matrix cores."""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_m": (64, 128, 256),
    "block_n": (64, 128),
    "num_warps": (4, 8),
    "num_stages": (1, 2, 3),
    "nonkdim": (0, 16),
}
DEFAULTS = {"block_m": 128, "block_n": 128, "num_warps": 4, "num_stages": 2, "nonkdim": 0}
CONSTRAINTS = {
    "M % 256 == 0": "tiles are whole",
    "N % 128 == 0": "tiles are whole",
    "K % 128 == 0": "blocks are whole",
}


@triton.jit
def forward_kernel(a_ptr, as_ptr, b_ptr, bs_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr):
    pm = tl.program_id(0) % (M // BM)
    pn = tl.program_id(0) // (M // BM)
    row = pm * BM + tl.arange(0, BM)
    col = pn * BN + tl.arange(0, BN)
    depth = tl.arange(0, 128)
    a_at = a_ptr + row[:, None] * K + depth[None, :]
    b_at = b_ptr + col[None, :] * K + depth[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(K // 128):
        scale = tl.load(as_ptr + step * M + row) * tl.load(bs_ptr + (pn * BN // 128) * (K // 128) + step)
        acc += tl.dot(tl.load(a_at), tl.load(b_at)) * scale[:, None]
        a_at += 128
        b_at += 128
    tl.store(c_ptr + row[:, None] * N + col[None, :], acc.to(tl.bfloat16))


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    out = torch.empty((m, n), dtype=torch.bfloat16)
    grid = ((m // params["block_m"]) * (n // params["block_n"]),)
    forward_kernel[grid](
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
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
        matrix_instr_nonkdim=params["nonkdim"],
    )
    return (out,)
