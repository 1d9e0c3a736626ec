"""MXFP8 casts from one read: along rows, along columns (written transposed), both, scales plain or swizzled.

A program takes a tile of block_m x block_k. Maxima are taken over bit patterns, where NaN and inf are the largest.
``mode``, ``rows``, ``columns`` and ``swizzled`` are the recipe's, not the search's.
"""

import torch
import triton
import triton.language as tl

SPACE = {
    "block_m": (4, 8, 16, 32, 64, 128),
    "block_k": (32, 64, 128, 256, 512, 1024),
    "num_warps": (2, 4, 8),
    "walk": ("rows", "columns"),
    "mode": (0, 1, 2, 3),
    "rows": (0, 1),
    "columns": (0, 1),
    "swizzled": (0, 1),
}
DEFAULTS = {
    "block_m": 64,
    "block_k": 128,
    "num_warps": 4,
    "walk": "rows",
    "mode": 0,
    "rows": 1,
    "columns": 0,
    "swizzled": 0,
}
CONSTRAINTS = {
    "K % 32 == 0": "a block is 32 columns",
    "columns == 0 or M % 32 == 0": "a column block is 32 rows",
    "mode == rule": "the recipe's rule",
    "rows == by_rows": "the recipe's copies",
    "columns == by_columns": "the recipe's copies",
    "swizzled == by_tiles": "the recipe's layout of scales",
    "block_m * block_k <= num_warps * 8192": "a tile stays in registers",
}


@triton.jit
def exponent(top, MODE: tl.constexpr):
    if MODE == 3:
        bits = (top.to(tl.float32, bitcast=True) * 0.002232142857142857).to(tl.int32, bitcast=True)
        part = bits & 0x7FFFFF
        e = tl.where(bits >> 23 == 0, (part > 0x400000).to(tl.int32), (bits >> 23) + (part != 0).to(tl.int32))
    elif MODE == 2:
        e = ((top + 0x80000) >> 23) - 8
    elif MODE == 1:
        e = (top >> 23) + ((top & 0x7FFFFF) != 0).to(tl.int32) - 8
    else:
        e = (top >> 23) - 8
    e = tl.minimum(tl.maximum(e, 0), 254)
    return tl.where(top >= 0x7F800000, 255, e)


@triton.jit
def payload(x, e):
    # a bad block's factor is NaN, and so is all of its payload
    bits = tl.where(e == 255, 0x7FC00000, (254 - tl.minimum(e, 254)) << 23)
    scaled = x * bits.to(tl.float32, bitcast=True)
    return tl.clamp(scaled, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)


@triton.jit
def cast_kernel(
    x_ptr,
    q_ptr,
    s_ptr,
    qt_ptr,
    st_ptr,
    M,
    K,
    BM: tl.constexpr,
    BK: tl.constexpr,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SWIZZLED: tl.constexpr,
    TILES_M,
    TILES_K,
    BY_COLUMNS: tl.constexpr,
):
    if BY_COLUMNS:
        pm = tl.program_id(0) % TILES_M
        pk = tl.program_id(0) // TILES_M
    else:
        pm = tl.program_id(0) // TILES_K
        pk = tl.program_id(0) % TILES_K
    row = pm * BM + tl.arange(0, BM)
    col = pk * BK + tl.arange(0, BK)
    inside = (row < M)[:, None] & (col < K)[None, :]
    at = row.to(tl.int64)[:, None] * K + col[None, :]
    tile = tl.load(x_ptr + at, mask=inside, other=0.0)
    if ROWS:
        x = tl.reshape(tile.to(tl.float32), (BM, BK // 32, 32))
        e = exponent(tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2), MODE)
        q = payload(x, tl.reshape(e, (BM, BK // 32, 1)))
        tl.store(q_ptr + at, tl.reshape(q, (BM, BK)), mask=inside)
        block = pk * (BK // 32) + tl.arange(0, BK // 32)
        blocks = K // 32
        if SWIZZLED:
            wide = tl.cdiv(blocks, 4)
            group = (row // 128).to(tl.int64)[:, None] * wide + (block // 4)[None, :]
            place = group * 512 + ((row % 32) * 16 + (row % 128 // 32) * 4)[:, None] + (block % 4)[None, :]
            held = (row < tl.cdiv(M, 128) * 128)[:, None] & (block < wide * 4)[None, :]
            tl.store(s_ptr + place, e.to(tl.uint8), mask=held)
        else:
            held = (row < M)[:, None] & (block < blocks)[None, :]
            tl.store(s_ptr + row.to(tl.int64)[:, None] * blocks + block[None, :], e.to(tl.uint8), mask=held)
    if COLUMNS:
        # turned while it is bf16, so that blocks lie along a thread's own elements again
        y = tl.reshape(tl.trans(tile).to(tl.float32), (BK, BM // 32, 32))
        e_t = exponent(tl.max(y.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2), MODE)
        turned = payload(y, tl.reshape(e_t, (BK, BM // 32, 1)))
        turned_at = col.to(tl.int64)[:, None] * M + row[None, :]
        inside_t = (col < K)[:, None] & (row < M)[None, :]
        tl.store(qt_ptr + turned_at, tl.reshape(turned, (BK, BM)), mask=inside_t)
        block_t = pm * (BM // 32) + tl.arange(0, BM // 32)
        held_t = (col < K)[:, None] & (block_t < M // 32)[None, :]
        tl.store(st_ptr + col.to(tl.int64)[:, None] * (M // 32) + block_t[None, :], e_t.to(tl.uint8), mask=held_t)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    bm, bk = params["block_m"], params["block_k"]
    blocks = k // 32
    tall, wide, made = m, k, ()
    q = s = qt = st = x
    if params["rows"]:
        q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
        if params["swizzled"]:
            tall, wide = triton.cdiv(m, 128) * 128, triton.cdiv(blocks, 4) * 128
            s = torch.empty((tall * (wide // 32),), dtype=torch.uint8)
        else:
            s = torch.empty((m, blocks), dtype=torch.uint8)
        made = (q, s)
    if params["columns"]:
        qt = torch.empty((k, m), dtype=torch.float8_e4m3fn)
        st = torch.empty((k, m // 32), dtype=torch.uint8)
        made = (*made, qt, st)
    tiles_m, tiles_k = triton.cdiv(tall, bm), triton.cdiv(wide, bk)
    cast_kernel[(tiles_m * tiles_k,)](
        x,
        q,
        s,
        qt,
        st,
        m,
        k,
        bm,
        bk,
        params["mode"],
        params["rows"],
        params["columns"],
        params["swizzled"],
        tiles_m,
        tiles_k,
        params["walk"] == "columns",
        num_warps=params["num_warps"],
    )
    return made
