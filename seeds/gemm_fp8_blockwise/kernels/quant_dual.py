"""Row and transposed column quantisation of one bf16 matrix from one read, in Gluon.

A program takes a 128 x 128 tile. Every thread holds a piece_m x piece_k piece of it, so both copies leave in
vectors without a transpose through shared memory: along K for the row copy, along M for the column copy. Some
lanes lie along M, so that a warp writes whole 32-byte sectors of the column copy.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tilewright.seeds.gemm_fp8_blockwise.kernels.quant_tile import CONSTRAINTS, copies, place, store_both
from tilewright.seeds.shared.kernels.layouts import layouts

SPACE = {
    "piece_m": (4, 8, 16),
    "piece_k": (8, 16),
    "lanes_m": (2, 4, 8, 16),
    "warps_m": (1, 2, 4, 8),
    "num_warps": (4, 8, 16),
    "walk": ("rows", "columns"),
    "maxnreg": (0, 64, 80, 96, 128),
}
DEFAULTS = {
    "piece_m": 8,
    "piece_k": 8,
    "lanes_m": 4,
    "warps_m": 4,
    "num_warps": 8,
    "walk": "rows",
    "maxnreg": 0,
}


@gluon.jit
def dual_kernel(
    x_ptr, q_ptr, s_ptr, qt_ptr, st_ptr, M, K,
    TILE: gl.constexpr, TURNED: gl.constexpr, BY_COLUMNS: gl.constexpr,
):  # fmt: skip
    pm, pk = place(gl.program_id(0), M, K, BY_COLUMNS)
    row = gl.arange(0, 128, gl.SliceLayout(1, TILE))
    col = gl.arange(0, 128, gl.SliceLayout(0, TILE))
    corner = pm.to(gl.int64) * 128 * K + pk * 128
    x = gl.load(x_ptr + corner + (row[:, None] * K + col[None, :])).to(gl.float32)
    store_both(x, pm, pk, q_ptr, s_ptr, qt_ptr, st_ptr, M, K, TILE, TURNED, False)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    q, s, qt, st = copies(m, k, False)
    tile, turned = layouts(params)
    dual_kernel[((m // 128) * (k // 128),)](
        x,
        q,
        s,
        qt,
        st,
        m,
        k,
        tile,
        turned,
        params["walk"] == "columns",
        num_warps=params["num_warps"],
        maxnreg=params["maxnreg"] or None,
    )
    return (q, s, qt, st)
