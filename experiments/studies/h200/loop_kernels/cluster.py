"""Blockwise FP8 GEMM (NT) in Gluon for Hopper: clusters of programs that read B once, by multicast. Triton 3.8 on.

``cluster`` programs, one on each multiprocessor, compute tiles of 128 x block_n below one another, which have B in
common. Each loads its own rows of A and their 1x128 scales; the first one's copies of B are delivered into the shared
memory of all: with two programs and 256 columns 32 KB a step come from L2 for a multiprocessor, not ``gluon_ws``'s 48.

What a stage is to a consumer is as in ``gluon_ws``: two warpgroups of 64 rows each, one half of 128 columns at a time.
To the producers it is a stage of the whole cluster: a copy of B may be asked for when the consumers of all programs
have given the stage back. A program's producer, which waits for its own consumers anyway, tells the first program's by
one arrival (``given``), so no consumer sends anything to another multiprocessor. A copy's bytes are waited for where
they land, and may land before that program has said how many it expects, which a barrier allows.

Shapes of tensors here are the cluster's: 64 rows of each program at a time, that is 64 * ``cluster`` rows a piece.
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
    "cluster": (2, 4),
    "block_n": (128, 256),
    "stages": (3, 4, 5, 6),
    "slots": (1, 2, 4),
    "group_m": (1, 2, 4, 6, 8, 12, 16),
    "programs": (132, 1048576),
    "consumer_regs": (216, 232, 240),
    "release": ("at_once", "behind"),
}
DEFAULTS = {
    "cluster": 2,
    "block_n": 256,
    "stages": 4,
    "slots": 2,
    "group_m": 8,
    "programs": 132,
    "consumer_regs": 240,
    "release": "at_once",
}
CONSTRAINTS = {
    "(16896 + block_n // 128 * (16384 + 512 * columns)) * stages + 16384 * slots <= 232000": (
        "the ring and the store slots share 227 KB of shared memory"
    ),
    "columns == 0 or release == 'at_once'": "a stage whose column scales are still read is not given back later",
    "M % 4 == 0": "rows of A's scales begin at 16 bytes, where TMA may",
    "columns == 0 or N % 4 == 0": "rows of B's scales begin at 16 bytes, where TMA may",
    "N % 8 == 0": "rows of C begin at 16 bytes",
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
def block_scales(bs_ptr, t, num_m, num_n, N, steps, HALVES: gl.constexpr, GROUP: gl.constexpr):
    """Where the scales of both halves of tile t begin; those of the last tile when t is past it."""
    _, pn = tile_of(min(t, num_m * num_n - 1), num_m, num_n, GROUP)
    last = gl.cdiv(N, 128) - 1
    return bs_ptr + pn * HALVES * steps, bs_ptr + min(pn * HALVES + HALVES - 1, last) * steps


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
    given,
    ready,
    ready1,
    CLUSTER: gl.constexpr,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    num_m = gl.cdiv(M, 128 * CLUSTER)
    num_n = gl.cdiv(N, 128 * HALVES)
    steps = K // 128
    B_BYTES: gl.constexpr = 128 * 128 + (128 * 4 if COLUMNS else 0)
    A_BYTES: gl.constexpr = 2 * 64 * 128 + 2 * 64 * 4
    PIECE: gl.constexpr = 64 * CLUSTER
    s = 0
    phase = 1
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        row = pm * (128 * CLUSTER)
        col = pn * (128 * HALVES)
        for k in range(steps):
            mbarrier.wait(empty.index(s), phase)
            mbarrier.arrive(given.index(s), count=1)
            bar = ready.index(s)
            mbarrier.expect(bar, A_BYTES + B_BYTES)
            if HALVES == 2:
                mbarrier.expect(ready1.index(s), B_BYTES)
            for p in gl.static_range(2):
                tma.async_copy_global_to_shared(
                    a_desc, [row + p * PIECE, k * 128], bar, a_bufs.index(s * 2 + p)
                )
                tma.async_copy_global_to_shared(
                    as_desc, [k * M + row + p * PIECE], bar, s_bufs.index(s * 2 + p)
                )
            # the first program waits, and asks for copies; the others pass
            mbarrier.wait(given.index(s), phase ^ 1)
            tma.async_copy_global_to_shared(
                b_desc, [col, k * 128], bar, b_bufs.index(s * HALVES), multicast=True
            )
            if COLUMNS:
                tma.async_copy_global_to_shared(
                    bs_desc, [k * N + col], bar, t_bufs.index(s * HALVES), multicast=True
                )
            if HALVES == 2:
                bar1 = ready1.index(s)
                tma.async_copy_global_to_shared(
                    b_desc, [col + 128, k * 128], bar1, b_bufs.index(s * 2 + 1), multicast=True
                )
                if COLUMNS:
                    tma.async_copy_global_to_shared(
                        bs_desc, [k * N + col + 128], bar1, t_bufs.index(s * 2 + 1), multicast=True
                    )
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def store_half(
    c_desc,
    c_bufs,
    acc,
    row,
    col,
    FIRST: gl.constexpr,
    SLOTS: gl.constexpr,
    WG: gl.constexpr,
    SMALL: gl.constexpr,
):
    """Store 64 x 128 f32 of each program as bf16, in two 64 x 64 pieces through this warpgroup's slots."""
    left, right = acc.to(gl.bfloat16).reshape([acc.shape[0], 2, 64]).permute(0, 2, 1).split()
    for p in gl.static_range(2):
        slot = c_bufs.index(WG * SLOTS + (FIRST + p) % SLOTS)
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
    met,
    CLUSTER: gl.constexpr,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    COLUMNS: gl.constexpr,
    BEHIND: gl.constexpr,
    MMA: gl.constexpr,
    SMALL: gl.constexpr,
    WG: gl.constexpr,
):
    rows: gl.constexpr = gl.SliceLayout(1, MMA)
    num_m = gl.cdiv(M, 128 * CLUSTER)
    num_n = gl.cdiv(N, 128 * HALVES)
    steps = K // 128
    # a tile of one half has two pieces: with more slots its stores would meet a slot before it is waited for
    TURNS: gl.constexpr = SLOTS if HALVES == 2 or SLOTS < 2 else 2
    PIECE: gl.constexpr = 64 * CLUSTER
    zero = gl.zeros((PIECE, 128), gl.float32, MMA)
    s = 0
    phase = 0
    used = 0
    next0 = 1.0
    next1 = 1.0
    if BEHIND:
        bp0, bp1 = block_scales(bs_ptr, gl.program_id(0), num_m, num_n, N, steps, HALVES, GROUP)
        next0 = gl.load(bp0)
        next1 = gl.load(bp1)
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        bp0, bp1 = block_scales(bs_ptr, t, num_m, num_n, N, steps, HALVES, GROUP)
        acc0 = gl.zeros((PIECE, 128), gl.float32, MMA)
        acc1 = gl.zeros((PIECE, 128), gl.float32, MMA)
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
                mbarrier.arrive(empty.index(gl.where(s == 0, STAGES - 1, s - 1)), count=1, pred=used == 1)
                used = 1
                # passes at once: a thread barrier that the next wait would get stands here, behind the product
                mbarrier.wait(met, 1)
                ahead = min(k + 1, steps - 1)
                next0 = gl.load(bp0 + ahead)
                next1 = gl.load(bp1 + ahead)
            d = warpgroup_mma_wait(num_outstanding=0, deps=(d,))
            if HALVES == 2:
                acc0 = promote(acc0, d, sa, sb0, t_bufs.index(s * HALVES), COLUMNS, MMA)
                # the second half has its own barrier: the branch of its wait also keeps ptxas from starting the
                # next wgmma before the promotion above, which would need a second set of 64 registers and spill
                mbarrier.wait(ready1.index(s), phase)
                e = warpgroup_mma(
                    a, b_bufs.index(s * 2 + 1).permute((1, 0)), zero, use_acc=False, is_async=True
                )
                e = warpgroup_mma_wait(num_outstanding=0, deps=(e,))
                if not COLUMNS and not BEHIND:
                    mbarrier.arrive(empty.index(s), count=1)
                acc1 = promote(acc1, e, sa, sb1, t_bufs.index(s * 2 + 1), COLUMNS, MMA)
            else:
                if not COLUMNS and not BEHIND:
                    mbarrier.arrive(empty.index(s), count=1)
                acc0 = promote(acc0, d, sa, sb0, t_bufs.index(s * HALVES), COLUMNS, MMA)
            if COLUMNS:
                # the promotion still read the stage's column scales
                mbarrier.arrive(empty.index(s), count=1)
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)
        if BEHIND:
            after0, after1 = block_scales(
                bs_ptr, t + gl.num_programs(0), num_m, num_n, N, steps, HALVES, GROUP
            )
            next0 = gl.load(after0)
            next1 = gl.load(after1)
        row = pm * (128 * CLUSTER) + WG * PIECE
        col = pn * (128 * HALVES)
        store_half(c_desc, c_bufs, acc0, row, col, 0, TURNS, WG, SMALL)
        if HALVES == 2:
            store_half(c_desc, c_bufs, acc1, row, col + 128, 2, TURNS, WG, SMALL)
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
    CLUSTER: gl.constexpr,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    REGS: gl.constexpr,
    COLUMNS: gl.constexpr,
    BEHIND: gl.constexpr,
    MMA: gl.constexpr,
    SMALL: gl.constexpr,
    OWN: gl.constexpr,
    FIRST: gl.constexpr,
):
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 64 * CLUSTER, 128], a_desc.layout)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * HALVES, 128, 128], b_desc.layout)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, 64 * CLUSTER, 64], c_desc.layout)
    s_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 64 * CLUSTER], as_desc.layout)
    t_bufs = s_bufs
    if COLUMNS:
        t_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * HALVES, 128], bs_desc.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, CLUSTER], OWN)
    given = gl.allocate_shared_memory(gl.int64, [STAGES, 1], FIRST)
    # two rings of barriers, not one: waits on the same allocation get a thread barrier between them
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, CLUSTER], OWN)
    ready1 = gl.allocate_shared_memory(gl.int64, [STAGES, CLUSTER], OWN)
    met = gl.allocate_shared_memory(gl.int64, [CLUSTER], OWN)
    for s in gl.static_range(STAGES):
        mbarrier.init(empty.index(s), count=2)
        # one arrival of each program
        mbarrier.init(given.index(s), count=1)
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(ready1.index(s), count=1)
    mbarrier.init(met, count=1)
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    # fmt: off
    gl.warp_specialize(
        [
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready, ready1, met,
                       CLUSTER, HALVES, STAGES, GROUP, SLOTS, COLUMNS, BEHIND, MMA, SMALL, 0)),
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready, ready1, met,
                       CLUSTER, HALVES, STAGES, GROUP, SLOTS, COLUMNS, BEHIND, MMA, SMALL, 1)),
            (producer, (a_desc, as_desc, b_desc, bs_desc, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, empty, given,
                        ready, ready1, CLUSTER, HALVES, STAGES, GROUP, COLUMNS)),
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
    cluster = params["cluster"]
    halves = params["block_n"] // 128
    # which rows are whose: bit by bit of a program's place in its cluster
    split = [[1, 0], [2, 0]] if cluster == 4 else [[1, 0]]
    shared = [[0, 0], [0, 0]] if cluster == 4 else [[0, 0]]
    own = [[1], [2]] if cluster == 4 else [[1]]
    first = [[0], [0]] if cluster == 4 else [[0]]
    rows8 = gl.NVMMASharedLayout(128, 8, cga_layout=split)
    shared8 = gl.NVMMASharedLayout(128, 8, cga_layout=shared)
    flat = gl.NVMMASharedLayout(0, 32, rank=1, cga_layout=own)
    shared_flat = gl.NVMMASharedLayout(0, 32, rank=1, cga_layout=first)
    bf16 = gl.NVMMASharedLayout(128, 16, cga_layout=split)
    mma = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32], cga_layout=split)
    small = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32], cga_layout=split)
    tiles = -(-m // (128 * cluster)) * -(-n // params["block_n"])
    grid = min(tiles, params["programs"] // cluster)
    piece = 64 * cluster
    gemm_kernel[(grid,)](
        TensorDescriptor(a, [m, k], [k, 1], [piece, 128], rows8),
        TensorDescriptor(scales, [scales.shape[0]], [1], [piece], flat),
        TensorDescriptor(b, [n, k], [k, 1], [128, 128], shared8),
        TensorDescriptor(columns, [columns.shape[0]], [1], [128], shared_flat),
        TensorDescriptor(out, [m, n], [n, 1], [piece, 64], bf16),
        inputs["b_s"],
        m,
        n,
        k,
        cluster,
        halves,
        params["stages"],
        params["group_m"],
        params["slots"],
        params["consumer_regs"],
        per_column,
        params["release"] == "behind",
        mma,
        small,
        mbarrier.MBarrierLayout(cga_layout=own),
        mbarrier.MBarrierLayout(cga_layout=first),
        num_warps=4,
        maxnreg=168,
        num_ctas=cluster,
    )
    return (out,)
