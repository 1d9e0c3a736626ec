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

SPACE = {
    "block_n": (128, 256),
    "stages": (2, 3, 4, 6),
    "slots": (1, 2),
    "group_m": (1, 2, 4, 8, 16, 32),
    "programs": (132, 1048576),
    "consumer_regs": (216, 232, 240),
    "edge": (128, 256),
}
DEFAULTS = {
    "block_n": 256,
    "stages": 4,
    "slots": 2,
    "group_m": 16,
    "programs": 132,
    "consumer_regs": 240,
    "edge": 256,
}
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
def tile_of(t, num_m, num_n, GROUP: gl.constexpr):
    """Tile t of a walk that goes down GROUP rows of tiles before it moves one column."""
    per = GROUP * num_n
    first = (t // per) * GROUP
    rows = min(num_m - first, GROUP)
    inside = t % per
    return first + inside % rows, inside // rows


@gluon.jit
def promote(acc, partial, factor):
    """acc + partial * factor, kept where it stands: LLVM would sink it below the next wgmma and spill.

    A wait that has nothing left to wait for, with the sum as its dependence, is a fence.
    """
    return warpgroup_mma_wait(num_outstanding=0, deps=(acc + partial * factor,))


@gluon.jit
def next_slot(s, phase, BY: gl.constexpr, STAGES: gl.constexpr):
    """Ring position and phase BY steps on; BY divides STAGES."""
    wrap = s == STAGES - BY
    return gl.where(wrap, 0, s + BY), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def producer(
    a_desc,
    b_desc,
    M,
    N,
    K,
    a_bufs,
    b_bufs,
    empty,
    ready,
    ready1,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    DEEP: gl.constexpr,
):
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    s = 0
    phase = 1
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        row = pm * 128
        col = pn * (128 * HALVES)
        # past K there are zeros: the last scale block is whole for the matrix unit
        for k in range(gl.cdiv(K, 128 * DEEP) * DEEP):
            mbarrier.wait(empty.index(s), phase)
            bar = ready.index(s)
            mbarrier.expect(bar, 2 * 128 * 128)
            for p in gl.static_range(2):
                tma.async_copy_global_to_shared(a_desc, [row + p * 64, k * 128], bar, a_bufs.index(s * 2 + p))
            tma.async_copy_global_to_shared(b_desc, [col, k * 128], bar, b_bufs.index(s * HALVES))
            if HALVES == 2:
                bar1 = ready1.index(s)
                mbarrier.expect(bar1, 128 * 128)
                tma.async_copy_global_to_shared(b_desc, [col + 128, k * 128], bar1, b_bufs.index(s * 2 + 1))
            s, phase = next_slot(s, phase, 1, STAGES)


@gluon.jit
def block_sum(
    a_bufs, b_bufs, bars, zero, s, phase, half, HALVES: gl.constexpr, DEEP: gl.constexpr, WG: gl.constexpr
):
    """64 x 128 sums over the steps of one scale block, from ring position s on."""
    total = zero
    for j in gl.static_range(DEEP):
        mbarrier.wait(bars.index(s + j), phase)
        b = b_bufs.index((s + j) * HALVES + half).permute((1, 0))
        total = warpgroup_mma(a_bufs.index((s + j) * 2 + WG), b, total, use_acc=j > 0, is_async=True)
    return warpgroup_mma_wait(num_outstanding=0, deps=(total,))


@gluon.jit
def store_bf16(c_desc, c_bufs, acc, row, col, SLOTS: gl.constexpr, WG: gl.constexpr):
    """Store 64 x 128 f32 as bf16, in two 64 x 64 pieces through this warpgroup's slots."""
    small: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 32]
    )
    left, right = acc.to(gl.bfloat16).reshape([64, 2, 64]).permute(0, 2, 1).split()
    for p in gl.static_range(2):
        slot = c_bufs.index(WG * SLOTS + p % SLOTS)
        tma.store_wait(SLOTS - 1)
        slot.store(gl.convert_layout(left if p == 0 else right, small))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [row, col + p * 64], slot)


@gluon.jit
def consume(
    c_desc,
    as_ptr,
    bs_ptr,
    M,
    N,
    K,
    a_bufs,
    b_bufs,
    c_bufs,
    empty,
    ready,
    ready1,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    DEEP: gl.constexpr,
    WG: gl.constexpr,
):
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32]
    )
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
                acc0 = promote(acc0, d, 1.0 / (sa * sb0))
                # the branch of this wait also keeps ptxas from starting the next wgmma before the promotion above
                e = block_sum(a_bufs, b_bufs, ready1, zero, s, phase, 1, HALVES, DEEP, WG)
                for j in gl.static_range(DEEP):
                    mbarrier.arrive(empty.index(s + j), count=1)
                acc1 = promote(acc1, e, 1.0 / (sa * sb1))
            else:
                for j in gl.static_range(DEEP):
                    mbarrier.arrive(empty.index(s + j), count=1)
                acc0 = promote(acc0, d, 1.0 / (sa * sb0))
            s, phase = next_slot(s, phase, DEEP, STAGES)
        row = pm * 128 + WG * 64
        col = pn * (128 * HALVES)
        store_bf16(c_desc, c_bufs, acc0, row, col, SLOTS, WG)
        if HALVES == 2:
            store_bf16(c_desc, c_bufs, acc1, row, col + 128, SLOTS, WG)
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
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    # two rings of barriers, not one: waits on the same allocation get a thread barrier between them
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready1 = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(empty.index(s), count=2)
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(ready1.index(s), count=1)
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    # fmt: off
    gl.warp_specialize(
        [
            (consume, (c_desc, as_ptr, bs_ptr, M, N, K, a_bufs, b_bufs, c_bufs, empty, ready, ready1,
                       HALVES, STAGES, GROUP, SLOTS, DEEP, 0)),
            (consume, (c_desc, as_ptr, bs_ptr, M, N, K, a_bufs, b_bufs, c_bufs, empty, ready, ready1,
                       HALVES, STAGES, GROUP, SLOTS, DEEP, 1)),
            (producer, (a_desc, b_desc, M, N, K, a_bufs, b_bufs, empty, ready, ready1, HALVES, STAGES, GROUP, DEEP)),
        ],
        [4, 1],
        [REGS, 24],
    )
    # fmt: on


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
