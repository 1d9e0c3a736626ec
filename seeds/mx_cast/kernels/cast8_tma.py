"""MXFP8 casts along rows, along columns (written transposed) or both from one read, in Gluon with TMA loads.

Programs walk over 128 x 128 tiles; a ring of shared tiles is filled by TMA ``stages`` tiles ahead, so reads stay in
flight while a tile is reduced, cast and stored. Every thread holds pieces of piece_m x piece_k, so both copies leave in
vectors without a transpose: along K for the row copy, along M for the column copy; straight from the threads, or
(``leave``: tma) through shared tiles in whole lines, which overlaps them with the next tile.
``mode``, ``rows`` and ``columns`` are the recipe's, not the search's.
"""

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilewright.seeds.shared.kernels.hopper import advance, ring
from tilewright.seeds.shared.kernels.layouts import layouts

SPACE = {
    "piece_m": (4, 8, 16),
    "piece_k": (4, 8, 16),
    "lanes_m": (1, 2, 4, 8, 16),
    "warps_m": (1, 2, 4, 8),
    "num_warps": (4, 8, 16),
    "group_m": (1, 2, 4, 8, 16, 32, 1048576),
    "leave": ("threads", "tma"),
    "slots": (1, 2),
    "stages": (1, 2, 3, 4),
    "programs": (132, 264, 396, 528),
    "mode": (0, 1, 2, 3),
    "rows": (0, 1),
    "columns": (0, 1),
}
DEFAULTS = {
    "piece_m": 16,
    "piece_k": 8,
    "lanes_m": 2,
    "warps_m": 4,
    "num_warps": 4,
    "group_m": 1,
    "leave": "threads",
    "slots": 1,
    "stages": 3,
    "programs": 132,
    "mode": 0,
    "rows": 1,
    "columns": 1,
}
CONSTRAINTS = {
    "K % 32 == 0": "a block is 32 columns",
    "columns == 0 or M % 32 == 0": "a column block is 32 rows",
    "mode == rule": "the recipe's rule",
    "rows == by_rows": "the recipe's copies",
    "columns == by_columns": "the recipe's copies",
    "by_tiles == 0": "exponents are stored plainly",
    "warps_m <= num_warps": "the warps along M are some of the program's warps",
    "piece_m * lanes_m * warps_m <= 128": "the warps together cover at most a tile's rows",
    "piece_k * (32 // lanes_m) * (num_warps // warps_m) <= 128": "the warps together cover at most a tile's columns",
}


@gluon.jit
def place(t, M, K, GROUP: gl.constexpr):
    """Tile coordinates of tile number t of a walk that goes down GROUP rows of tiles before it moves one column."""
    tall = gl.cdiv(M, 128)
    wide = gl.cdiv(K, 128)
    if GROUP == 1:
        return t // wide, t % wide
    height = min(GROUP, tall)
    first = t // (height * wide) * height
    rows = min(tall - first, height)
    inside = t % (height * wide)
    return first + inside % rows, inside // rows


@gluon.jit
def fetch(x_desc, bufs, ready, t, slot, tiles, M, K, GROUP: gl.constexpr):
    pm, pk = place(t, M, K, GROUP)
    inside = t < tiles
    mbarrier.expect(ready.index(slot), 128 * 128 * 2, pred=inside)
    tma.async_copy_global_to_shared(x_desc, [pm * 128, pk * 128], ready.index(slot), bufs.index(slot), pred=inside)


@gluon.jit
def exponent(top, MODE: gl.constexpr):
    """Bits of block maxima -> biased exponents, 255 where a block holds NaN or an infinity."""
    if MODE == 3:
        bits = (top.to(gl.float32, bitcast=True) * 0.002232142857142857).to(gl.int32, bitcast=True)
        part = bits & 0x7FFFFF
        e = gl.where(bits >> 23 == 0, (part > 0x400000).to(gl.int32), (bits >> 23) + (part != 0).to(gl.int32))
    elif MODE == 2:
        e = ((top + 0x80000) >> 23) - 8
    elif MODE == 1:
        e = (top >> 23) + ((top & 0x7FFFFF) != 0).to(gl.int32) - 8
    else:
        e = (top >> 23) - 8
    e = gl.minimum(gl.maximum(e, 0), 254)
    return gl.where(top >= 0x7F800000, 255, e)


@gluon.jit
def multiplier(e):
    """2^(127 - e); NaN for 255, so that every element of the block becomes NaN."""
    return gl.where(e == 255, 0x7FC00000, (254 - gl.minimum(e, 254)) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def larger(a, b):
    """The larger number; NaN if either is."""
    return gl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@gluon.jit
def quantised(x, MODE: gl.constexpr):
    """128 x 128 f32 by 1 x 32 -> payloads and exponents. The cast to e4m3 saturates by itself."""
    blocks = x.reshape([128, 4, 32])
    e = exponent(gl.reduce(gl.abs(blocks), 2, larger).to(gl.int32, bitcast=True), MODE)
    q = blocks * gl.expand_dims(multiplier(e), 2)
    return q.reshape([128, 128]).to(gl.float8e4nv), e.to(gl.uint8)


@gluon.jit
def store(q_ptr, q, row, col, pm, pk, M, K, EVEN: gl.constexpr):
    """Payloads of tile (pm, pk) of an M x K matrix, from the threads. EVEN: no tile hangs over."""
    corner = pm.to(gl.int64) * 128 * K + pk * 128
    at = q_ptr + corner + (row[:, None] * K + col[None, :])
    if EVEN:
        gl.store(at, q)
    else:
        gl.store(at, q, mask=(pm * 128 + row < M)[:, None] & (pk * 128 + col < K)[None, :])


@gluon.jit
def send(q_desc, tile, q, pm, pk, LEFT: gl.constexpr):
    """Payloads of tile (pm, pk) through a shared tile that is free once LEFT sends are under way at most."""
    tma.store_wait(LEFT)
    tile.store(q)
    fence_async_shared()
    tma.async_copy_shared_to_global(q_desc, [pm * 128, pk * 128], tile)


@gluon.jit
def store_exponents(s_ptr, e, line, four, pm, pk, M, K, EVEN: gl.constexpr):
    """128 x 4 exponents of tile (pm, pk) of an M x K matrix."""
    codes = gl.convert_layout(e, gl.BlockedLayout([1, 4], [32, 1], [gl.num_warps(), 1], [1, 0]))
    if EVEN:
        wide = K // 128 * 4
        gl.store(s_ptr + (pm.to(gl.int64) * 128 * wide + pk * 4) + (line[:, None] * wide + four[None, :]), codes)
    else:
        wide = K // 32
        held = (pm * 128 + line < M)[:, None] & (pk * 4 + four < wide)[None, :]
        place_of = s_ptr + (pm.to(gl.int64) * 128 * wide + pk * 4) + (line[:, None] * wide + four[None, :])
        gl.store(place_of, codes, mask=held)


@gluon.jit
def cast_kernel(
    x_desc,
    q_ptr,
    s_ptr,
    qt_ptr,
    st_ptr,
    q_desc,
    qt_desc,
    M,
    K,
    TILE: gl.constexpr,
    TURNED: gl.constexpr,
    STAGES: gl.constexpr,
    SENT: gl.constexpr,
    GROUP: gl.constexpr,
    MODE: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    EVEN: gl.constexpr,
):
    few: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [gl.num_warps(), 1], [1, 0])
    bufs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 128, 128], gl.NVMMASharedLayout(128, 16))
    ready = ring(STAGES, 1)
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    if SENT > 0:
        out = gl.allocate_shared_memory(gl.float8e4nv, [SENT, 128, 128], gl.NVMMASharedLayout(128, 8))
    tiles = gl.cdiv(M, 128) * gl.cdiv(K, 128)
    step = gl.num_programs(0)
    for slot in gl.static_range(STAGES):
        fetch(x_desc, bufs, ready, gl.program_id(0) + slot * step, slot, tiles, M, K, GROUP)
    row = gl.arange(0, 128, gl.SliceLayout(1, TILE))
    col = gl.arange(0, 128, gl.SliceLayout(0, TILE))
    k = gl.arange(0, 128, gl.SliceLayout(1, TURNED))
    m = gl.arange(0, 128, gl.SliceLayout(0, TURNED))
    line = gl.arange(0, 128, gl.SliceLayout(1, few))
    four = gl.arange(0, 4, gl.SliceLayout(0, few))
    slot = 0
    phase = 0
    sent = 0
    for t in range(gl.program_id(0), tiles, step):
        pm, pk = place(t, M, K, GROUP)
        mbarrier.wait(ready.index(slot), phase)
        x = bufs.index(slot).load(TILE).to(gl.float32)
        fetch(x_desc, bufs, ready, t + STAGES * step, slot, tiles, M, K, GROUP)
        slot, phase = advance(slot, phase, STAGES)
        if ROWS:
            q, e = quantised(x, MODE)
            q = gl.convert_layout(q, TILE)
            if SENT > 0:
                send(q_desc, out.index(sent), q, pm, pk, SENT - 1)
                sent = gl.where(sent == SENT - 1, 0, sent + 1)
            else:
                store(q_ptr, q, row, col, pm, pk, M, K, EVEN)
            store_exponents(s_ptr, e, line, four, pm, pk, M, K, EVEN)
        if COLUMNS:
            # the same elements in the same threads; only registers change places, before they are packed along M
            y = gl.convert_layout(gl.permute(x, (1, 0)), TURNED, assert_trivial=True)
            q_t, e_t = quantised(y, MODE)
            q_t = gl.convert_layout(q_t, TURNED)
            if SENT > 0:
                send(qt_desc, out.index(sent), q_t, pk, pm, SENT - 1)
                sent = gl.where(sent == SENT - 1, 0, sent + 1)
            else:
                store(qt_ptr, q_t, k, m, pk, pm, K, M, EVEN)
            store_exponents(st_ptr, e_t, line, four, pk, pm, K, M, EVEN)
    if SENT > 0:
        tma.store_wait(0)


def described(tensor, layout):
    """A descriptor of 128 x 128 tiles of a matrix."""
    rows, columns = tensor.shape
    return TensorDescriptor(tensor, [rows, columns], [columns, 1], [128, 128], layout)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    q = s = qt = st = x
    made = ()
    if params["rows"]:
        q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
        s = torch.empty((m, k // 32), dtype=torch.uint8)
        made = (q, s)
    if params["columns"]:
        qt = torch.empty((k, m), dtype=torch.float8_e4m3fn)
        st = torch.empty((k, m // 32), dtype=torch.uint8)
        made = (*made, qt, st)
    tile, turned = layouts(params)
    sent = (params["rows"] + params["columns"]) * params["slots"] if params["leave"] == "tma" else 0
    bytes_of = gl.NVMMASharedLayout(128, 8)
    cast_kernel[(min(params["programs"], -(-m // 128) * -(-k // 128)),)](
        described(x, gl.NVMMASharedLayout(128, 16)),
        q,
        s,
        qt,
        st,
        described(q, bytes_of) if sent and params["rows"] else q,
        described(qt, bytes_of) if sent and params["columns"] else qt,
        m,
        k,
        tile,
        turned,
        params["stages"],
        sent,
        params["group_m"],
        params["mode"],
        params["rows"],
        params["columns"],
        m % 128 == 0 and k % 128 == 0,
        num_warps=params["num_warps"],
    )
    return made
