"""Row and transposed column quantisation of one bf16 matrix from one read, in Gluon, persistent with TMA loads.

Programs walk over 128 x 128 tiles; a ring of shared tiles is filled by TMA ``stages`` tiles ahead, so reads
stay in flight while a tile is reduced, cast and stored. Every thread holds a piece_m x piece_k piece of it, so
both copies leave in vectors without a transpose through shared memory: along K for the row copy, along M for
the column copy. Some lanes lie along M, so that a warp writes whole 32-byte sectors of the column copy.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilewright.seeds.gemm_fp8_blockwise.kernels.quant_tile import CONSTRAINTS, copies, place, store_both
from tilewright.seeds.shared.kernels.hopper import advance, ring
from tilewright.seeds.shared.kernels.layouts import layouts

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


@gluon.jit
def fetch(x_desc, bufs, ready, t, slot, tiles, M, K, BY_COLUMNS: gl.constexpr):
    """Ask for tile ``t``, if there is one, into ``slot``."""
    pm, pk = place(t, M, K, BY_COLUMNS)
    inside = t < tiles
    mbarrier.expect(ready.index(slot), 128 * 128 * 2, pred=inside)
    tma.async_copy_global_to_shared(x_desc, [pm * 128, pk * 128], ready.index(slot), bufs.index(slot), pred=inside)


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
    bufs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 128, 128], gl.NVMMASharedLayout(128, 16))
    ready = ring(STAGES, 1)
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    tiles = (M // 128) * (K // 128)
    step = gl.num_programs(0)
    for slot in gl.static_range(STAGES):
        fetch(x_desc, bufs, ready, gl.program_id(0) + slot * step, slot, tiles, M, K, BY_COLUMNS)
    slot = 0
    phase = 0
    for t in range(gl.program_id(0), tiles, step):
        pm, pk = place(t, M, K, BY_COLUMNS)
        mbarrier.wait(ready.index(slot), phase)
        x = bufs.index(slot).load(TILE).to(gl.float32)
        fetch(x_desc, bufs, ready, t + STAGES * step, slot, tiles, M, K, BY_COLUMNS)
        slot, phase = advance(slot, phase, STAGES)
        store_both(x, pm, pk, q_ptr, s_ptr, qt_ptr, st_ptr, M, K, TILE, TURNED)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    q, s, qt, st = copies(m, k)
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
