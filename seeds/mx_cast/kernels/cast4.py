"""FP4 casts along rows, two codes to the byte: MXFP4 (1 x 32, e8m0) and NVFP4 (1 x 16, e4m3 under one tensor scale).

Rounding to e2m1 counts the midpoints a magnitude passes; those between an odd and an even code are passed when met.
``two_level`` and ``mode`` are the recipe's.
"""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_m": (16, 32, 64),
    "block_k": (64, 128, 256),
    "num_warps": (2, 4, 8),
    "two_level": (0, 1),
    "mode": (0, 1, 2, 3),
}
DEFAULTS = {"block_m": 32, "block_k": 128, "num_warps": 4, "two_level": 0, "mode": 0}
CONSTRAINTS = {
    "K % 32 == 0": "a block is 32 columns (16 for NVFP4)",
    "two_level == levels": "the recipe's format",
    "mode == rule": "the recipe's rule",
    "block_m * block_k <= num_warps * 4096": "a tile stays in registers",
}


@triton.jit
def exponent(top, MODE: tl.constexpr):
    if MODE == 3:
        bits = (top.to(tl.float32, bitcast=True) * 0.16666666666666666).to(tl.int32, bitcast=True)
        part = bits & 0x7FFFFF
        e = tl.where(bits >> 23 == 0, (part > 0x400000).to(tl.int32), (bits >> 23) + (part != 0).to(tl.int32))
    elif MODE == 2:
        e = ((top + 0x200000) >> 23) - 2
    elif MODE == 1:
        e = (top >> 23) + ((top & 0x7FFFFF) != 0).to(tl.int32) - 2
    else:
        e = (top >> 23) - 2
    e = tl.minimum(tl.maximum(e, 0), 254)
    return tl.where(top >= 0x7F800000, 255, e)


@triton.jit
def cast_kernel(
    x_ptr,
    t_ptr,
    q_ptr,
    s_ptr,
    M,
    K,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BLOCK: tl.constexpr,
    TWO_LEVEL: tl.constexpr,
    MODE: tl.constexpr,
):
    tiles = tl.cdiv(K, BK)
    pm = tl.program_id(0) // tiles
    pk = tl.program_id(0) % tiles
    row = pm * BM + tl.arange(0, BM)
    col = pk * BK + tl.arange(0, BK)
    inside = (row < M)[:, None] & (col < K)[None, :]
    x = tl.load(x_ptr + row.to(tl.int64)[:, None] * K + col[None, :], mask=inside, other=0.0).to(tl.float32)
    x = tl.reshape(x, (BM, BK // BLOCK, BLOCK))
    bits = x.to(tl.int32, bitcast=True)
    top = tl.max(bits & 0x7FFFFFFF, axis=2)
    bad = top >= 0x7F800000
    if TWO_LEVEL:
        tensor_scale = tl.load(t_ptr)
        amax = tl.where(bad, 0, top).to(tl.float32, bitcast=True)
        wanted = tl.div_rn(tl.div_rn(amax, 6.0), tensor_scale)
        scale = tl.minimum(tl.maximum(wanted, 0.015625), 448.0).to(tl.float8e4nv)
        factor = tl.div_rn(tl.div_rn(1.0, tensor_scale), scale.to(tl.float32))
        code_of_scale = tl.where(bad, 0x7F, scale.to(tl.uint8, bitcast=True)).to(tl.uint8)
    else:
        e = exponent(top, MODE)
        factor = ((254 - tl.minimum(e, 254)) << 23).to(tl.float32, bitcast=True)
        code_of_scale = e.to(tl.uint8)
    scaled = tl.abs(x * tl.reshape(factor, (BM, BK // BLOCK, 1)))
    code = (scaled > 0.25).to(tl.int32) + (scaled >= 0.75).to(tl.int32) + (scaled > 1.25).to(tl.int32)
    code += (scaled >= 1.75).to(tl.int32) + (scaled > 2.5).to(tl.int32) + (scaled >= 3.5).to(tl.int32)
    code += (scaled > 5.0).to(tl.int32)
    code = code | ((bits >> 28) & 8)
    code = tl.where(tl.reshape(bad, (BM, BK // BLOCK, 1)), 0, code)
    low, high = tl.split(tl.reshape(code, (BM, BK // 2, 2)))
    pair = pk * (BK // 2) + tl.arange(0, BK // 2)
    tl.store(
        q_ptr + row.to(tl.int64)[:, None] * (K // 2) + pair[None, :],
        (low | (high << 4)).to(tl.uint8),
        mask=(row < M)[:, None] & (pair < K // 2)[None, :],
    )
    block = pk * (BK // BLOCK) + tl.arange(0, BK // BLOCK)
    tl.store(
        s_ptr + row.to(tl.int64)[:, None] * (K // BLOCK) + block[None, :],
        code_of_scale,
        mask=(row < M)[:, None] & (block < K // BLOCK)[None, :],
    )


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    block = 16 if params["two_level"] else 32
    q = torch.empty((m, k // 2), dtype=torch.uint8)
    s = torch.empty((m, k // block), dtype=torch.uint8)
    grid = (triton.cdiv(m, params["block_m"]) * triton.cdiv(k, params["block_k"]),)
    tensor_scale = inputs["t"] if params["two_level"] else x
    cast_kernel[grid](
        x,
        tensor_scale,
        q,
        s,
        m,
        k,
        params["block_m"],
        params["block_k"],
        block,
        params["two_level"],
        params["mode"],
        num_warps=params["num_warps"],
    )
    return (q, s)
