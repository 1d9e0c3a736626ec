"""Register layouts of a 128 x 128 tile whose threads hold pieces of it, so that both copies leave in vectors."""

from triton.experimental.gluon import language as gl


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
