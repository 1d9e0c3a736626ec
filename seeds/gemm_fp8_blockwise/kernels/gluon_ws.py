"""Blockwise FP8 GEMM (NT) in Gluon for Hopper: one producer warp, two consumer warpgroups.

The producer fills a ring of stages by TMA: A (two 64 x 128 pieces), their 1x128 scales, and B (one or two
128 x 128 pieces). Each consumer warpgroup owns 64 rows of the 128 x block_n tile. Per 128-wide step of K it
multiplies one 128-column half at a time into a partial and promotes it into f32 accumulators with its scales;
while one warpgroup promotes, the other's wgmma keeps the tensor cores busy. 128 x 256 tiles read 170 FLOP
per byte from L2, where 128 x 128 tiles read 128: on an H200 the wider tile is what lifts the L2 bound.
Programs are persistent, so the producer runs ahead into the next tile during the epilogue, and the epilogue
stores 64 x 64 pieces through a ring of ``slots`` by TMA: with four of them a tile's store is not waited for before the
next tile's products begin.

The tensor cores share themselves out between the two warpgroups, which therefore end their products together and
promote together unless one is behind: whatever stands between a product and the next one's first instruction costs
time. ``release`` "behind" gives a stage back, and loads the next scales of B, only after the next product has been
started; ``stagger`` holds the second warpgroup back by half a step at the start of a tile.
"""

import torch
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

from tilewright.seeds.shared.kernels.hopper import advance, fenced, fetch, ring, store_half, tile_of

SPACE = {
    "block_n": (128, 256),
    "stages": (3, 4, 5, 6),
    "slots": (1, 2, 4),
    "group_m": (1, 2, 4, 6, 8, 12, 16, 24, 32),
    "programs": (132, 1048576),
    "consumer_regs": (216, 232, 240),
    "release": ("at_once", "behind"),
    "stagger": (False, True),
}
DEFAULTS = {
    "block_n": 256,
    "stages": 4,
    "slots": 2,
    "group_m": 32,
    "programs": 132,
    "consumer_regs": 240,
    "release": "at_once",
    "stagger": False,
}
CONSTRAINTS = {
    "(16896 + block_n // 128 * (16384 + 512 * columns)) * stages + 16384 * slots <= 232000": (
        "the ring and the store slots share 227 KB of shared memory"
    ),
    "M % 4 == 0": "rows of A's scales begin at 16 bytes, where TMA may",
    "columns == 0 or N % 4 == 0": "rows of B's scales begin at 16 bytes, where TMA may",
    "N % 8 == 0": "rows of C begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}


@gluon.jit
def block_scales(bs_ptr, t, num_m, num_n, N, steps, HALVES: gl.constexpr, GROUP: gl.constexpr):
    """Where the scales of both halves of tile t begin; those of the last tile when t is past it."""
    _, pn = tile_of(min(t, num_m * num_n - 1), num_m, num_n, GROUP)
    last = gl.cdiv(N, 128) - 1
    return bs_ptr + pn * HALVES * steps, bs_ptr + min(pn * HALVES + HALVES - 1, last) * steps


@gluon.jit
def promote(acc, partial, sa, sb, t_buf, COLUMNS: gl.constexpr, MMA: gl.constexpr):
    """acc + partial * scales: ``sa`` per row, ``sb`` one number or ``t_buf`` per column."""
    if COLUMNS:
        return fenced(acc + partial * t_buf.load(gl.SliceLayout(0, MMA))[None, :] * sa[:, None])
    else:
        return fenced(acc + partial * (sa * sb)[:, None])


@gluon.jit
def producer(
    maps,
    M,
    N,
    K,
    bufs,
    bars,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """Keep the ring full."""
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    s = 0
    phase = 1
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        for k in range(K // 128):
            fetch(maps, pm * 128, pn * (128 * HALVES), k, M, N, bufs, bars, s, phase, HALVES, True, COLUMNS)
            s, phase = advance(s, phase, STAGES)


@gluon.jit
def consume(
    c_desc, bs_ptr, M, N, K, bufs, c_bufs, bars, begun, met,
    HALVES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, SLOTS: gl.constexpr, COLUMNS: gl.constexpr,
    BEHIND: gl.constexpr, STAGGER: gl.constexpr, WG: gl.constexpr,
):  # fmt: skip
    """The warpgroup's 64 rows of every tile of this program."""
    a_bufs, s_bufs, b_bufs, t_bufs = bufs
    empty, ready, ready1 = bars
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    rows: gl.constexpr = gl.SliceLayout(1, mma)
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    steps = K // 128
    # a tile of one half has two pieces: with more slots its stores would meet a slot before it is waited for
    TURNS: gl.constexpr = SLOTS if HALVES == 2 or SLOTS < 2 else 2
    zero = gl.zeros((64, 128), gl.float32, mma)
    s = 0
    phase = 0
    turn = 0
    given = 0
    next0 = 1.0
    next1 = 1.0
    if BEHIND and not COLUMNS:
        bp0, bp1 = block_scales(bs_ptr, gl.program_id(0), num_m, num_n, N, steps, HALVES, GROUP)
        next0 = gl.load(bp0)
        next1 = gl.load(bp1)
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        bp0, bp1 = block_scales(bs_ptr, t, num_m, num_n, N, steps, HALVES, GROUP)
        acc0 = gl.zeros((64, 128), gl.float32, mma)
        acc1 = gl.zeros((64, 128), gl.float32, mma)
        if STAGGER and WG == 1:
            mbarrier.wait(begun, turn)
            turn ^= 1
        for k in range(steps):
            sb0 = next0
            sb1 = next1
            if not COLUMNS and not BEHIND:
                sb0 = gl.load(bp0 + k)
                sb1 = gl.load(bp1 + k)
            mbarrier.wait(ready.index(s), phase)
            a = a_bufs.index(s * 2 + WG)
            d = warpgroup_mma(a, b_bufs.index(s * HALVES).permute((1, 0)), zero, use_acc=False, is_async=True)
            sa = s_bufs.index(s * 2 + WG).load(rows)
            if BEHIND:
                mbarrier.arrive(empty.index(gl.where(s == 0, STAGES - 1, s - 1)), count=1, pred=given == 1)
                given = 1
                # passes at once: a thread barrier that the next wait would get stands here, behind the product
                mbarrier.wait(met, 1)
                if not COLUMNS:
                    ahead = min(k + 1, steps - 1)
                    next0 = gl.load(bp0 + ahead)
                    next1 = gl.load(bp1 + ahead)
            d = warpgroup_mma_wait(num_outstanding=0, deps=(d,))
            if STAGGER and WG == 0 and k == 0:
                mbarrier.arrive(begun, count=1)
            if HALVES == 2:
                acc0 = promote(acc0, d, sa, sb0, t_bufs.index(s * HALVES), COLUMNS, mma)
                # the second half has its own barrier: the branch of its wait also keeps ptxas from starting the
                # next wgmma before the promotion above, which would need a second set of 64 registers and spill
                mbarrier.wait(ready1.index(s), phase)
                e = warpgroup_mma(
                    a, b_bufs.index(s * 2 + 1).permute((1, 0)), zero, use_acc=False, is_async=True
                )
                e = warpgroup_mma_wait(num_outstanding=0, deps=(e,))
                if not COLUMNS and not BEHIND:
                    mbarrier.arrive(empty.index(s), count=1)
                acc1 = promote(acc1, e, sa, sb1, t_bufs.index(s * 2 + 1), COLUMNS, mma)
            else:
                if not COLUMNS and not BEHIND:
                    mbarrier.arrive(empty.index(s), count=1)
                acc0 = promote(acc0, d, sa, sb0, t_bufs.index(s * HALVES), COLUMNS, mma)
            if COLUMNS and not BEHIND:
                # the promotion still read the stage's column scales
                mbarrier.arrive(empty.index(s), count=1)
            s, phase = advance(s, phase, STAGES)
        if BEHIND and not COLUMNS:
            after0, after1 = block_scales(
                bs_ptr, t + gl.num_programs(0), num_m, num_n, N, steps, HALVES, GROUP
            )
            next0 = gl.load(after0)
            next1 = gl.load(after1)
        row = pm * 128 + WG * 64
        col = pn * (128 * HALVES)
        store_half(c_desc, c_bufs, acc0, row, col, 0, TURNS, WG)
        if HALVES == 2:
            store_half(c_desc, c_bufs, acc1, row, col + 128, 2, TURNS, WG)
    tma.store_wait(0)


@gluon.jit
def gemm_kernel(
    a_desc, as_desc, b_desc, bs_desc, c_desc, bs_ptr, M, N, K,
    HALVES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, SLOTS: gl.constexpr, REGS: gl.constexpr,
    COLUMNS: gl.constexpr, BEHIND: gl.constexpr, STAGGER: gl.constexpr,
):  # fmt: skip
    fp8: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    bf16: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    flat: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 64, 128], fp8)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * HALVES, 128, 128], fp8)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, 64, 64], bf16)
    s_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 64], flat)
    t_bufs = s_bufs
    if COLUMNS:
        t_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * HALVES, 128], flat)
    maps = (a_desc, as_desc, b_desc, bs_desc)
    bufs = (a_bufs, s_bufs, b_bufs, t_bufs)
    bars = (ring(STAGES, 2), ring(STAGES, 1), ring(STAGES, 1))
    begun = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    met = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(begun, count=1)
    mbarrier.init(met, count=1)
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    # fmt: off
    gl.warp_specialize(
        [
            (consume, (c_desc, bs_ptr, M, N, K, bufs, c_bufs, bars, begun, met,
                       HALVES, STAGES, GROUP, SLOTS, COLUMNS, BEHIND, STAGGER, 0)),
            (consume, (c_desc, bs_ptr, M, N, K, bufs, c_bufs, bars, begun, met,
                       HALVES, STAGES, GROUP, SLOTS, COLUMNS, BEHIND, STAGGER, 1)),
            (producer, (maps, M, N, K, bufs, bars, HALVES, STAGES, GROUP, COLUMNS)),
        ],
        [4, 1],
        [REGS, 24],
    )
    # fmt: on


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    scales = inputs["a_s"].reshape(-1)
    columns = inputs["b_s"].reshape(-1)
    per_column = inputs["b_s"].shape[0] == k // 128 and inputs["b_s"].shape[1] == n
    out = torch.empty((m, n), dtype=torch.bfloat16)
    halves = params["block_n"] // 128
    fp8 = gl.NVMMASharedLayout(128, 8)
    flat = gl.NVMMASharedLayout(0, 32, rank=1)
    bf16 = gl.NVMMASharedLayout(128, 16)
    tiles = -(-m // 128) * -(-n // params["block_n"])
    grid = min(tiles, params["programs"])
    gemm_kernel[(grid,)](
        TensorDescriptor(a, [m, k], [k, 1], [64, 128], fp8),
        TensorDescriptor(scales, [scales.shape[0]], [1], [64], flat),
        TensorDescriptor(b, [n, k], [k, 1], [128, 128], fp8),
        TensorDescriptor(columns, [columns.shape[0]], [1], [128], flat),
        TensorDescriptor(out, [m, n], [n, 1], [64, 64], bf16),
        inputs["b_s"],
        m,
        n,
        k,
        halves,
        params["stages"],
        params["group_m"],
        params["slots"],
        params["consumer_regs"],
        per_column,
        params["release"] == "behind",
        params["stagger"],
        num_warps=4,
        maxnreg=168,
    )
    return (out,)
