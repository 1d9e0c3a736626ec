"""Blockwise FP8 products of groups of steps in Gluon for Hopper: an expert's weight gradient each, in one launch.

A [M, K] has 1 x 128 scales, B [N, K] too or 128 x 128 ones; group g is the next ``count[g]`` steps of 128 along K, and
C [G, M, N] holds every group's product over its own steps, zeros for a group of none. The host reads no count. One
producer warp feeds two consumer warpgroups; programs walk over the tiles of all groups, the deepest work not first.
Scales by column are read once the product is there (``column_scales`` "late") or while it is under way.
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
    "stages": (3, 4),
    "slots": (1, 2),
    "group_m": (1, 2, 4, 8, 16, 32),
    "consumer_regs": (216, 232, 240),
    "column_scales": ("late", "early"),
}
DEFAULTS = {"stages": 4, "slots": 1, "group_m": 8, "consumer_regs": 240, "column_scales": "late"}
CONSTRAINTS = {
    "50688 * stages + 16384 * slots <= 231600": "the ring and the store slots share 227 KB of shared memory",
    "M % 4 == 0": "rows of A's scales begin at 16 bytes, where TMA may",
    "N % 8 == 0": "rows of C begin at 16 bytes, and rows of B's scales",
    "K % 128 == 0": "a step of K is one scale block",
}


@gluon.jit
def steps_of(count_ptr, t, per_group, G, GP: gl.constexpr):
    """Group of tile t, the group's first step along K, and how many it has."""
    layout: gl.constexpr = gl.BlockedLayout([GP // 32], [32], [gl.num_warps()], [0])
    g = t // per_group
    at = gl.arange(0, GP, layout)
    before = gl.load(count_ptr + at, mask=at < g, other=0)
    return g, gl.sum(before, 0), gl.load(count_ptr + g)


@gluon.jit
def promote(acc, partial, sa, sb, columns, COLUMNS: gl.constexpr):
    """acc + partial * scales: ``sa`` per row, ``sb`` one number or ``columns`` per column."""
    return fenced(acc + partial * columns[None, :] * sa[:, None] if COLUMNS else acc + partial * (sa * sb)[:, None])


@gluon.jit
def producer(
    maps,
    count_ptr,
    G,
    M,
    N,
    bufs,
    bars,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    GP: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """Keep the ring full."""
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 256)
    s = 0
    phase = 1
    for t in range(gl.program_id(0), G * num_m * num_n, gl.num_programs(0)):
        _, first, steps = steps_of(count_ptr, t, num_m * num_n, G, GP)
        pm, pn = tile_of(t % (num_m * num_n), num_m, num_n, GROUP)
        for k in range(first, first + steps):
            fetch(maps, pm * 128, pn * 256, k, M, N, bufs, bars, s, phase, 2, True, COLUMNS)
            s, phase = advance(s, phase, STAGES)


@gluon.jit
def store_rows(
    c_desc,
    c_ptr,
    c_bufs,
    acc,
    row,
    end,
    col,
    N,
    FIRST: gl.constexpr,
    SLOTS: gl.constexpr,
    WG: gl.constexpr,
    MMA: gl.constexpr,
):
    """Store 64 x 128 f32 as bf16: by TMA, or one by one where rows would be the next group's."""
    out = acc.to(gl.bfloat16)
    if row + 64 <= end:
        store_half(c_desc, c_bufs, out, row, col, FIRST, SLOTS, WG)
    else:
        m = row + gl.arange(0, 64, gl.SliceLayout(1, MMA))
        n = col + gl.arange(0, 128, gl.SliceLayout(0, MMA))
        at = c_ptr + m.to(gl.int64)[:, None] * N + n[None, :]
        gl.store(at, out, mask=(m < end)[:, None] & (n < N)[None, :])


@gluon.jit
def consume(
    c_desc,
    bs_ptr,
    c_ptr,
    count_ptr,
    G,
    M,
    N,
    K,
    bufs,
    c_bufs,
    bars,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    GP: gl.constexpr,
    SLOTS: gl.constexpr,
    COLUMNS: gl.constexpr,
    BEFORE: gl.constexpr,
    WG: gl.constexpr,
):
    """The warpgroup's 64 rows of every tile of this program."""
    a_bufs, s_bufs, b_bufs, t_bufs = bufs
    empty, ready, ready1 = bars
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    rows: gl.constexpr = gl.SliceLayout(1, mma)
    columns: gl.constexpr = gl.SliceLayout(0, mma)
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 256)
    zero = gl.zeros((64, 128), gl.float32, mma)
    s = 0
    phase = 0
    for t in range(gl.program_id(0), G * num_m * num_n, gl.num_programs(0)):
        g, first, steps = steps_of(count_ptr, t, num_m * num_n, G, GP)
        pm, pn = tile_of(t % (num_m * num_n), num_m, num_n, GROUP)
        acc0 = gl.zeros((64, 128), gl.float32, mma)
        acc1 = gl.zeros((64, 128), gl.float32, mma)
        bp0 = bs_ptr + pn * 2 * (K // 128) + first
        bp1 = bs_ptr + min(pn * 2 + 1, gl.cdiv(N, 128) - 1) * (K // 128) + first
        for k in range(steps):
            sb0 = 1.0
            sb1 = 1.0
            if not COLUMNS:
                sb0 = gl.load(bp0 + k)
                sb1 = gl.load(bp1 + k)
            mbarrier.wait(ready.index(s), phase)
            a = a_bufs.index(s * 2 + WG)
            d = warpgroup_mma(a, b_bufs.index(s * 2).permute((1, 0)), zero, use_acc=False, is_async=True)
            sa = s_bufs.index(s * 2 + WG).load(rows)
            td = sa
            te = sa
            if COLUMNS and BEFORE:
                td = t_bufs.index(s * 2).load(columns)
            d = warpgroup_mma_wait(num_outstanding=0, deps=(d,))
            if COLUMNS and not BEFORE:
                td = t_bufs.index(s * 2).load(columns)
            acc0 = promote(acc0, d, sa, sb0, td, COLUMNS)
            # the branch of this wait also keeps ptxas from starting the next wgmma before the promotion above
            mbarrier.wait(ready1.index(s), phase)
            e = warpgroup_mma(a, b_bufs.index(s * 2 + 1).permute((1, 0)), zero, use_acc=False, is_async=True)
            if COLUMNS and BEFORE:
                te = t_bufs.index(s * 2 + 1).load(columns)
            e = warpgroup_mma_wait(num_outstanding=0, deps=(e,))
            if COLUMNS and not BEFORE:
                te = t_bufs.index(s * 2 + 1).load(columns)
            if not COLUMNS:
                mbarrier.arrive(empty.index(s), count=1)
            acc1 = promote(acc1, e, sa, sb1, te, COLUMNS)
            if COLUMNS:
                # the promotion still read the stage's scales
                mbarrier.arrive(empty.index(s), count=1)
            s, phase = advance(s, phase, STAGES)
        row = g * M + pm * 128 + WG * 64
        end = (g + 1) * M
        col = pn * 256
        store_rows(c_desc, c_ptr, c_bufs, acc0, row, end, col, N, 0, SLOTS, WG, mma)
        store_rows(c_desc, c_ptr, c_bufs, acc1, row, end, col + 128, N, 2, SLOTS, WG, mma)
    tma.store_wait(0)


@gluon.jit
def gemm_kernel(
    a_desc,
    as_desc,
    b_desc,
    bs_desc,
    c_desc,
    bs_ptr,
    c_ptr,
    count_ptr,
    G,
    M,
    N,
    K,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    GP: gl.constexpr,
    SLOTS: gl.constexpr,
    REGS: gl.constexpr,
    COLUMNS: gl.constexpr,
    BEFORE: gl.constexpr,
):
    fp8: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    bf16: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    flat: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 64, 128], fp8)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 128, 128], fp8)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, 64, 64], bf16)
    s_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 64], flat)
    t_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 128], flat)
    maps = (a_desc, as_desc, b_desc, bs_desc)
    bufs = (a_bufs, s_bufs, b_bufs, t_bufs)
    bars = (ring(STAGES, 2), ring(STAGES, 1), ring(STAGES, 1))
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                consume,
                (
                    c_desc,
                    bs_ptr,
                    c_ptr,
                    count_ptr,
                    G,
                    M,
                    N,
                    K,
                    bufs,
                    c_bufs,
                    bars,
                    STAGES,
                    GROUP,
                    GP,
                    SLOTS,
                    COLUMNS,
                    BEFORE,
                    0,
                ),
            ),
            (
                consume,
                (
                    c_desc,
                    bs_ptr,
                    c_ptr,
                    count_ptr,
                    G,
                    M,
                    N,
                    K,
                    bufs,
                    c_bufs,
                    bars,
                    STAGES,
                    GROUP,
                    GP,
                    SLOTS,
                    COLUMNS,
                    BEFORE,
                    1,
                ),
            ),
            (producer, (maps, count_ptr, G, M, N, bufs, bars, STAGES, GROUP, GP, COLUMNS)),
        ],
        [4, 1],
        [REGS, 24],
    )


def launch(inputs, params):
    a, b, count = inputs["a_q"], inputs["b_q"], inputs["count"]
    m, k = a.shape
    n = b.shape[0]
    g = count.shape[0]
    scales, columns = inputs["a_s"].reshape(-1), inputs["b_s"].reshape(-1)
    out = torch.empty((g, m, n), dtype=torch.bfloat16)
    rows = out.reshape(g * m, n)
    padded = 32
    while padded < g:
        padded *= 2
    fp8 = gl.NVMMASharedLayout(128, 8)
    flat = gl.NVMMASharedLayout(0, 32, rank=1)
    bf16 = gl.NVMMASharedLayout(128, 16)
    # one program for each multiprocessor of an H200, or fewer where there are not as many tiles
    tiles = g * -(-m // 128) * -(-n // 256)
    gemm_kernel[(min(tiles, 132),)](
        TensorDescriptor(a, [m, k], [k, 1], [64, 128], fp8),
        TensorDescriptor(scales, [scales.shape[0]], [1], [64], flat),
        TensorDescriptor(b, [n, k], [k, 1], [128, 128], fp8),
        TensorDescriptor(columns, [columns.shape[0]], [1], [128], flat),
        TensorDescriptor(rows, [g * m, n], [n, 1], [64, 64], bf16),
        inputs["b_s"],
        rows,
        count,
        g,
        m,
        n,
        k,
        params["stages"],
        params["group_m"],
        padded,
        params["slots"],
        params["consumer_regs"],
        inputs["b_s"].shape[0] == k // 128 and inputs["b_s"].shape[1] == n,
        params["column_scales"] == "early",
        num_warps=4,
        maxnreg=168,
    )
    return (out,)
