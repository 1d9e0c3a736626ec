# gemm_fp8_blockwise/quant_128x128_dual for h200. Promoted by tilewright: do not edit,
# a file whose hash differs from its receipt is not used.
# dispatch.json has the parameters and shapes of the kernels that are made of this source,
# receipt.json has their campaigns, lineages and gains.
#
"""128 x 128 block quantisation of one bf16 matrix, with a transposed copy from the same read, in Gluon.

The weights' quantiser: the copy as it lies serves the forward product, the transposed one the product with
the gradient. As in the dual quantiser every thread holds a piece_m x piece_k piece, so both copies leave in
vectors without a transpose through shared memory.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

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
    "num_warps": 4,
    "walk": "rows",
    "maxnreg": 0,
}
CONSTRAINTS = {
    "M % 128 == 0": "a block is 128 rows",
    "K % 128 == 0": "a block is 128 columns",
    "warps_m <= num_warps": "the warps along M are some of the program's warps",
    "maxnreg * num_warps <= 2048": "a program has 64 Ki registers",
    "piece_m * lanes_m * warps_m <= 128": "the warps together cover at most a tile's rows",
    "piece_k * (32 // lanes_m) * (num_warps // warps_m) <= 128": "the warps together cover at most a tile's columns",
}


@gluon.jit
def block_kernel(
    x_ptr,
    q_ptr,
    s_ptr,
    qt_ptr,
    st_ptr,
    M,
    K,
    TILE: gl.constexpr,
    TURNED: gl.constexpr,
    BY_COLUMNS: gl.constexpr,
):
    if BY_COLUMNS:
        pm = gl.program_id(0) % (M // 128)
        pk = gl.program_id(0) // (M // 128)
    else:
        pm = gl.program_id(0) // (K // 128)
        pk = gl.program_id(0) % (K // 128)
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
    # the same elements in the same threads; only registers change places, before they are packed along M
    turned = gl.convert_layout(gl.permute(x * scale, (1, 0)), TURNED, assert_trivial=True)
    k = gl.arange(0, 128, gl.SliceLayout(1, TURNED))
    m = gl.arange(0, 128, gl.SliceLayout(0, TURNED))
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
