"""What the dual quantisers do with one 128 x 128 tile (see ``seeds.inlined``).

A row copy with a scale per row, and a transposed copy with one per column.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

CONSTRAINTS = {
    "M % 128 == 0": "a column block is 128 rows",
    "K % 128 == 0": "a row block is 128 columns",
    "warps_m <= num_warps": "the warps along M are some of the program's warps",
    "maxnreg * num_warps <= 2048": "a program has 64 Ki registers",
    "piece_m * lanes_m * warps_m <= 128": "the warps together cover at most a tile's rows",
    "piece_k * (32 // lanes_m) * (num_warps // warps_m) <= 128": "the warps together cover at most a tile's columns",
}


@gluon.jit
def place(t, M, K, BY_COLUMNS: gl.constexpr):
    """Tile coordinates of tile number t."""
    if BY_COLUMNS:
        return t % (M // 128), t // (M // 128)
    else:
        return t // (K // 128), t % (K // 128)


@gluon.jit
def store_turned(qt_ptr, scaled, pm, pk, M, TURNED: gl.constexpr):
    """Store a scaled tile's transpose as e4m3."""
    # the same elements in the same threads; only registers change places, before they are packed along M
    turned = gl.convert_layout(gl.permute(scaled, (1, 0)), TURNED, assert_trivial=True)
    k = gl.arange(0, 128, gl.SliceLayout(1, TURNED))
    m = gl.arange(0, 128, gl.SliceLayout(0, TURNED))
    corner = pk.to(gl.int64) * 128 * M + pm * 128
    gl.store(qt_ptr + corner + (k[:, None] * M + m[None, :]), turned.to(gl.float8e4nv))


@gluon.jit
def store_both(x, pm, pk, q_ptr, s_ptr, qt_ptr, st_ptr, M, K, TILE: gl.constexpr, TURNED: gl.constexpr):
    """Quantise tile (pm, pk) of float32 and store both copies with their scales."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    row = gl.arange(0, 128, gl.SliceLayout(1, TILE))
    col = gl.arange(0, 128, gl.SliceLayout(0, TILE))
    lane = gl.arange(0, 128, one)
    size = gl.abs(x)
    # divisions are exact and dear: one thread makes each scale, then all read it
    row_size = gl.convert_layout(gl.max(size, axis=1), one)
    row_once = gl.div_rn(448.0, gl.maximum(row_size, 1e-4))
    gl.store(s_ptr + pk.to(gl.int64) * M + pm * 128 + lane, gl.div_rn(1.0, row_once))
    col_size = gl.convert_layout(gl.max(size, axis=0), one)
    col_once = gl.div_rn(448.0, gl.maximum(col_size, 1e-4))
    gl.store(st_ptr + pm.to(gl.int64) * K + pk * 128 + lane, gl.div_rn(1.0, col_once))
    row_scale = gl.convert_layout(row_once, gl.SliceLayout(1, TILE))
    corner = pm.to(gl.int64) * 128 * K + pk * 128
    gl.store(q_ptr + corner + (row[:, None] * K + col[None, :]), (x * row_scale[:, None]).to(gl.float8e4nv))
    # scaled only now: a second tile that lives from the scales on spills
    col_scale = gl.convert_layout(col_once, gl.SliceLayout(0, TILE))
    store_turned(qt_ptr, x * col_scale[None, :], pm, pk, M, TURNED)


def copies(m, k):
    """Memory for both copies and their scales."""
    q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
    s = torch.empty((k // 128, m), dtype=torch.float32)
    qt = torch.empty((k, m), dtype=torch.float8_e4m3fn)
    st = torch.empty((m // 128, k), dtype=torch.float32)
    return q, s, qt, st
