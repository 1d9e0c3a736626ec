# gemm_fp8_blockwise/gemm_nt_rows for h200. Promoted by tilewright: do not edit,
# a file whose hash differs from its receipt is not used.
# dispatch.json has the parameters and shapes of the kernels that are made of this source,
# receipt.json has their campaigns, lineages and gains.
#
"""Blockwise FP8 GEMM (NT) in Gluon for Hopper, with the promotion skewed behind the next wgmma.

As in ``gluon_ws`` one producer warp feeds two consumer warpgroups of 64 rows, but a warpgroup keeps two partials
of a 64 x 128 tile: the wgmma of the next step of K is queued before the previous partial is promoted, so the
tensor cores wait for one promotion in two steps. The scales of B are per 128 x 128 block, or per column.
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
    "stages": (3, 4, 5, 6),
    "slots": (1, 2),
    "group_m": (1, 4, 8, 16, 32),
    "programs": (132, 1048576),
    "consumer_regs": (216, 232, 240),
}
DEFAULTS = {"stages": 5, "slots": 2, "group_m": 8, "programs": 132, "consumer_regs": 240}
CONSTRAINTS = {
    "(33280 + 512 * columns) * stages + 16384 * slots <= 232000": (
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
def advance(s, phase, STAGES: gl.constexpr):
    """The next stage of the ring and its phase bit."""
    wrap = s == STAGES - 1
    return gl.where(wrap, 0, s + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def promote(acc, partial, scale, t_buf, PENDING: gl.constexpr, COLUMNS: gl.constexpr, MMA: gl.constexpr):
    """acc + partial * scales, kept where it stands; PENDING wgmma groups stay in flight.

    LLVM sinks plain multiply-adds below the next wgmma, which keeps more partials alive than there are
    registers. A wait that has nothing left to wait for, with the sum as its dependence, is a fence for them.
    """
    if COLUMNS:
        total = acc + partial * t_buf.load(gl.SliceLayout(0, MMA))[None, :] * scale[:, None]
    else:
        total = acc + partial * scale[:, None]
    return warpgroup_mma_wait(num_outstanding=PENDING, deps=(total,))


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
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """Keep the ring full: per stage two pieces of A with their scales, B, and B's column scales."""
    BYTES: gl.constexpr = 2 * 64 * 128 + 2 * 64 * 4 + 128 * 128 + (512 if COLUMNS else 0)
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128)
    s = 0
    phase = 1
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        row = pm * 128
        col = pn * 128
        for k in range(K // 128):
            mbarrier.wait(empty.index(s), phase)
            bar = ready.index(s)
            mbarrier.expect(bar, BYTES)
            for p in gl.static_range(2):
                tma.async_copy_global_to_shared(a_desc, [row + p * 64, k * 128], bar, a_bufs.index(s * 2 + p))
                tma.async_copy_global_to_shared(as_desc, [k * M + row + p * 64], bar, s_bufs.index(s * 2 + p))
            tma.async_copy_global_to_shared(b_desc, [col, k * 128], bar, b_bufs.index(s))
            if COLUMNS:
                tma.async_copy_global_to_shared(bs_desc, [k * N + col], bar, t_bufs.index(s))
            s, phase = advance(s, phase, STAGES)


@gluon.jit
def store(c_desc, c_bufs, acc, row, col, SLOTS: gl.constexpr, WG: gl.constexpr):
    """Store 64 x 128 f32 as bf16, in two 64 x 64 pieces through this warpgroup's slots."""
    small: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])
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
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    COLUMNS: gl.constexpr,
    WG: gl.constexpr,
):
    """The warpgroup's 64 rows of every tile of this program; two steps of K are in flight."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    rows: gl.constexpr = gl.SliceLayout(1, mma)
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128)
    steps = K // 128
    zero = gl.zeros((64, 128), gl.float32, mma)
    s = 0
    phase = 0
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        bp = bs_ptr + pn * steps
        acc = gl.zeros((64, 128), gl.float32, mma)
        for k in range(0, steps - 1, 2):
            sb0 = 1.0
            sb1 = 1.0
            if not COLUMNS:
                sb0 = gl.load(bp + k)
                sb1 = gl.load(bp + k + 1, eviction_policy="evict_first")
            before = s
            mbarrier.wait(ready.index(s), phase)
            b = b_bufs.index(s).permute((1, 0))
            p = warpgroup_mma(a_bufs.index(s * 2 + WG), b, zero, use_acc=False, is_async=True)
            sp = s_bufs.index(s * 2 + WG).load(rows) * sb0
            s, phase = advance(s, phase, STAGES)
            mbarrier.wait(ready.index(s), phase)
            b = b_bufs.index(s).permute((1, 0))
            q = warpgroup_mma(a_bufs.index(s * 2 + WG), b, zero, use_acc=False, is_async=True)
            sq = s_bufs.index(s * 2 + WG).load(rows) * sb1
            p = warpgroup_mma_wait(num_outstanding=1, deps=(p,))
            # a stage is free once its products are done and, with column scales, promoted
            if not COLUMNS:
                mbarrier.arrive(empty.index(before), count=1)
            acc = promote(acc, p, sp, t_bufs.index(before), 1, COLUMNS, mma)
            if COLUMNS:
                mbarrier.arrive(empty.index(before), count=1)
            q = warpgroup_mma_wait(num_outstanding=0, deps=(q,))
            if not COLUMNS:
                mbarrier.arrive(empty.index(s), count=1)
            acc = promote(acc, q, sq, t_bufs.index(s), 0, COLUMNS, mma)
            if COLUMNS:
                mbarrier.arrive(empty.index(s), count=1)
            s, phase = advance(s, phase, STAGES)
        if steps % 2 == 1:
            sb0 = 1.0
            if not COLUMNS:
                sb0 = gl.load(bp + steps - 1)
            mbarrier.wait(ready.index(s), phase)
            b = b_bufs.index(s).permute((1, 0))
            p = warpgroup_mma(a_bufs.index(s * 2 + WG), b, zero, use_acc=False, is_async=True)
            sp = s_bufs.index(s * 2 + WG).load(rows) * sb0
            p = warpgroup_mma_wait(num_outstanding=0, deps=(p,))
            acc = promote(acc, p, sp, t_bufs.index(s), 0, COLUMNS, mma)
            mbarrier.arrive(empty.index(s), count=1)
            s, phase = advance(s, phase, STAGES)
        store(c_desc, c_bufs, acc, pm * 128 + WG * 64, pn * 128, SLOTS, WG)
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
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 128, 128], fp8)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, 64, 64], bf16)
    s_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 64], flat)
    t_bufs = s_bufs
    if COLUMNS:
        t_bufs = gl.allocate_shared_memory(gl.float32, [STAGES, 128], flat)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(empty.index(s), count=2)
        mbarrier.init(ready.index(s), count=1)
    # fmt: off
    gl.warp_specialize(
        [
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready,
                       STAGES, GROUP, SLOTS, COLUMNS, 0)),
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, c_bufs, empty, ready,
                       STAGES, GROUP, SLOTS, COLUMNS, 1)),
            (producer, (a_desc, as_desc, b_desc, bs_desc, M, N, K, a_bufs, s_bufs, b_bufs, t_bufs, empty, ready,
                        STAGES, GROUP, COLUMNS)),
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
    rows, columns = inputs["a_s"].reshape(-1), inputs["b_s"].reshape(-1)
    per_column = inputs["b_s"].shape[0] == k // 128 and inputs["b_s"].shape[1] == n
    fp8 = gl.NVMMASharedLayout(128, 8)
    flat = gl.NVMMASharedLayout(0, 32, rank=1)
    gemm_kernel[(min(-(-m // 128) * (n // 128), params["programs"]),)](
        TensorDescriptor(a, [m, k], [k, 1], [64, 128], fp8),
        TensorDescriptor(rows, [rows.shape[0]], [1], [64], flat),
        TensorDescriptor(b, [n, k], [k, 1], [128, 128], fp8),
        TensorDescriptor(columns, [columns.shape[0]], [1], [128], flat),
        TensorDescriptor(out, [m, n], [n, 1], [64, 64], gl.NVMMASharedLayout(128, 16)),
        inputs["b_s"],
        m,
        n,
        k,
        params["stages"],
        params["group_m"],
        params["slots"],
        params["consumer_regs"],
        per_column,
        num_warps=4,
        maxnreg=168,
    )
    return (out,)
