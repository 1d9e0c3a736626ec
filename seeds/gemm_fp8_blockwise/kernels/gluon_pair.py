"""Blockwise FP8 GEMM (NT) in Gluon for Hopper: two programs of a cluster share every tile of B, sent to both at once.

The schedule is ``gluon_ws``'s: a producer fills a ring of stages, two consumer warpgroups own 64 rows each of a
program's 128 x block_n tile, multiply a 128-column half of a 128-wide step of K into a partial and promote it with
its scales. Two programs on neighbouring multiprocessors hold 256 rows together and read B once from L2: a step of K
costs a multiprocessor 32 KB of L2 reads instead of 48. At the board's power limit, where large products run, what is
not moved is speed.

A cluster's barriers in Triton 3.7 take arrivals of their own program only, but copies may complete the first one's: a
program whose consumers have given a stage back copies sixteen bytes, which count at a barrier of the first program.
When both have, its second producer sends B's tile to both.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    cluster,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SPACE = {
    "stages": (3, 4),
    "slots": (1, 2, 4),
    "group_m": (1, 2, 4, 6, 8, 12, 16),
    "clusters": (66, 1048576),
    "consumer_regs": (216, 232, 240),
    "scales": ("at_once", "ahead"),
    "stagger": (False, True),
}
DEFAULTS = {
    "stages": 4,
    "slots": 2,
    "group_m": 8,
    "clusters": 66,
    "consumer_regs": 240,
    "scales": "at_once",
    "stagger": False,
}
CONSTRAINTS = {
    "(49664 + 1024 * columns) * stages + 16384 * slots <= 231600": (
        "the ring and the store slots share 227 KB of shared memory"
    ),
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
def promote(acc, partial, sa, sb, t_buf, COLUMNS: gl.constexpr, MMA: gl.constexpr):
    """acc + partial * scales, kept where it stands: ``sa`` per row, ``sb`` one number or ``t_buf`` per column.

    LLVM sinks plain multiply-adds below the next wgmma, which keeps two partials alive and spills. A wait that
    has nothing left to wait for, with the sum as its dependence, is a fence for them.
    """
    if COLUMNS:
        total = acc + partial * t_buf.load(gl.SliceLayout(0, MMA))[None, :] * sa[:, None]
    else:
        total = acc + partial * (sa * sb)[:, None]
    return warpgroup_mma_wait(num_outstanding=0, deps=(total,))


@gluon.jit
def bring_a(
    a_desc, as_desc, word_desc, M, N, K, a_bufs, s_bufs, word, empty, ready, ready1, both,
    STAGES: gl.constexpr, GROUP: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """A and its scales, each program its own rows; and word to the first program that a stage may be filled."""
    cluster.arrive()
    cluster.wait()
    num_m = gl.cdiv(M, 256)
    num_n = gl.cdiv(N, 256)
    steps = K // 128
    B_BYTES: gl.constexpr = 128 * 128 + (128 * 4 if COLUMNS else 0)
    s = 0
    phase = 1
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, _ = tile_of(t, num_m, num_n, GROUP)
        row = pm * 256
        for k in range(steps):
            mbarrier.wait(empty.index(s), phase)
            bar = ready.index(s)
            # A's two pieces, their scales, and the first half of B; the second half
            mbarrier.expect(bar, 2 * 64 * 128 + 2 * 64 * 4 + B_BYTES)
            mbarrier.expect(ready1.index(s), B_BYTES)
            mbarrier.expect(both.index(s), 16)
            tma.async_copy_global_to_shared(word_desc, [0], both.index(s), word)
            for p in gl.static_range(2):
                piece = s * 2 + p
                tma.async_copy_global_to_shared(a_desc, [row + p * 128, k * 128], bar, a_bufs.index(piece))
                tma.async_copy_global_to_shared(as_desc, [k * M + row + p * 128], bar, s_bufs.index(piece))
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)
    cluster.arrive()
    cluster.wait()


@gluon.jit
def bring_b(
    b_desc, bs_desc, M, N, K, b_bufs, t_bufs, ready, ready1, both,
    STAGES: gl.constexpr, GROUP: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """Both halves of B's tiles to both programs, by the first one: the other neither waits nor copies here."""
    cluster.arrive()
    cluster.wait()
    num_m = gl.cdiv(M, 256)
    num_n = gl.cdiv(N, 256)
    steps = K // 128
    s = 0
    phase = 0
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        _, pn = tile_of(t, num_m, num_n, GROUP)
        col = pn * 256
        for k in range(steps):
            mbarrier.wait(both.index(s), phase)
            for p in gl.static_range(2):
                bar = ready.index(s) if p == 0 else ready1.index(s)
                piece = s * 2 + p
                at = col + p * 128
                tma.async_copy_global_to_shared(
                    b_desc, [at, k * 128], bar, b_bufs.index(piece), multicast=True
                )
                if COLUMNS:
                    tma.async_copy_global_to_shared(
                        bs_desc, [k * N + at], bar, t_bufs.index(piece), multicast=True
                    )
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)
    cluster.arrive()
    cluster.wait()


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
    """Store 128 x 128 f32 of both programs as bf16, in two 64-column pieces through this warpgroup's slots."""
    left, right = acc.to(gl.bfloat16).reshape([128, 2, 64]).permute(0, 2, 1).split()
    for p in gl.static_range(2):
        slot = c_bufs.index(WG * SLOTS + (FIRST + p) % SLOTS)
        tma.store_wait(SLOTS - 1)
        slot.store(gl.convert_layout(left if p == 0 else right, SMALL))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [row, col + p * 64], slot)


@gluon.jit
def consume(
    c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready, ready1, begun,
    STAGES: gl.constexpr, GROUP: gl.constexpr, SLOTS: gl.constexpr, COLUMNS: gl.constexpr, AHEAD: gl.constexpr,
    STAGGER: gl.constexpr, MMA: gl.constexpr, SMALL: gl.constexpr, WG: gl.constexpr,
):  # fmt: skip
    cluster.arrive()
    cluster.wait()
    rows: gl.constexpr = gl.SliceLayout(1, MMA)
    num_m = gl.cdiv(M, 256)
    num_n = gl.cdiv(N, 256)
    steps = K // 128
    last = gl.cdiv(N, 128) - 1
    zero = gl.zeros((128, 128), gl.float32, MMA)
    s = 0
    phase = 0
    turn = 0
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        bp0 = bs_ptr + pn * 2 * steps
        bp1 = bs_ptr + min(pn * 2 + 1, last) * steps
        acc0 = gl.zeros((128, 128), gl.float32, MMA)
        acc1 = gl.zeros((128, 128), gl.float32, MMA)
        next0 = 1.0
        next1 = 1.0
        if AHEAD and not COLUMNS:
            next0 = gl.load(bp0)
            next1 = gl.load(bp1)
        if STAGGER and WG == 1:
            mbarrier.wait(begun, turn)
            turn ^= 1
        for k in range(steps):
            sb0 = next0
            sb1 = next1
            if not AHEAD and not COLUMNS:
                sb0 = gl.load(bp0 + k)
                sb1 = gl.load(bp1 + k)
            mbarrier.wait(ready.index(s), phase)
            a = a_bufs.index(s * 2 + WG)
            d = warpgroup_mma(a, b_bufs.index(s * 2).permute((1, 0)), zero, use_acc=False, is_async=True)
            sa = s_bufs.index(s * 2 + WG).load(rows)
            if AHEAD and not COLUMNS:
                following = min(k + 1, steps - 1)
                next0 = gl.load(bp0 + following)
                next1 = gl.load(bp1 + following)
            d = warpgroup_mma_wait(num_outstanding=0, deps=(d,))
            if STAGGER and WG == 0 and k == 0:
                mbarrier.arrive(begun, count=1)
            acc0 = promote(acc0, d, sa, sb0, t_bufs.index(s * 2), COLUMNS, MMA)
            # the branch of this wait also keeps ptxas from starting the next wgmma before the promotion above
            mbarrier.wait(ready1.index(s), phase)
            e = warpgroup_mma(a, b_bufs.index(s * 2 + 1).permute((1, 0)), zero, use_acc=False, is_async=True)
            e = warpgroup_mma_wait(num_outstanding=0, deps=(e,))
            if not COLUMNS:
                mbarrier.arrive(empty.index(s), count=1)
            acc1 = promote(acc1, e, sa, sb1, t_bufs.index(s * 2 + 1), COLUMNS, MMA)
            if COLUMNS:
                # the promotion still read the stage's column scales
                mbarrier.arrive(empty.index(s), count=1)
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)
        row = pm * 256 + WG * 128
        col = pn * 256
        store_half(c_desc, c_bufs, acc0, row, col, 0, SLOTS, WG, SMALL)
        store_half(c_desc, c_bufs, acc1, row, col + 128, 2, SLOTS, WG, SMALL)
    tma.store_wait(0)
    cluster.arrive()
    cluster.wait()


@gluon.jit
def gemm_kernel(
    a_desc, as_desc, word_desc, b_desc, bs_desc, c_desc, bs_ptr, M, N, K,
    STAGES: gl.constexpr, GROUP: gl.constexpr, SLOTS: gl.constexpr, REGS: gl.constexpr,
    COLUMNS: gl.constexpr, AHEAD: gl.constexpr, STAGGER: gl.constexpr, MMA: gl.constexpr, SMALL: gl.constexpr,
    SPLIT: gl.constexpr, SHARED: gl.constexpr, SPLIT16: gl.constexpr, FLAT: gl.constexpr,
    FLAT_SHARED: gl.constexpr, EACH: gl.constexpr, FIRST: gl.constexpr,
):  # fmt: skip
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 128, 128], SPLIT)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 128, 128], SHARED)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, 128, 64], SPLIT16)
    s_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 128], FLAT)
    t_bufs = s_bufs
    if COLUMNS:
        t_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 128], FLAT_SHARED)
    word = gl.allocate_shared_memory(gl.float32, [8], FLAT)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 2], EACH)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 2], EACH)
    # two rings of barriers, not one: waits on the same allocation get a thread barrier between them
    ready1 = gl.allocate_shared_memory(gl.int64, [STAGES, 2], EACH)
    both = gl.allocate_shared_memory(gl.int64, [STAGES, 1], FIRST)
    begun = gl.allocate_shared_memory(gl.int64, [2], EACH)
    mbarrier.init(begun, count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(empty.index(s), count=2)
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(ready1.index(s), count=1)
        mbarrier.init(both.index(s), count=1)
    # what the copies complete must have been made, in both programs, before the first copy is asked for
    fence_async_shared()
    mbarrier.fence_init_release_cluster()
    # the partitions are all the warps there are: each arrives at the cluster's barrier, at the begin and at the end
    # fmt: off
    gl.warp_specialize(
        [
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready,
                       ready1, begun, STAGES, GROUP, SLOTS, COLUMNS, AHEAD, STAGGER, MMA, SMALL, 0)),
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready,
                       ready1, begun, STAGES, GROUP, SLOTS, COLUMNS, AHEAD, STAGGER, MMA, SMALL, 1)),
            (bring_a, (a_desc, as_desc, word_desc, M, N, K, a_bufs, s_bufs, word, empty, ready, ready1, both,
                       STAGES, GROUP, COLUMNS)),
            (bring_b, (b_desc, bs_desc, M, N, K, b_bufs, t_bufs, ready, ready1, both, STAGES, GROUP, COLUMNS)),
        ],
        [4, 2, 2],
        [REGS, 24, 24],
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
    split = gl.NVMMASharedLayout(128, 8, cga_layout=[[1, 0]])
    shared = gl.NVMMASharedLayout(128, 8, cga_layout=[[0, 0]])
    flat = gl.NVMMASharedLayout(0, 32, rank=1, cga_layout=[[1]])
    flat_shared = gl.NVMMASharedLayout(0, 32, rank=1, cga_layout=[[0]])
    bf16 = gl.NVMMASharedLayout(128, 16, cga_layout=[[1, 0]])
    tiles = -(-m // 256) * -(-n // 256)
    gemm_kernel[(min(tiles, params["clusters"]),)](
        TensorDescriptor(a, [m, k], [k, 1], [128, 128], split),
        TensorDescriptor(scales, [scales.shape[0]], [1], [128], flat),
        TensorDescriptor(scales, [scales.shape[0]], [1], [8], flat),
        TensorDescriptor(b, [n, k], [k, 1], [128, 128], shared),
        TensorDescriptor(columns, [columns.shape[0]], [1], [128], flat_shared),
        TensorDescriptor(out, [m, n], [n, 1], [128, 64], bf16),
        inputs["b_s"],
        m,
        n,
        k,
        params["stages"],
        params["group_m"],
        params["slots"],
        params["consumer_regs"],
        per_column,
        params["scales"] == "ahead",
        params["stagger"],
        gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32], [[1, 0]]),
        gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32], [[1, 0]]),
        split,
        shared,
        bf16,
        flat,
        flat_shared,
        mbarrier.MBarrierLayout([[1]]),
        mbarrier.MBarrierLayout([[0]]),
        num_warps=4,
        num_ctas=2,
        maxnreg=168,
    )
    return (out,)
