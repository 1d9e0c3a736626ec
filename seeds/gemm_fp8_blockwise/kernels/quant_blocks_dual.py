"""128 x 128 block quantisation of one bf16 matrix, with a transposed copy from the same read, in Gluon.

The weights' quantiser: the copy as it lies serves the forward product, the transposed one the product with
the gradient. As in the dual quantiser every thread holds a piece_m x piece_k piece, so both copies leave in
vectors without a transpose through shared memory.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tilewright.seeds.gemm_fp8_blockwise.kernels.quant_tile import CONSTRAINTS, place, store_turned
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
DEFAULTS = {"piece_m": 8, "piece_k": 8, "lanes_m": 4, "warps_m": 4, "num_warps": 4, "walk": "rows", "maxnreg": 0}


@gluon.jit
def block_kernel(
    x_ptr, q_ptr, s_ptr, qt_ptr, st_ptr, M, K, TILE: gl.constexpr, TURNED: gl.constexpr, BY_COLUMNS: gl.constexpr
):
    pm, pk = place(gl.program_id(0), M, K, BY_COLUMNS)
    row = gl.arange(0, 128, gl.SliceLayout(1, TILE))
    col = gl.arange(0, 128, gl.SliceLayout(0, TILE))
    corner = pm.to(gl.int64) * 128 * K + pk * 128
    inside = row[:, None] * K + col[None, :]
    x = gl.load(x_ptr + corner + inside).to(gl.float32)
    scale = gl.div_rn(448.0, gl.maximum(gl.max(gl.max(gl.abs(x), axis=1), axis=0), 1e-4))
    inverse = gl.div_rn(1.0, scale)
    gl.store(s_ptr + pm * (K // 128) + pk, inverse)
    gl.store(st_ptr + pk * (M // 128) + pm, inverse)
    gl.store(q_ptr + corner + inside, (x * scale).to(gl.float8e4nv))
    store_turned(qt_ptr, x * scale, pm, pk, M, TURNED)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
    s = torch.empty((m // 128, k // 128), dtype=torch.float32)
    qt = torch.empty((k, m), dtype=torch.float8_e4m3fn)
    st = torch.empty((k // 128, m // 128), dtype=torch.float32)
    tile, turned = layouts(params)
    block_kernel[((m // 128) * (k // 128),)](
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
