"""Blockwise FP8 products in groups of rows in Gluon for Hopper: one schedule over the tiles of all groups.

A [M, K]: rows are dealt to groups in order, ``count[g]`` to group g. A [G, M, K]: the first ``count[g]`` of the M rows
of group g count. One launch; the host reads no count. B may also be [N, G K], groups beside one another, as a
transposed copy of all weights is.

Programs are persistent and walk over the tiles of every group. Each partition holds the running sums over groups in
registers, and finds a tile's group by comparing with all of them at once. A group's first tile begins at the
last row before it that is a multiple of four, where copies of scales may; rows of other groups are not stored.

``block_m`` 128: two warpgroups own 64 rows each and multiply both 128-column halves one after the other. 64: they share
the 64 rows and own half the columns each, for groups of few rows.
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

from tilewright.seeds.shared.kernels.hopper import advance, fenced, ring, store_half

SPACE = {
    "block_m": (64, 128),
    "block_n": (128, 256),
    "stages": (3, 4, 5, 6, 8),
    "slots": (1, 2),
    "group_m": (1, 2, 4, 8, 16, 32),
    "consumer_regs": (216, 232, 240),
}
DEFAULTS = {"block_m": 128, "block_n": 256, "stages": 4, "slots": 2, "group_m": 8, "consumer_regs": 240}
CONSTRAINTS = {
    "(block_m * 132 + block_n * 128) * stages + 16384 * slots <= 232000": (
        "the ring and the store slots share 227 KB of shared memory"
    ),
    "M % 4 == 0": "rows of A's scales begin at 16 bytes, where TMA may",
    "N % 8 == 0": "rows of C begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}


@gluon.jit
def added(a, b):
    return a + b


@gluon.jit
def held(count_ptr, G, M, BM: gl.constexpr, GP: gl.constexpr, MASKED: gl.constexpr):
    """Up to and including each group: its last row's end, and the rows of tiles. Every warp has its own copy.

    A group's first tile begins at a multiple of four rows.
    """
    layout: gl.constexpr = gl.BlockedLayout([GP // 32], [32], [gl.num_warps()], [0])
    g = gl.arange(0, GP, layout)
    count = gl.load(count_ptr + g, mask=g < G, other=0)
    if MASKED:
        count = gl.minimum(count, M)
        ends = (g + 1) * M
        tall = gl.cdiv(count, BM)
    else:
        ends = gl.associative_scan(count, 0, added)
        begin = ends - count
        tall = gl.where(count > 0, gl.cdiv(ends - begin // 4 * 4, BM), 0)
    return ends, gl.associative_scan(tall, 0, added)


@gluon.jit
def tile_of(t, ends, upto, num_n, BM: gl.constexpr, GROUP: gl.constexpr):
    """Of tile t: its group, the group's first row and end, the tile's first row, its column of tiles.

    Inside a group tiles go down GROUP rows of tiles before they move one column.
    """
    passed = upto * num_n <= t
    g = gl.sum(passed.to(gl.int32), 0)
    before = gl.max(gl.where(passed, upto, 0), 0)
    begin = gl.max(gl.where(passed, ends, 0), 0)
    end = gl.min(gl.where(passed, 2147483647, ends), 0)
    num_m = gl.min(gl.where(passed, 2147483647, upto), 0) - before
    inside = t - before * num_n
    per = GROUP * num_n
    first = (inside // per) * GROUP
    rows = min(num_m - first, GROUP)
    inside = inside % per
    return g, begin, end, begin // 4 * 4 + (first + inside % rows) * BM, inside // rows


@gluon.jit
def producer(
    a_desc, as_desc, b_desc, count_ptr, G, M, N, K, bufs, bars,
    BM: gl.constexpr, BN: gl.constexpr, WIDE: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    GP: gl.constexpr, MASKED: gl.constexpr, BESIDE: gl.constexpr,
):  # fmt: skip
    """Keep the ring full: A with its scales and the first piece of B, then the second."""
    a_bufs, s_bufs, b_bufs = bufs
    empty, ready, ready1 = bars
    PIECES: gl.constexpr = BN // WIDE
    FIRST: gl.constexpr = BM * 132 + WIDE * 128
    num_n = gl.cdiv(N, BN)
    steps = K // 128
    ends, upto = held(count_ptr, G, M, BM, GP, MASKED)
    s = 0
    phase = 1
    for t in range(gl.program_id(0), gl.max(upto, 0) * num_n, gl.num_programs(0)):
        g, begin, _, row, pn = tile_of(t, ends, upto, num_n, BM, GROUP)
        # scales are [K / 128, rows], of each group with a mask and of all rows together without
        scales = begin * steps + row - begin if MASKED else row
        # B's groups stand below one another, or beside one another
        col = pn * BN if BESIDE else g * N + pn * BN
        depth = g * K if BESIDE else 0
        for k in range(steps):
            mbarrier.wait(empty.index(s), phase)
            bar = ready.index(s)
            mbarrier.expect(bar, FIRST)
            for p in gl.static_range(BM // 64):
                piece = s * (BM // 64) + p
                tma.async_copy_global_to_shared(a_desc, [row + p * 64, k * 128], bar, a_bufs.index(piece))
                tma.async_copy_global_to_shared(as_desc, [scales + k * M + p * 64], bar, s_bufs.index(piece))
            tma.async_copy_global_to_shared(b_desc, [col, depth + k * 128], bar, b_bufs.index(s * PIECES))
            if PIECES == 2:
                bar1 = ready1.index(s)
                mbarrier.expect(bar1, WIDE * 128)
                tma.async_copy_global_to_shared(
                    b_desc, [col + WIDE, depth + k * 128], bar1, b_bufs.index(s * 2 + 1)
                )
            s, phase = advance(s, phase, STAGES)


@gluon.jit
def store_piece(
    c_desc, c_ptr, c_bufs, acc, row, begin, end, whole, col, N,
    FIRST: gl.constexpr, SLOTS: gl.constexpr, WG: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Store 64 x 64 or 64 x 128 f32 as bf16: by TMA if every row is the group's, else the group's rows one by one."""
    WIDE: gl.constexpr = acc.shape[1]
    out = acc.to(gl.bfloat16)
    if whole:
        if WIDE == 128:
            store_half(c_desc, c_bufs, out, row, col, FIRST, SLOTS, WG)
        else:
            slot = c_bufs.index(WG * SLOTS + FIRST % SLOTS)
            tma.store_wait(0)
            slot.store(out)
            fence_async_shared()
            tma.async_copy_shared_to_global(c_desc, [row, col], slot)
    else:
        m = row + gl.arange(0, 64, gl.SliceLayout(1, MMA))
        n = col + gl.arange(0, WIDE, gl.SliceLayout(0, MMA))
        at = c_ptr + m.to(gl.int64)[:, None] * N + n[None, :]
        gl.store(at, out, mask=((m >= begin) & (m < end))[:, None] & (n < N)[None, :])


@gluon.jit
def consume(
    c_desc, c_ptr, bs_ptr, count_ptr, G, M, N, K, bufs, c_bufs, bars,
    BM: gl.constexpr, BN: gl.constexpr, WIDE: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    GP: gl.constexpr, MASKED: gl.constexpr, BESIDE: gl.constexpr, SLOTS: gl.constexpr, WG: gl.constexpr,
):  # fmt: skip
    """The warpgroup's piece of every tile of this program."""
    a_bufs, s_bufs, b_bufs = bufs
    empty, ready, ready1 = bars
    PIECES: gl.constexpr = BN // WIDE
    # of rows, or of columns: which a warpgroup has of its own
    ROWS: gl.constexpr = WG if BM == 128 else 0
    MINE: gl.constexpr = 0 if BM == 128 else WG
    BOTH: gl.constexpr = BM == 128 and PIECES == 2
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 32])
    rows: gl.constexpr = gl.SliceLayout(1, mma)
    num_n = gl.cdiv(N, BN)
    steps = K // 128
    last = gl.cdiv(N, 128) - 1
    ends, upto = held(count_ptr, G, M, BM, GP, MASKED)
    # with a mask every row of every group is there; without, the rows end at M
    all_rows = G * M if MASKED else M
    zero = gl.zeros((64, WIDE), gl.float32, mma)
    s = 0
    phase = 0
    for t in range(gl.program_id(0), gl.max(upto, 0) * num_n, gl.num_programs(0)):
        g, begin, end, row, pn = tile_of(t, ends, upto, num_n, BM, GROUP)
        col = pn * BN + MINE * WIDE
        blocks = bs_ptr + (g * steps if BESIDE else g * ((last + 1) * steps))
        row_of_blocks = G * steps if BESIDE else steps
        bp0 = blocks + min(col // 128, last) * row_of_blocks
        bp1 = blocks + min((col + WIDE) // 128, last) * row_of_blocks
        acc0 = gl.zeros((64, WIDE), gl.float32, mma)
        acc1 = gl.zeros((64, WIDE), gl.float32, mma)
        for k in range(steps):
            sb0 = gl.load(bp0 + k)
            sb1 = 0.0
            if BOTH:
                sb1 = gl.load(bp1 + k)
            mbarrier.wait(ready.index(s), phase)
            if BM == 64 and WG == 1:
                mbarrier.wait(ready1.index(s), phase)
            a = a_bufs.index(s * (BM // 64) + ROWS)
            b = b_bufs.index(s * PIECES + MINE)
            d = warpgroup_mma(a, b.permute((1, 0)), zero, use_acc=False, is_async=True)
            sa = s_bufs.index(s * (BM // 64) + ROWS).load(rows)
            d = warpgroup_mma_wait(num_outstanding=0, deps=(d,))
            if BOTH:
                acc0 = fenced(acc0 + d * (sa * sb0)[:, None])
                # the branch of this wait also keeps ptxas from starting the next wgmma before the promotion above
                mbarrier.wait(ready1.index(s), phase)
                b = b_bufs.index(s * PIECES + 1)
                e = warpgroup_mma(a, b.permute((1, 0)), zero, use_acc=False, is_async=True)
                e = warpgroup_mma_wait(num_outstanding=0, deps=(e,))
                mbarrier.arrive(empty.index(s), count=1)
                acc1 = fenced(acc1 + e * (sa * sb1)[:, None])
            else:
                scale = sa * sb0
                mbarrier.arrive(empty.index(s), count=1)
                acc0 = fenced(acc0 + d * scale[:, None])
            s, phase = advance(s, phase, STAGES)
        mine = row + ROWS * 64
        whole = (mine >= begin) & ((mine + 64 <= end) | (end == all_rows))
        store_piece(c_desc, c_ptr, c_bufs, acc0, mine, begin, end, whole, col, N, 0, SLOTS, WG, mma)
        if BOTH:
            store_piece(
                c_desc, c_ptr, c_bufs, acc1, mine, begin, end, whole, col + WIDE, N, 2, SLOTS, WG, mma
            )
    tma.store_wait(0)


@gluon.jit
def gemm_kernel(
    a_desc, as_desc, b_desc, c_desc, c_ptr, bs_ptr, count_ptr, G, M, N, K,
    BM: gl.constexpr, BN: gl.constexpr, WIDE: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    GP: gl.constexpr, MASKED: gl.constexpr, BESIDE: gl.constexpr, SLOTS: gl.constexpr, REGS: gl.constexpr,
):  # fmt: skip
    fp8: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    bf16: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    flat: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * (BM // 64), 64, 128], fp8)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * (BN // WIDE), WIDE, 128], fp8)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, 64, 64], bf16)
    s_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * (BM // 64), 64], flat)
    bufs = (a_bufs, s_bufs, b_bufs)
    bars = (ring(STAGES, 2), ring(STAGES, 1), ring(STAGES, 1))
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    # fmt: off
    gl.warp_specialize(
        [
            (consume, (c_desc, c_ptr, bs_ptr, count_ptr, G, M, N, K, bufs, c_bufs, bars,
                       BM, BN, WIDE, STAGES, GROUP, GP, MASKED, BESIDE, SLOTS, 0)),
            (consume, (c_desc, c_ptr, bs_ptr, count_ptr, G, M, N, K, bufs, c_bufs, bars,
                       BM, BN, WIDE, STAGES, GROUP, GP, MASKED, BESIDE, SLOTS, 1)),
            (producer, (a_desc, as_desc, b_desc, count_ptr, G, M, N, K, bufs, bars,
                        BM, BN, WIDE, STAGES, GROUP, GP, MASKED, BESIDE)),
        ],
        [4, 1],
        [REGS, 24],
    )
    # fmt: on


def launch(inputs, params):
    a, b, count = inputs["a_q"], inputs["b_q"], inputs["count"]
    masked = len(a.shape) == 3
    m, k = a.shape[-2], a.shape[-1]
    g = count.shape[0]
    beside = len(b.shape) == 2
    n = b.shape[0] if beside else b.shape[1]
    every = g * m if masked else m
    a = a.reshape(every, k)
    b = b if beside else b.reshape(g * n, k)
    scales = inputs["a_s"].reshape(-1)
    out = torch.empty((g, m, n) if masked else (m, n), dtype=torch.bfloat16)
    rows = out.reshape(every, n)
    bm, bn = params["block_m"], params["block_n"]
    wide = 128 if bm == 128 else bn // 2
    padded = 32
    while padded < g:
        padded *= 2
    fp8 = gl.NVMMASharedLayout(128, 8)
    flat = gl.NVMMASharedLayout(0, 32, rank=1)
    bf16 = gl.NVMMASharedLayout(128, 16)
    # one program for each multiprocessor of an H200, or fewer where there cannot be as many tiles
    most = (every // bm + 2 * g) * -(-n // bn)
    gemm_kernel[(min(most, 132),)](
        TensorDescriptor(a, [every, k], [k, 1], [64, 128], fp8),
        TensorDescriptor(scales, [scales.shape[0]], [1], [64], flat),
        TensorDescriptor(b, list(b.shape), [b.shape[1], 1], [wide, 128], fp8),
        TensorDescriptor(rows, [every, n], [n, 1], [64, 64], bf16),
        rows,
        inputs["b_s"],
        count,
        g,
        m,
        n,
        k,
        bm,
        bn,
        wide,
        params["stages"],
        params["group_m"],
        padded,
        masked,
        beside,
        params["slots"],
        params["consumer_regs"],
        num_warps=4,
        maxnreg=168,
    )
    return (out,)
