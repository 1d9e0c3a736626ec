"""FP8 weight gradient from row-major operands (TN), as a kernel for AMD's matrix cores would be written.

dw [N, K] = dy^T . x: both operands are quantised in 128 x 1 blocks along the tokens and lie row-major, so a tile is
computed as [K, N] and stored turned. ``epilogue`` says how: ``direct`` scatters the accumulator as it lies,
``turned`` transposes the tile first, so that a lane stores neighbours.
"""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_k": (64, 128, 256),
    "block_n": (64, 128),
    "num_warps": (4, 8),
    "num_stages": (1, 2, 3),
    "epilogue": ("direct", "turned"),
    "nonkdim": (0, 16),
}
DEFAULTS = {
    "block_k": 128,
    "block_n": 128,
    "num_warps": 4,
    "num_stages": 2,
    "epilogue": "direct",
    "nonkdim": 0,
}
CONSTRAINTS = {
    "N % 128 == 0": "tiles are whole",
    "K % 256 == 0": "tiles are whole",
    "M % 128 == 0": "a step is one scale block",
}


@triton.jit
def wgrad_kernel(
    x_ptr, xs_ptr, dy_ptr, dys_ptr, out_ptr, M, N, K, BK: tl.constexpr, BN: tl.constexpr, TURNED: tl.constexpr
):
    pk = tl.program_id(0) % (K // BK)
    pn = tl.program_id(0) // (K // BK)
    k = pk * BK + tl.arange(0, BK)
    n = pn * BN + tl.arange(0, BN)
    token = tl.arange(0, 128)
    x_at = x_ptr + token[None, :] * K + k[:, None]
    dy_at = dy_ptr + token[:, None] * N + n[None, :]
    acc = tl.zeros((BK, BN), dtype=tl.float32)
    for step in range(M // 128):
        partial = tl.dot(tl.load(x_at), tl.load(dy_at))
        acc += partial * (tl.load(xs_ptr + step * K + k)[:, None] * tl.load(dys_ptr + step * N + n)[None, :])
        x_at += 128 * K
        dy_at += 128 * N
    tile = acc.to(tl.bfloat16)
    if TURNED:
        tl.store(out_ptr + n[:, None] * K + k[None, :], tl.trans(tile))
    else:
        tl.store(out_ptr + n[None, :] * K + k[:, None], tile)


def launch(inputs, params):
    x, dy = inputs["x_q"], inputs["dy_q"]
    m, k = x.shape
    n = dy.shape[1]
    out = torch.empty((n, k), dtype=torch.bfloat16)
    grid = ((n // params["block_n"]) * (k // params["block_k"]),)
    wgrad_kernel[grid](
        x,
        inputs["x_s"],
        dy,
        inputs["dy_s"],
        out,
        m,
        n,
        k,
        params["block_k"],
        params["block_n"],
        params["epilogue"] == "turned",
        num_warps=params["num_warps"],
        num_stages=params["num_stages"],
        matrix_instr_nonkdim=params["nonkdim"],
    )
    return (out,)
