"""FP8 GEMM (NT) under 2D block scales in Gluon for Hopper: persistent, warp-specialised, for many rows.

One producer warp fills a ring of 128-wide steps by TMA; two consumer warpgroups of 64 rows each sum a scale block's
steps in the matrix unit and add the sum, divided by the block's scales, to accumulators in float32. Tiles are
128 x block_n; the product leaves by TMA.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilewright.seeds.shared.kernels.hopper import fenced, fetch, ring, store_half, tile_of

SPACE = {
    "block_n": (128, 256),
    "stages": (2, 3, 4, 6),
    "slots": (1, 2),
    "group_m": (1, 2, 4, 8, 16, 32),
    "programs": (132, 1048576),
    "consumer_regs": (216, 232, 240),
    "edge": (128, 256),
}
DEFAULTS = {"block_n": 256, "stages": 4, "slots": 2, "group_m": 16, "programs": 132, "consumer_regs": 240, "edge": 256}
CONSTRAINTS = {
    "edge == block": "the recipe's block",
    "(16384 + block_n // 128 * 16384) * stages + 16384 * slots <= 232000": (
        "the ring and the store slots share 227 KB of shared memory"
    ),
    "stages % (edge // 128) == 0": "the steps of a scale block lie side by side in the ring",
    "K % 128 == 0": "a step of K is 128",
    "N % 8 == 0": "rows of the product begin at 16 bytes",
}


@gluon.jit
def next_slot(s, phase, BY: gl.constexpr, STAGES: gl.constexpr):
    """Ring position and phase BY steps on; BY divides STAGES."""
    wrap = s == STAGES - BY
    return gl.where(wrap, 0, s + BY), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def producer(
    maps, M, N, K, bufs, bars, HALVES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, DEEP: gl.constexpr
):
    """Keep the ring full."""
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    s = 0
    phase = 1
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        # past K there are zeros: the last scale block is whole for the matrix unit
        for k in range(gl.cdiv(K, 128 * DEEP) * DEEP):
            fetch(maps, pm * 128, pn * (128 * HALVES), k, M, N, bufs, bars, s, phase, HALVES, False, False)
            s, phase = next_slot(s, phase, 1, STAGES)


@gluon.jit
def block_sum(a_bufs, b_bufs, bars, zero, s, phase, half, HALVES: gl.constexpr, DEEP: gl.constexpr, WG: gl.constexpr):
    """64 x 128 sums over the steps of one scale block, from ring position s on."""
    total = zero
    for j in gl.static_range(DEEP):
        mbarrier.wait(bars.index(s + j), phase)
        b = b_bufs.index((s + j) * HALVES + half).permute((1, 0))
        total = warpgroup_mma(a_bufs.index((s + j) * 2 + WG), b, total, use_acc=j > 0, is_async=True)
    return warpgroup_mma_wait(num_outstanding=0, deps=(total,))


@gluon.jit
def consume(
    c_desc,
    as_ptr,
    bs_ptr,
    M,
    N,
    K,
    bufs,
    c_bufs,
    bars,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    DEEP: gl.constexpr,
    WG: gl.constexpr,
):
    """The warpgroup's 64 rows of every tile of this program."""
    a_bufs, _, b_bufs, _ = bufs
    empty, ready, ready1 = bars
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    blocks = gl.cdiv(K, 128 * DEEP)
    last = gl.cdiv(N, 128 * DEEP) - 1
    zero = gl.zeros((64, 128), gl.float32, mma)
    s = 0
    phase = 0
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        as_at = as_ptr + pm // DEEP * blocks
        bs_at0 = bs_ptr + pn * HALVES // DEEP * blocks
        bs_at1 = bs_ptr + min((pn * HALVES + HALVES - 1) // DEEP, last) * blocks
        acc0 = gl.zeros((64, 128), gl.float32, mma)
        acc1 = gl.zeros((64, 128), gl.float32, mma)
        for k in range(blocks):
            sa = gl.load(as_at + k)
            sb0 = gl.load(bs_at0 + k)
            sb1 = gl.load(bs_at1 + k)
            d = block_sum(a_bufs, b_bufs, ready, zero, s, phase, 0, HALVES, DEEP, WG)
            if HALVES == 2:
                acc0 = fenced(acc0 + d * (1.0 / (sa * sb0)))
                # the branch of this wait also keeps ptxas from starting the next wgmma before the promotion above
                e = block_sum(a_bufs, b_bufs, ready1, zero, s, phase, 1, HALVES, DEEP, WG)
                for j in gl.static_range(DEEP):
                    mbarrier.arrive(empty.index(s + j), count=1)
                acc1 = fenced(acc1 + e * (1.0 / (sa * sb1)))
            else:
                for j in gl.static_range(DEEP):
                    mbarrier.arrive(empty.index(s + j), count=1)
                acc0 = fenced(acc0 + d * (1.0 / (sa * sb0)))
            s, phase = next_slot(s, phase, DEEP, STAGES)
        row = pm * 128 + WG * 64
        col = pn * (128 * HALVES)
        store_half(c_desc, c_bufs, acc0, row, col, 0, SLOTS, WG)
        if HALVES == 2:
            store_half(c_desc, c_bufs, acc1, row, col + 128, 2, SLOTS, WG)
    tma.store_wait(0)


@gluon.jit
def gemm_kernel(
    a_desc,
    b_desc,
    c_desc,
    as_ptr,
    bs_ptr,
    M,
    N,
    K,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    REGS: gl.constexpr,
    DEEP: gl.constexpr,
):
    fp8: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 64, 128], fp8)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * HALVES, 128, 128], fp8)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, 64, 64], gl.NVMMASharedLayout(128, 16))
    bufs = (a_bufs, a_bufs, b_bufs, b_bufs)
    bars = (ring(STAGES, 2), ring(STAGES, 1), ring(STAGES, 1))
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    gl.warp_specialize(
        [
            (consume, (c_desc, as_ptr, bs_ptr, M, N, K, bufs, c_bufs, bars, HALVES, STAGES, GROUP, SLOTS, DEEP, 0)),
            (consume, (c_desc, as_ptr, bs_ptr, M, N, K, bufs, c_bufs, bars, HALVES, STAGES, GROUP, SLOTS, DEEP, 1)),
            (producer, ((a_desc, a_desc, b_desc, b_desc), M, N, K, bufs, bars, HALVES, STAGES, GROUP, DEEP)),
        ],
        [4, 1],
        [REGS, 24],
    )


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    out = torch.empty((m, n), dtype=torch.bfloat16)
    fp8 = gl.NVMMASharedLayout(128, 8)
    tiles = triton.cdiv(m, 128) * triton.cdiv(n, params["block_n"])
    gemm_kernel[(min(tiles, params["programs"]),)](
        TensorDescriptor(a, [m, k], [k, 1], [64, 128], fp8),
        TensorDescriptor(b, [n, k], [k, 1], [128, 128], fp8),
        TensorDescriptor(out, [m, n], [n, 1], [64, 64], gl.NVMMASharedLayout(128, 16)),
        inputs["a_s"],
        inputs["b_s"],
        m,
        n,
        k,
        params["block_n"] // 128,
        params["stages"],
        params["group_m"],
        params["slots"],
        params["consumer_regs"],
        params["edge"] // 128,
        num_warps=4,
        maxnreg=168,
    )
    return (out,)
