# gemm_fp8_blockwise/gemm_nt for h200. Promoted by tilewright: do not edit,
# a file whose hash differs from its receipt is not used.
# dispatch.json has the parameters and shapes of the kernels that are made of this source,
# receipt.json has their campaigns, lineages and gains.
#
"""Blockwise FP8 GEMM (NT) in Gluon for Hopper: one producer warp, two consumer warpgroups.

The producer fills a ring of stages by TMA: A (two 64 x 128 pieces), their 1x128 scales, and B (one or two
128 x 128 pieces). Each consumer warpgroup owns 64 rows of the 128 x block_n tile. Per 128-wide step of K it
multiplies one 128-column half at a time into a partial and promotes it into f32 accumulators with its scales;
while one warpgroup promotes, the other's wgmma keeps the tensor cores busy. 128 x 256 tiles read 170 FLOP
per byte from L2, where 128 x 128 tiles read 128: on an H200 the wider tile is what lifts the L2 bound.
Programs are persistent, so the producer runs ahead into the next tile during the epilogue, and the epilogue
stores 64 x 64 pieces through a ring of two slots by TMA.
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

SPACE = {
    "block_n": (128, 256),
    "stages": (3, 4, 5, 6),
    "slots": (1, 2),
    "group_m": (1, 2, 4, 6, 8, 12, 16, 24, 32),
    "programs": (132, 1048576),
    "consumer_regs": (216, 232, 240),
}
DEFAULTS = {"block_n": 256, "stages": 4, "slots": 2, "group_m": 32, "programs": 132, "consumer_regs": 240}
CONSTRAINTS = {
    "(16896 + block_n // 128 * (16384 + 512 * columns)) * stages + 16384 * slots <= 232000": (
        "the ring and the store slots share 227 KB of shared memory"
    ),
    "N % 128 == 0": "B's scales come in whole 128 x 128 blocks",
    "K % 128 == 0": "a step of K is one scale block",
}


@gluon.jit
def tile_of(t, num_m, num_n, GROUP: gl.constexpr):
    """Tile t of a walk that goes down GROUP rows of tiles before it moves one column."""
    per = GROUP * num_n
    first = (t // per) * GROUP
    rows = min(num_m - first, GROUP)
    inside = t % per
    return first + inside % rows, inside // rows


@gluon.jit
def promote(acc, partial, sa, sb, t_buf, COLUMNS: gl.constexpr, MMA: gl.constexpr):
    """acc + partial * scales, kept where it stands: ``sa`` per row, ``sb`` one number or ``t_buf`` per column.

    LLVM sinks plain multiply-adds below the next wgmma, which keeps two partials alive and spills. A wait that
    has nothing left to wait for, with the sum as its dependence, is a fence for them.
    """
    if COLUMNS:
        columns: gl.constexpr = gl.SliceLayout(0, MMA)
        total = acc + partial * t_buf.load(columns)[None, :] * sa[:, None]
    else:
        total = acc + partial * (sa * sb)[:, None]
    return warpgroup_mma_wait(num_outstanding=0, deps=(total,))


@gluon.jit
def producer(
    a_desc,
    as_desc,
    b_desc,
    bs_desc,
    M,
    N,
    K,
    a_bufs,
    s_bufs,
    b_bufs,
    t_bufs,
    empty,
    ready,
    ready1,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    steps = K // 128
    B_BYTES: gl.constexpr = 128 * 128 + (128 * 4 if COLUMNS else 0)
    A_BYTES: gl.constexpr = 2 * 64 * 128 + 2 * 64 * 4
    s = 0
    phase = 1
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        row = pm * 128
        col = pn * (128 * HALVES)
        for k in range(steps):
            mbarrier.wait(empty.index(s), phase)
            bar = ready.index(s)
            mbarrier.expect(bar, A_BYTES + B_BYTES)
            for p in gl.static_range(2):
                tma.async_copy_global_to_shared(a_desc, [row + p * 64, k * 128], bar, a_bufs.index(s * 2 + p))
                tma.async_copy_global_to_shared(as_desc, [k * M + row + p * 64], bar, s_bufs.index(s * 2 + p))
            tma.async_copy_global_to_shared(b_desc, [col, k * 128], bar, b_bufs.index(s * HALVES))
            if COLUMNS:
                tma.async_copy_global_to_shared(bs_desc, [k * N + col], bar, t_bufs.index(s * HALVES))
            if HALVES == 2:
                bar1 = ready1.index(s)
                mbarrier.expect(bar1, B_BYTES)
                tma.async_copy_global_to_shared(b_desc, [col + 128, k * 128], bar1, b_bufs.index(s * 2 + 1))
                if COLUMNS:
                    tma.async_copy_global_to_shared(
                        bs_desc, [k * N + col + 128], bar1, t_bufs.index(s * 2 + 1)
                    )
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def store_half(c_desc, c_bufs, acc, row, col, SLOTS: gl.constexpr, WG: gl.constexpr, SMALL: gl.constexpr):
    """Store 64 x 128 f32 as bf16, in two 64 x 64 pieces through this warpgroup's slots."""
    left, right = acc.to(gl.bfloat16).reshape([64, 2, 64]).permute(0, 2, 1).split()
    for p in gl.static_range(2):
        slot = c_bufs.index(WG * SLOTS + p % SLOTS)
        tma.store_wait(SLOTS - 1)
        slot.store(gl.convert_layout(left if p == 0 else right, SMALL))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [row, col + p * 64], slot)


@gluon.jit
def consume(
    c_desc,
    bs_ptr,
    M,
    N,
    K,
    a_bufs,
    s_bufs,
    b_bufs,
    t_bufs,
    c_bufs,
    empty,
    ready,
    ready1,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    COLUMNS: gl.constexpr,
    WG: gl.constexpr,
):
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32]
    )
    small: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 32]
    )
    rows: gl.constexpr = gl.SliceLayout(1, mma)
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    steps = K // 128
    last = N // 128 - 1
    zero = gl.zeros((64, 128), gl.float32, mma)
    s = 0
    phase = 0
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        bp0 = bs_ptr + (pn * HALVES) * steps
        bp1 = bs_ptr + min(pn * HALVES + HALVES - 1, last) * steps
        acc0 = gl.zeros((64, 128), gl.float32, mma)
        acc1 = gl.zeros((64, 128), gl.float32, mma)
        for k in range(steps):
            sb0 = 1.0
            sb1 = 1.0
            if not COLUMNS:
                sb0 = gl.load(bp0 + k)
                sb1 = gl.load(bp1 + k)
            mbarrier.wait(ready.index(s), phase)
            a = a_bufs.index(s * 2 + WG)
            d = warpgroup_mma(a, b_bufs.index(s * HALVES).permute((1, 0)), zero, use_acc=False, is_async=True)
            sa = s_bufs.index(s * 2 + WG).load(rows)
            d = warpgroup_mma_wait(num_outstanding=0, deps=(d,))
            if HALVES == 2:
                acc0 = promote(acc0, d, sa, sb0, t_bufs.index(s * HALVES), COLUMNS, mma)
                # the second half has its own barrier: the branch of its wait also keeps ptxas from starting the
                # next wgmma before the promotion above, which would need a second set of 64 registers and spill
                mbarrier.wait(ready1.index(s), phase)
                e = warpgroup_mma(
                    a, b_bufs.index(s * 2 + 1).permute((1, 0)), zero, use_acc=False, is_async=True
                )
                e = warpgroup_mma_wait(num_outstanding=0, deps=(e,))
                if not COLUMNS:
                    mbarrier.arrive(empty.index(s), count=1)
                acc1 = promote(acc1, e, sa, sb1, t_bufs.index(s * 2 + 1), COLUMNS, mma)
            else:
                if not COLUMNS:
                    mbarrier.arrive(empty.index(s), count=1)
                acc0 = promote(acc0, d, sa, sb0, t_bufs.index(s * HALVES), COLUMNS, mma)
            if COLUMNS:
                # the promotion still read the stage's column scales
                mbarrier.arrive(empty.index(s), count=1)
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)
        row = pm * 128 + WG * 64
        col = pn * (128 * HALVES)
        store_half(c_desc, c_bufs, acc0, row, col, SLOTS, WG, small)
        if HALVES == 2:
            store_half(c_desc, c_bufs, acc1, row, col + 128, SLOTS, WG, small)
    tma.store_wait(0)


@gluon.jit
def gemm_kernel(
    a_desc,
    as_desc,
    b_desc,
    bs_desc,
    c_desc,
    bs_ptr,
    M,
    N,
    K,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    REGS: gl.constexpr,
    COLUMNS: gl.constexpr,
):
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
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    # two rings of barriers, not one: waits on the same allocation get a thread barrier between them
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready1 = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(empty.index(s), count=2)
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(ready1.index(s), count=1)
    # fmt: off
    gl.warp_specialize(
        [
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready, ready1,
                       HALVES, STAGES, GROUP, SLOTS, COLUMNS, 0)),
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready, ready1,
                       HALVES, STAGES, GROUP, SLOTS, COLUMNS, 1)),
            (producer, (a_desc, as_desc, b_desc, bs_desc, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, empty, ready,
                        ready1, HALVES, STAGES, GROUP, COLUMNS)),
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
        num_warps=4,
        maxnreg=168,
    )
    return (out,)
