"""Blockwise FP8 GEMM (NT) in Gluon for Hopper that quantises its accumulators to MXFP8 in the epilogue.

One producer warp fills a ring of stages by TMA, two consumer warpgroups of 64 rows each multiply and promote (128 x
block_n tiles, persistent). Payloads leave as 64 x 128 tiles by TMA,
exponents by plain stores. Where M is no multiple of 4, A's scales lie where TMA may not begin (16 bytes), and consumers
load them. For few rows ``split`` programs share a tile's steps and leave float32 parts, which a second kernel adds and
quantises. With ``grouped`` B is [groups x N, K], and every 128 rows of A, a tile's, say whose rows
they meet. With ``fused`` 0 the product leaves as bf16 and a second kernel quantises it: the baseline.
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

from tilewright.seeds.gemm_mxfp8_out.kernels.mx import add_kernel, quantised
from tilewright.seeds.shared.kernels.hopper import advance, fenced, fetch, ring, store_half, tile_of

SPACE = {
    "block_n": (128, 256),
    "stages": (3, 4, 5, 6),
    "slots": (1, 2),
    "group_m": (1, 2, 4, 8, 16, 32),
    "programs": (132, 1048576),
    "consumer_regs": (216, 232, 240),
    "turned": (False, True),
    "split": (1, 2, 4, 8),
    "grouped": (0, 1),
    "fused": (0, 1),
}
DEFAULTS = {
    "block_n": 256,
    "stages": 4,
    "slots": 1,
    "group_m": 16,
    "programs": 132,
    "consumer_regs": 240,
    "turned": True,
    "split": 1,
    "grouped": 0,
    "fused": 1,
}
CONSTRAINTS = {
    "grouped == by_groups": "the recipe's operands",
    "(16896 + block_n // 128 * 16384) * stages + 16384 * slots + 8192 * turned * fused <= 232000": (
        "the ring, the store slots and the turning share 227 KB of shared memory"
    ),
    "split == 1 or split * M * N <= 134217728": "float32 parts of a product take 512 MB at most",
    "split <= K // 128": "a part has a step at least",
    "N % 32 == 0": "an exponent serves 32 columns",
    "K % 128 == 0": "a step of K is one scale block",
}


@gluon.jit
def steps_of(part, K, SPLIT: gl.constexpr):
    """The steps of K, first and past the last, that one of SPLIT parts sums."""
    return K // 128 * part // SPLIT, K // 128 * (part + 1) // SPLIT


@gluon.jit
def producer(
    maps,
    g_ptr,
    M,
    N,
    K,
    bufs,
    bars,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SPLIT: gl.constexpr,
    GROUPED: gl.constexpr,
    SENT: gl.constexpr,
):
    """Keep the ring full."""
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    s = 0
    phase = 1
    for item in range(gl.program_id(0), num_m * num_n * SPLIT, gl.num_programs(0)):
        pm, pn = tile_of(item % (num_m * num_n), num_m, num_n, GROUP)
        first, stop = steps_of(item // (num_m * num_n), K, SPLIT)
        col = pn * (128 * HALVES)
        if GROUPED:
            col += gl.load(g_ptr + pm) * N
        for k in range(first, stop):
            fetch(maps, pm * 128, col, k, M, N, bufs, bars, s, phase, HALVES, SENT, False)
            s, phase = advance(s, phase, STAGES)


@gluon.jit
def store_mx(
    d_desc,
    d_bufs,
    ds_ptr,
    acc,
    row,
    col,
    M,
    N,
    FIRST: gl.constexpr,
    SLOTS: gl.constexpr,
    WG: gl.constexpr,
    TURNED: gl.constexpr,
    EVEN: gl.constexpr,
):
    """Quantise 64 x 128 f32 by 1 x 32 and store it through this warpgroup's slot number FIRST."""
    blocks = acc.reshape([64, 4, 32])
    bits = (gl.max(gl.abs(blocks), axis=2) * 0.002232142857142857).to(gl.int32, bitcast=True)
    part = bits & 0x7FFFFF
    e = gl.where(bits >> 23 == 0, (part > 0x400000).to(gl.int32), (bits >> 23) + (part != 0).to(gl.int32))
    factor = ((254 - gl.minimum(e, 254)) << 23).to(gl.float32, bitcast=True)
    # the cast to e4m3 saturates by itself
    q = (blocks * gl.expand_dims(factor, 2)).reshape([64, 128]).to(gl.float8e4nv)
    if TURNED:
        # 16 columns a thread, in the rows its warp has anyway: wide stores to shared memory
        own: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1], [0, 2], [0, 4], [0, 8], [4, 0], [8, 0]],
            [[0, 16], [0, 32], [0, 64], [1, 0], [2, 0]],
            [[16, 0], [32, 0]],
            [],
            [64, 128],
        )
        q = gl.convert_layout(q, own)
    slot = d_bufs.index(WG * SLOTS + FIRST % SLOTS)
    tma.store_wait(SLOTS - 1)
    slot.store(q)
    fence_async_shared()
    tma.async_copy_shared_to_global(d_desc, [row, col], slot)
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [4, 1], [1, 0])
    codes = gl.convert_layout(e.to(gl.uint8), layout)
    r = row + gl.arange(0, 64, gl.SliceLayout(1, layout))
    c = col // 128 * 4 + gl.arange(0, 4, gl.SliceLayout(0, layout))
    wide = N // 128 * 4 if EVEN else N // 32
    gl.store(ds_ptr + r.to(gl.int64)[:, None] * wide + c[None, :], codes, mask=(r < M)[:, None] & (c < wide)[None, :])


@gluon.jit
def store_part(part_ptr, acc, part, row, col, M, N, MMA: gl.constexpr):
    """Store 64 x 128 f32 of one part [M, N]."""
    r = row + gl.arange(0, 64, gl.SliceLayout(1, MMA))
    c = col + gl.arange(0, 128, gl.SliceLayout(0, MMA))
    at = part_ptr + part.to(gl.int64) * M * N + (r.to(gl.int64)[:, None] * N + c[None, :])
    gl.store(at, acc, mask=(r < M)[:, None] & (c < N)[None, :])


@gluon.jit
def consume(
    d_desc,
    ds_ptr,
    part_ptr,
    as_ptr,
    bs_ptr,
    g_ptr,
    M,
    N,
    K,
    bufs,
    d_bufs,
    bars,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    SPLIT: gl.constexpr,
    GROUPED: gl.constexpr,
    SENT: gl.constexpr,
    FUSED: gl.constexpr,
    TURNED: gl.constexpr,
    EVEN: gl.constexpr,
    WG: gl.constexpr,
):
    """The warpgroup's 64 rows of every tile of this program."""
    a_bufs, s_bufs, b_bufs, _ = bufs
    empty, ready, ready1 = bars
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    rows: gl.constexpr = gl.SliceLayout(1, mma)
    num_m = gl.cdiv(M, 128)
    num_n = gl.cdiv(N, 128 * HALVES)
    steps = K // 128
    last = gl.cdiv(N, 128) - 1
    zero = gl.zeros((64, 128), gl.float32, mma)
    s = 0
    phase = 0
    for item in range(gl.program_id(0), num_m * num_n * SPLIT, gl.num_programs(0)):
        pm, pn = tile_of(item % (num_m * num_n), num_m, num_n, GROUP)
        part = item // (num_m * num_n)
        first, stop = steps_of(part, K, SPLIT)
        bs_at = bs_ptr
        if GROUPED:
            bs_at += gl.load(g_ptr + pm).to(gl.int64) * gl.cdiv(N, 128) * steps
        bp0 = bs_at + (pn * HALVES) * steps
        bp1 = bs_at + min(pn * HALVES + HALVES - 1, last) * steps
        own = pm * 128 + WG * 64 + gl.arange(0, 64, rows)
        acc0 = gl.zeros((64, 128), gl.float32, mma)
        acc1 = gl.zeros((64, 128), gl.float32, mma)
        for k in range(first, stop):
            sb0 = gl.load(bp0 + k)
            sb1 = gl.load(bp1 + k)
            mbarrier.wait(ready.index(s), phase)
            a = a_bufs.index(s * 2 + WG)
            d = warpgroup_mma(a, b_bufs.index(s * HALVES).permute((1, 0)), zero, use_acc=False, is_async=True)
            if SENT:
                sa = s_bufs.index(s * 2 + WG).load(rows)
            else:
                sa = gl.load(as_ptr + k.to(gl.int64) * M + own, mask=own < M, other=0.0)
            d = warpgroup_mma_wait(num_outstanding=0, deps=(d,))
            if HALVES == 2:
                acc0 = fenced(acc0 + d * (sa * sb0)[:, None])
                # the branch of this wait also keeps ptxas from starting the next wgmma before the promotion above
                mbarrier.wait(ready1.index(s), phase)
                e = warpgroup_mma(a, b_bufs.index(s * 2 + 1).permute((1, 0)), zero, use_acc=False, is_async=True)
                e = warpgroup_mma_wait(num_outstanding=0, deps=(e,))
                mbarrier.arrive(empty.index(s), count=1)
                acc1 = fenced(acc1 + e * (sa * sb1)[:, None])
            else:
                mbarrier.arrive(empty.index(s), count=1)
                acc0 = fenced(acc0 + d * (sa * sb0)[:, None])
            s, phase = advance(s, phase, STAGES)
        row = pm * 128 + WG * 64
        col = pn * (128 * HALVES)
        if SPLIT > 1:
            store_part(part_ptr, acc0, part, row, col, M, N, mma)
            if HALVES == 2:
                store_part(part_ptr, acc1, part, row, col + 128, M, N, mma)
        elif FUSED:
            store_mx(d_desc, d_bufs, ds_ptr, acc0, row, col, M, N, 0, SLOTS, WG, TURNED, EVEN)
            if HALVES == 2:
                store_mx(d_desc, d_bufs, ds_ptr, acc1, row, col + 128, M, N, 1, SLOTS, WG, TURNED, EVEN)
        else:
            store_half(d_desc, d_bufs, acc0, row, col, 0, SLOTS, WG)
            if HALVES == 2:
                store_half(d_desc, d_bufs, acc1, row, col + 128, 2, SLOTS, WG)
    tma.store_wait(0)


@gluon.jit
def gemm_kernel(
    a_desc,
    as_desc,
    b_desc,
    d_desc,
    ds_ptr,
    part_ptr,
    as_ptr,
    bs_ptr,
    g_ptr,
    M,
    N,
    K,
    HALVES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    SLOTS: gl.constexpr,
    SPLIT: gl.constexpr,
    REGS: gl.constexpr,
    GROUPED: gl.constexpr,
    SENT: gl.constexpr,
    FUSED: gl.constexpr,
    TURNED: gl.constexpr,
    EVEN: gl.constexpr,
):
    fp8: gl.constexpr = gl.NVMMASharedLayout(128, 8)
    bf16: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    flat: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 64, 128], fp8)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * HALVES, 128, 128], fp8)
    if FUSED:
        d_bufs = gl.allocate_shared_memory(gl.float8e4nv, [2 * SLOTS, 64, 128], fp8)
    else:
        d_bufs = gl.allocate_shared_memory(gl.bfloat16, [2 * SLOTS, 64, 64], bf16)
    s_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 2, 64], flat)
    bufs = (a_bufs, s_bufs, b_bufs, b_bufs)
    bars = (ring(STAGES, 2), ring(STAGES, 1), ring(STAGES, 1))
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                consume,
                (
                    d_desc,
                    ds_ptr,
                    part_ptr,
                    as_ptr,
                    bs_ptr,
                    g_ptr,
                    M,
                    N,
                    K,
                    bufs,
                    d_bufs,
                    bars,
                    HALVES,
                    STAGES,
                    GROUP,
                    SLOTS,
                    SPLIT,
                    GROUPED,
                    SENT,
                    FUSED,
                    TURNED,
                    EVEN,
                    0,
                ),
            ),
            (
                consume,
                (
                    d_desc,
                    ds_ptr,
                    part_ptr,
                    as_ptr,
                    bs_ptr,
                    g_ptr,
                    M,
                    N,
                    K,
                    bufs,
                    d_bufs,
                    bars,
                    HALVES,
                    STAGES,
                    GROUP,
                    SLOTS,
                    SPLIT,
                    GROUPED,
                    SENT,
                    FUSED,
                    TURNED,
                    EVEN,
                    1,
                ),
            ),
            (
                producer,
                (
                    (a_desc, as_desc, b_desc, b_desc),
                    g_ptr,
                    M,
                    N,
                    K,
                    bufs,
                    bars,
                    HALVES,
                    STAGES,
                    GROUP,
                    SPLIT,
                    GROUPED,
                    SENT,
                ),
            ),
        ],
        [4, 1],
        [REGS, 24],
    )


def product(inputs, params, ds):
    """Payloads, with exponents into ``ds``; or the product in bf16 where ``fused`` is 0."""
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[-2]
    rows_b = b.reshape(-1, k)
    scales = inputs["a_s"].reshape(-1)
    fused, split = params["fused"], params["split"]
    out = torch.empty((m, n), dtype=torch.float8_e4m3fn if fused else torch.bfloat16)
    fp8 = gl.NVMMASharedLayout(128, 8)
    flat = gl.NVMMASharedLayout(0, 32, rank=1)
    bf16 = gl.NVMMASharedLayout(128, 16)
    parts = torch.empty((split, m, n), dtype=torch.float32) if split > 1 else ds
    tiles = triton.cdiv(m, 128) * triton.cdiv(n, params["block_n"]) * split
    gemm_kernel[(min(tiles, params["programs"]),)](
        TensorDescriptor(a, [m, k], [k, 1], [64, 128], fp8),
        TensorDescriptor(scales, [scales.shape[0]], [1], [64], flat),
        TensorDescriptor(rows_b, [rows_b.shape[0], k], [k, 1], [128, 128], fp8),
        TensorDescriptor(out, [m, n], [n, 1], [64, 128 if fused else 64], fp8 if fused else bf16),
        ds,
        parts,
        scales,
        inputs["b_s"],
        inputs["group"] if params["grouped"] else ds,
        m,
        n,
        k,
        params["block_n"] // 128,
        params["stages"],
        params["group_m"],
        params["slots"],
        split,
        params["consumer_regs"],
        params["grouped"],
        m % 4 == 0,
        fused,
        params["turned"],
        n % 128 == 0,
        num_warps=4,
        maxnreg=168,
    )
    if split > 1 and fused:
        quantised(parts, out, ds, m, split)
    elif split > 1:
        add_kernel[(triton.cdiv(m * n, 2048),)](parts, out, m, n, split, 2048, num_warps=4)
    return out


def launch(inputs, params):
    m, n = inputs["a_q"].shape[0], inputs["b_q"].shape[-2]
    ds = torch.empty((m, n // 32), dtype=torch.uint8)
    made = product(inputs, params, ds)
    if params["fused"]:
        return (made, ds)
    d = torch.empty((m, n), dtype=torch.float8_e4m3fn)
    quantised(made, d, ds, m, 1)
    return (d, ds)
