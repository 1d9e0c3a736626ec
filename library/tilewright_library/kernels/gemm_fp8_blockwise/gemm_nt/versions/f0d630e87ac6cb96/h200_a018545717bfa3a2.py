# gemm_fp8_blockwise/gemm_nt for h200. Promoted by tilewright: do not edit,
# a file whose hash differs from its receipt is not used.
# dispatch.json has the parameters and shapes of the kernels that are made of this source,
# receipt.json has their campaigns, lineages and gains.
#
"""Blockwise FP8 GEMM (NT) for few rows in Gluon for Hopper: as many bytes of the weights in flight as memory holds.

With M of 1 to 256 a product is a read of B. A program's producer warp asks for as much of B as the ring of stages
holds, with A and the scales of both, and runs on into the next tile; ``teams`` of four warps take turns at the
stages. A stage holds ``unroll`` steps of K, whose wgmma are issued together into partials of their own, so that a
stage costs one wait and one arrival. K is split between teams and not between programs, which would have to meet in
memory that somebody clears first: one launch, and one order of additions.
There is one program on a multiprocessor and it stays. A stage always belongs to the same team: were it another's
in between, a team could take the turn before last for the last one.

``swap`` makes the rows of B the matrix instruction's first operand (64 at least) and the few rows of A its flexible
second one: a narrow A then costs little shared memory. Without it tiles may be as narrow as 16 columns, which is what
keeps 132 multiprocessors busy when N is small. A copy's rows past the end of A cost more than rows that exist: copies
bring a power of two of rows, eight at least, into buffers that hold zeros, and a last tile that A does not fill begins
further up, where rows are the tile's before as well, and are not stored again.

``early`` asks for the first stages before there are partitions. ``block_scales``: B's scales, one a step, come with a
stage or are loaded by the team, which saves a copy and a descriptor.
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
    "block_m": (8, 16, 32, 64, 128),
    "block_n": (16, 32, 64, 128),
    "unroll": (1, 2, 4),
    "stages": (2, 3, 4, 5, 6, 8, 10, 12, 14, 16),
    "swap": (False, True),
    "teams": (1, 2),
    "early": (False, True),
    "block_scales": ("copied", "loaded"),
}
DEFAULTS = {
    "block_m": 64,
    "block_n": 32,
    "unroll": 2,
    "stages": 6,
    "swap": False,
    "teams": 1,
    "early": False,
    "block_scales": "copied",
}
CONSTRAINTS = {
    "((block_m + block_n) * 128 + 4 * max(block_m, 32)) * unroll * stages + 128 * stages"
    " + 4 * block_m * block_n * (teams - 1) + 2 * block_m * block_n + 1536 <= 232000": (
        "the ring, the teams' sums and the tile on its way out have 227 KB of shared memory"
    ),
    "(block_n if swap else block_m) >= 64": "the instruction's first operand has 64 rows",
    "block_m * block_n * (unroll + 1) // 128 + 48 <= 240": (
        "sums and partials live in the registers that the producer leaves to the teams"
    ),
    "stages >= 2 * teams": "a team's next stage is on its way while it multiplies",
    "stages % teams == 0": "a stage is always the same team's, which knows that it has turned once since",
    "N % 8 == 0": "rows of C begin at 16 bytes",
    "K % 128 == 0": "a step of K is one scale block",
}


@gluon.jit
def at(buf, off, u: gl.constexpr, LAYOUT: gl.constexpr):
    """Number ``off`` + u of ``buf``, 0 <= ``off`` < 4: copies begin at 16 bytes, rows of scales need not."""
    low = gl.where(off % 2 == 0, buf.slice(u, 1).load(LAYOUT), buf.slice(u + 1, 1).load(LAYOUT))
    high = gl.where(off % 2 == 0, buf.slice(u + 2, 1).load(LAYOUT), buf.slice(u + 3, 1).load(LAYOUT))
    return gl.where(off < 2, low, high)


@gluon.jit
def first_row(pm, M, BM: gl.constexpr):
    """Where the tile ``pm`` of a column of tiles begins: all of it in A if A has as many rows."""
    return gl.minimum(pm * BM, gl.maximum(M - BM, 0))


@gluon.jit
def ask(
    a_desc,
    as_desc,
    b_desc,
    bs_desc,
    row,
    col,
    g,
    M,
    K,
    a_bufs,
    s_bufs,
    b_bufs,
    t_bufs,
    bar,
    s,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BOX: gl.constexpr,
    UNROLL: gl.constexpr,
    SCALES: gl.constexpr,
    LOADED: gl.constexpr,
):
    """Copies of stage ``s``: the UNROLL steps of K from the ``g``-th group on. Past the end of K zeros arrive."""
    TALL: gl.constexpr = max(BM, 32)
    TILES: gl.constexpr = (BOX + BN) * 128 * UNROLL + (0 if LOADED else 128)
    BYTES: gl.constexpr = TILES + (TALL * 4 * UNROLL if SCALES == "rows" else 128 if SCALES == "one" else 0)
    mbarrier.expect(bar, BYTES)
    for u in gl.static_range(UNROLL):
        k = g * UNROLL + u
        slot = s * UNROLL + u
        tma.async_copy_global_to_shared(b_desc, [col, k * 128], bar, b_bufs.index(slot))
        tma.async_copy_global_to_shared(a_desc, [row, k * 128], bar, a_bufs.index(slot).slice(0, BOX))
        if SCALES == "rows":
            tma.async_copy_global_to_shared(as_desc, [k * M + row], bar, s_bufs.index(slot))
    if SCALES == "one":
        tma.async_copy_global_to_shared(as_desc, [g * UNROLL // 4 * 4], bar, s_bufs.index(s))
    if not LOADED:
        first = (col // 128) * (K // 128)
        tma.async_copy_global_to_shared(bs_desc, [(first + g * UNROLL) // 4 * 4], bar, t_bufs.index(s))


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
    BM: gl.constexpr,
    BN: gl.constexpr,
    BOX: gl.constexpr,
    UNROLL: gl.constexpr,
    STAGES: gl.constexpr,
    SCALES: gl.constexpr,
    LOADED: gl.constexpr,
    EARLY: gl.constexpr,
):
    """Keep the ring full; of the first tile the first stages are under way if EARLY."""
    num_m = gl.cdiv(M, BM)
    tiles = num_m * gl.cdiv(N, BN)
    groups = gl.cdiv(K // 128, UNROLL)
    asked = min(groups, STAGES) if EARLY else 0
    s = asked % STAGES
    phase = 1 - asked // STAGES
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row = first_row(t % num_m, M, BM)
        col = (t // num_m) * BN
        for g in range(gl.where(t == gl.program_id(0), asked, 0), groups):
            mbarrier.wait(empty.index(s), phase)
            # fmt: off
            ask(a_desc, as_desc, b_desc, bs_desc, row, col, g, M, K, a_bufs, s_bufs, b_bufs, t_bufs, ready.index(s), s,
                BM, BN, BOX, UNROLL, SCALES, LOADED)
            # fmt: on
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def consume(
    as_ptr,
    bs_ptr,
    c_ptr,
    M,
    N,
    K,
    a_bufs,
    s_bufs,
    b_bufs,
    t_bufs,
    sums,
    empty,
    ready,
    done,
    read,
    met,
    BM: gl.constexpr,
    BN: gl.constexpr,
    UNROLL: gl.constexpr,
    STAGES: gl.constexpr,
    SWAP: gl.constexpr,
    SCALES: gl.constexpr,
    LOADED: gl.constexpr,
    TEAMS: gl.constexpr,
    TEAM: gl.constexpr,
):
    """Every TEAMS-th stage; the first team adds the others' sums in order and stores the tile."""
    TALL: gl.constexpr = BN if SWAP else BM
    WIDE: gl.constexpr = BM if SWAP else BN
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 32])
    along: gl.constexpr = gl.SliceLayout(0, mma) if SWAP else gl.SliceLayout(1, mma)
    lanes: gl.constexpr = BN // 8
    out_rows: gl.constexpr = gl.BlockedLayout([1, 8], [32 // lanes, lanes], [4, 1], [1, 0])
    zero = gl.zeros((TALL, WIDE), gl.float32, mma)
    num_m = gl.cdiv(M, BM)
    tiles = num_m * gl.cdiv(N, BN)
    steps = K // 128
    groups = gl.cdiv(steps, UNROLL)
    before = 0
    turn = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row = first_row(t % num_m, M, BM)
        col = (t // num_m) * BN
        first = (col // 128) * steps
        # rows past the end have the last one's scales; they are not stored
        there = min(row + gl.arange(0, BM, along), M - 1)
        acc = gl.zeros((TALL, WIDE), gl.float32, mma)
        # counted through all tiles: where a tile has an odd number of stages' work, teams change places
        for g in range((TEAM + before) % TEAMS, groups, TEAMS):
            if SCALES == "loaded":
                loaded = ()
                for u in gl.static_range(UNROLL):
                    loaded += (gl.load(as_ptr + min(g * UNROLL + u, steps - 1) * M + there),)
            if LOADED:
                blocks = ()
                for u in gl.static_range(UNROLL):
                    blocks += (gl.load(bs_ptr + first + min(g * UNROLL + u, steps - 1)),)
            s = (before + g) % STAGES
            mbarrier.wait(ready.index(s), (before + g) // STAGES % 2)
            parts = ()
            for u in gl.static_range(UNROLL):
                a = a_bufs.index(s * UNROLL + u)
                b = b_bufs.index(s * UNROLL + u)
                if SWAP:
                    parts += (warpgroup_mma(b, a.permute((1, 0)), zero, use_acc=False, is_async=True),)
                else:
                    parts += (warpgroup_mma(a, b.permute((1, 0)), zero, use_acc=False, is_async=True),)
            for u in gl.static_range(UNROLL):
                part = warpgroup_mma_wait(num_outstanding=UNROLL - 1 - u, deps=(parts[u],))
                if SCALES == "rows":
                    scale = s_bufs.index(s * UNROLL + u).slice(0, BM).load(along)
                elif SCALES == "one":
                    scale = at(s_bufs.index(s), g * UNROLL % 4, u, along)
                else:
                    scale = loaded[u]
                scale = (
                    scale * blocks[u]
                    if LOADED
                    else scale * at(t_bufs.index(s), (first + g * UNROLL) % 4, u, along)
                )
                if SWAP:
                    acc += part * scale[None, :]
                else:
                    acc += part * scale[:, None]
            # the scales must have been read when the stage is given back. Nothing waits for loads before a barrier of
            # threads, and copies overtake them; the sums are made of the scales, and stay before the branch of a wait
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            mbarrier.wait(met, 1)
            mbarrier.arrive(empty.index(s), count=1)
        before += groups
        if TEAM > 0:
            # the sums of the tile before must have been read
            mbarrier.wait(read, turn ^ 1)
            sums.store(acc)
            mbarrier.arrive(done, count=1)
        else:
            if TEAMS == 2:
                mbarrier.wait(done, turn)
                acc += sums.load(mma)
                mbarrier.arrive(read, count=1)
            out = acc.to(gl.bfloat16)
            if SWAP:
                out = out.permute((1, 0))
            out = gl.convert_layout(out, out_rows)
            m = row + gl.arange(0, BM, gl.SliceLayout(1, out_rows))
            n = col + gl.arange(0, BN, gl.SliceLayout(0, out_rows))
            at_c = c_ptr + m.to(gl.int64)[:, None] * N + n[None, :]
            mine = (m >= (t % num_m) * BM) & (m < M)
            gl.store(at_c, out, mask=mine[:, None] & (n < N)[None, :])
        turn ^= 1


@gluon.jit
def rows_kernel(
    a_desc,
    as_desc,
    b_desc,
    bs_desc,
    as_ptr,
    bs_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BOX: gl.constexpr,
    UNROLL: gl.constexpr,
    STAGES: gl.constexpr,
    SWAP: gl.constexpr,
    SCALES: gl.constexpr,
    LOADED: gl.constexpr,
    EARLY: gl.constexpr,
    TEAMS: gl.constexpr,
    REGS: gl.constexpr,
):
    fp8: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    flat: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * UNROLL, BM, 128], fp8)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * UNROLL, BN, 128], fp8)
    s_bufs = gl.allocate_shared_memory(
        gl.float32,
        [STAGES * UNROLL if SCALES == "rows" else STAGES, max(BM, 32) if SCALES == "rows" else 32],
        flat,
    )
    t_bufs = gl.allocate_shared_memory(gl.float32, [STAGES, 32], flat)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    read = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    met = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(empty.index(s), count=1)
        mbarrier.init(ready.index(s), count=1)
    mbarrier.init(done, count=1)
    mbarrier.init(read, count=1)
    mbarrier.init(met, count=1)
    if BOX < BM:
        spread: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
        for slot in gl.static_range(STAGES * UNROLL):
            a_bufs.index(slot).store(gl.zeros((BM, 128), gl.float8e4nv, spread))
    # what the copies complete must have been made before the first copy is asked for, as what they do not write
    fence_async_shared()
    # fmt: off
    if EARLY:
        num_m = gl.cdiv(M, BM)
        row = first_row(gl.program_id(0) % num_m, M, BM)
        col = (gl.program_id(0) // num_m) * BN
        for g in range(min(gl.cdiv(K // 128, UNROLL), STAGES)):
            ask(a_desc, as_desc, b_desc, bs_desc, row, col, g, M, K, a_bufs, s_bufs, b_bufs, t_bufs, ready.index(g), g,
                BM, BN, BOX, UNROLL, SCALES, LOADED)
    if TEAMS == 2:
        sums = gl.allocate_shared_memory(gl.float32, [BN, BM] if SWAP else [BM, BN], plain)
        gl.warp_specialize(
            [
                (consume, (as_ptr, bs_ptr, c_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, sums, empty, ready, done,
                           read, met, BM, BN, UNROLL, STAGES, SWAP, SCALES, LOADED, 2, 0)),
                (consume, (as_ptr, bs_ptr, c_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, sums, empty, ready, done,
                           read, met, BM, BN, UNROLL, STAGES, SWAP, SCALES, LOADED, 2, 1)),
                (producer, (a_desc, as_desc, b_desc, bs_desc, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, empty, ready,
                            BM, BN, BOX, UNROLL, STAGES, SCALES, LOADED, EARLY)),
            ],
            [4, 1],
            [REGS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (as_ptr, bs_ptr, c_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, s_bufs, empty, ready, done,
                           read, met, BM, BN, UNROLL, STAGES, SWAP, SCALES, LOADED, 1, 0)),
                (producer, (a_desc, as_desc, b_desc, bs_desc, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, empty, ready,
                            BM, BN, BOX, UNROLL, STAGES, SCALES, LOADED, EARLY)),
            ],
            [1],
            [24],
        )
    # fmt: on


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    rows, blocks = inputs["a_s"].reshape(-1), inputs["b_s"].reshape(-1)
    bm, bn = params["block_m"], params["block_n"]
    box = min([edge for edge in (8, 16, 32, 64, 128) if edge >= min(m, bm)])
    out = torch.empty((m, n), dtype=torch.bfloat16)
    fp8 = gl.NVMMASharedLayout(128, 8)
    flat = gl.NVMMASharedLayout(0, 32, rank=1)
    # one program for each multiprocessor of an H200
    rows_kernel[(min(-(-m // bm) * -(-n // bn), 132),)](
        TensorDescriptor(a, [m, k], [k, 1], [box, 128], fp8),
        TensorDescriptor(rows, [rows.shape[0]], [1], [32 if m == 1 else max(bm, 32)], flat),
        TensorDescriptor(b, [n, k], [k, 1], [bn, 128], fp8),
        TensorDescriptor(blocks, [blocks.shape[0]], [1], [32], flat),
        rows,
        blocks,
        out,
        m,
        n,
        k,
        bm,
        bn,
        box,
        params["unroll"],
        params["stages"],
        params["swap"],
        "rows" if m % 4 == 0 else "one" if m == 1 else "loaded",
        params["block_scales"] == "loaded",
        params["early"],
        params["teams"],
        240,
        num_warps=4,
        # of 65536 registers the producer keeps 24 a thread; one team or two share the rest
        maxnreg=224 if params["teams"] == 1 else 168,
    )
    return (out,)
