# gemm_fp8_blockwise/quant_dual for h200. Promoted by tilewright: do not edit,
# a file whose hash differs from its receipt is not used.
# dispatch.json has the parameters and shapes of the kernels that are made of this source,
# receipt.json has their campaigns, lineages and gains.
#
"""Row and transposed column quantisation of one bf16 matrix from one read, in Gluon, persistent with TMA loads.

Programs walk over 128 x 128 tiles; a ring of shared tiles is filled by TMA ``stages`` tiles ahead, so reads
stay in flight while a tile is reduced, cast and stored. Every thread holds a piece_m x piece_k piece of it, so
both copies leave in vectors without a transpose through shared memory: along K for the row copy, along M for
the column copy. Some lanes lie along M, so that a warp writes whole 32-byte sectors of the column copy.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SPACE = {
    "piece_m": (4, 8, 16),
    "piece_k": (8, 16),
    "lanes_m": (2, 4, 8, 16),
    "warps_m": (1, 2, 4, 8),
    "num_warps": (4, 8, 16),
    "walk": ("rows", "columns"),
    "maxnreg": (0, 64, 80, 96, 128),
    "stages": (1, 2, 3, 4),
    "programs": (132, 264, 396, 528),
}
DEFAULTS = {
    "piece_m": 16,
    "piece_k": 8,
    "lanes_m": 2,
    "warps_m": 4,
    "num_warps": 4,
    "walk": "rows",
    "maxnreg": 0,
    "stages": 3,
    "programs": 132,
}
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
def fetch(x_desc, bufs, ready, t, slot, tiles, M, K, BY_COLUMNS: gl.constexpr):
    pm, pk = place(t, M, K, BY_COLUMNS)
    inside = t < tiles
    mbarrier.expect(ready.index(slot), 128 * 128 * 2, pred=inside)
    tma.async_copy_global_to_shared(
        x_desc, [pm * 128, pk * 128], ready.index(slot), bufs.index(slot), pred=inside
    )


@gluon.jit
def dual_kernel(
    x_desc,
    q_ptr,
    s_ptr,
    qt_ptr,
    st_ptr,
    M,
    K,
    TILE: gl.constexpr,
    TURNED: gl.constexpr,
    STAGES: gl.constexpr,
    BY_COLUMNS: gl.constexpr,
):
    one: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    bufs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 128, 128], gl.NVMMASharedLayout(128, 16))
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=1)
    tiles = (M // 128) * (K // 128)
    step = gl.num_programs(0)
    for slot in gl.static_range(STAGES):
        fetch(x_desc, bufs, ready, gl.program_id(0) + slot * step, slot, tiles, M, K, BY_COLUMNS)
    row = gl.arange(0, 128, gl.SliceLayout(1, TILE))
    col = gl.arange(0, 128, gl.SliceLayout(0, TILE))
    k = gl.arange(0, 128, gl.SliceLayout(1, TURNED))
    m = gl.arange(0, 128, gl.SliceLayout(0, TURNED))
    lane = gl.arange(0, 128, one)
    slot = 0
    phase = 0
    for t in range(gl.program_id(0), tiles, step):
        pm, pk = place(t, M, K, BY_COLUMNS)
        mbarrier.wait(ready.index(slot), phase)
        x = bufs.index(slot).load(TILE).to(gl.float32)
        fetch(x_desc, bufs, ready, t + STAGES * step, slot, tiles, M, K, BY_COLUMNS)
        wrap = slot == STAGES - 1
        slot = gl.where(wrap, 0, slot + 1)
        phase = gl.where(wrap, phase ^ 1, phase)
        size = gl.abs(x)
        # divisions are exact and dear: one thread makes each scale, then all read it
        row_size = gl.convert_layout(gl.max(size, axis=1), one)
        col_size = gl.convert_layout(gl.max(size, axis=0), one)
        row_once = gl.div_rn(448.0, gl.maximum(row_size, 1e-4))
        col_once = gl.div_rn(448.0, gl.maximum(col_size, 1e-4))
        gl.store(s_ptr + pk.to(gl.int64) * M + pm * 128 + lane, gl.div_rn(1.0, row_once))
        gl.store(st_ptr + pm.to(gl.int64) * K + pk * 128 + lane, gl.div_rn(1.0, col_once))
        row_scale = gl.convert_layout(row_once, gl.SliceLayout(1, TILE))
        col_scale = gl.convert_layout(col_once, gl.SliceLayout(0, TILE))
        corner = pm.to(gl.int64) * 128 * K + pk * 128
        gl.store(
            q_ptr + corner + (row[:, None] * K + col[None, :]), (x * row_scale[:, None]).to(gl.float8e4nv)
        )
        # the same elements in the same threads; only registers change places, before they are packed along M
        turned = gl.convert_layout(gl.permute(x * col_scale[None, :], (1, 0)), TURNED, assert_trivial=True)
        turned_corner = pk.to(gl.int64) * 128 * M + pm * 128
        gl.store(qt_ptr + turned_corner + (k[:, None] * M + m[None, :]), turned.to(gl.float8e4nv))


def doublings(start, stop, axis):
    """Layout bases [start, 0], [2 start, 0] ... below stop, along axis 0 or 1."""
    sizes = [start << i for i in range(8) if (start << i) < stop]
    return [[size, 0] if axis == 0 else [0, size] for size in sizes]


def layouts(params):
    """The register, lane and warp layout of a 128 x 128 tile, and of its transpose (vectors along M)."""
    pm, pk, lm = params["piece_m"], params["piece_k"], params["lanes_m"]
    wm, warps = params["warps_m"], params["num_warps"]
    lanes_m_end = pm * lm
    lanes_k_end = pk * (32 // lm)
    warps_m_end = lanes_m_end * wm
    warps_k_end = lanes_k_end * (warps // wm)
    along_m = doublings(1, pm, 0)
    along_k = doublings(1, pk, 1)
    rest = doublings(warps_m_end, 128, 0) + doublings(warps_k_end, 128, 1)
    lanes = doublings(pm, lanes_m_end, 0) + doublings(pk, lanes_k_end, 1)
    warp = doublings(lanes_m_end, warps_m_end, 0) + doublings(lanes_k_end, warps_k_end, 1)
    tile = gl.DistributedLinearLayout(along_k + along_m + rest, lanes, warp, [], [128, 128])
    swap = [[[base[1], base[0]] for base in bases] for bases in (along_m + along_k + rest, lanes, warp)]
    turned = gl.DistributedLinearLayout(swap[0], swap[1], swap[2], [], [128, 128])
    return tile, turned


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
    s = torch.empty((k // 128, m), dtype=torch.float32)
    qt = torch.empty((k, m), dtype=torch.float8_e4m3fn)
    st = torch.empty((m // 128, k), dtype=torch.float32)
    tile, turned = layouts(params)
    dual_kernel[(min(params["programs"], (m // 128) * (k // 128)),)](
        TensorDescriptor(x, [m, k], [k, 1], [128, 128], gl.NVMMASharedLayout(128, 16)),
        q,
        s,
        qt,
        st,
        m,
        k,
        tile,
        turned,
        params["stages"],
        params["walk"] == "columns",
        num_warps=params["num_warps"],
        maxnreg=params["maxnreg"] or None,
    )
    return (q, s, qt, st)
