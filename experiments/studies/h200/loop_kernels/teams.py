"""Three warpgroups of 64 rows on tiles of 192 x 128, one product each a step, so that one always multiplies.

Two warpgroups on 128 x 256 tiles have two products each a step, and what lies between a product and the next one's
first instruction is the tensor cores' idle time wherever both are at it (0.87 of the cycles multiply; with three 0.94).
They read 13.3 KB a product from L2 where two read 12; ``cluster`` 2: programs in pairs share B by multicast (10.7 KB),
which wants Triton 3.8 or later, as ``cluster.py`` does.
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

DEFAULTS = {"cluster": 1, "stages": 4, "slots": 2, "group_m": 8, "consumer_regs": 160, "programs": 132}


@gluon.jit
def tile_of(t, num_m, num_n, GROUP: gl.constexpr):
    per = GROUP * num_n
    first = (t // per) * GROUP
    rows = min(num_m - first, GROUP)
    inside = t % per
    return first + inside % rows, inside // rows


@gluon.jit
def producer(
    a_desc, as_desc, b_desc, M, N, K, a_bufs, s_bufs, b_bufs, empty, given, ready,
    CLUSTER: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    PIECE: gl.constexpr = 64 * CLUSTER
    num_m = gl.cdiv(M, 192 * CLUSTER)
    num_n = gl.cdiv(N, 128)
    steps = K // 128
    s = 0
    phase = 1
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        row = pm * (192 * CLUSTER)
        col = pn * 128
        for k in range(steps):
            mbarrier.wait(empty.index(s), phase)
            if CLUSTER > 1:
                mbarrier.arrive(given.index(s), count=1)
            bar = ready.index(s)
            mbarrier.expect(bar, 3 * (64 * 128 + 64 * 4) + 128 * 128)
            for p in gl.static_range(3):
                piece = s * 3 + p
                tma.async_copy_global_to_shared(a_desc, [row + p * PIECE, k * 128], bar, a_bufs.index(piece))
                tma.async_copy_global_to_shared(as_desc, [k * M + row + p * PIECE], bar, s_bufs.index(piece))
            if CLUSTER > 1:
                # the first program waits, and asks for copies; the other passes
                mbarrier.wait(given.index(s), phase ^ 1)
                tma.async_copy_global_to_shared(b_desc, [col, k * 128], bar, b_bufs.index(s), multicast=True)
            else:
                tma.async_copy_global_to_shared(b_desc, [col, k * 128], bar, b_bufs.index(s))
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def consume(
    c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, c_bufs, empty, ready, CLUSTER: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, SLOTS: gl.constexpr, MMA: gl.constexpr, SMALL: gl.constexpr,
    WG: gl.constexpr,
):  # fmt: skip
    PIECE: gl.constexpr = 64 * CLUSTER
    rows: gl.constexpr = gl.SliceLayout(1, MMA)
    num_m = gl.cdiv(M, 192 * CLUSTER)
    num_n = gl.cdiv(N, 128)
    steps = K // 128
    zero = gl.zeros((PIECE, 128), gl.float32, MMA)
    s = 0
    phase = 0
    for t in range(gl.program_id(0), num_m * num_n, gl.num_programs(0)):
        pm, pn = tile_of(t, num_m, num_n, GROUP)
        bp = bs_ptr + pn * steps
        acc = gl.zeros((PIECE, 128), gl.float32, MMA)
        ahead = gl.load(bp)
        for k in range(steps):
            sb = ahead
            mbarrier.wait(ready.index(s), phase)
            b = b_bufs.index(s).permute((1, 0))
            d = warpgroup_mma(a_bufs.index(s * 3 + WG), b, zero, use_acc=False, is_async=True)
            sa = s_bufs.index(s * 3 + WG).load(rows)
            ahead = gl.load(bp + min(k + 1, steps - 1))
            scale = sa * sb
            d = warpgroup_mma_wait(num_outstanding=0, deps=(d,))
            mbarrier.arrive(empty.index(s), count=1)
            total = acc + d * scale[:, None]
            # keeps the sum where it stands: LLVM sinks plain multiply-adds below the next wgmma
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
            wrap = s == STAGES - 1
            s = gl.where(wrap, 0, s + 1)
            phase = gl.where(wrap, phase ^ 1, phase)
        row = pm * (192 * CLUSTER) + WG * PIECE
        col = pn * 128
        left, right = acc.to(gl.bfloat16).reshape([PIECE, 2, 64]).permute(0, 2, 1).split()
        for p in gl.static_range(2):
            slot = c_bufs.index(WG * SLOTS + p % SLOTS)
            tma.store_wait(SLOTS - 1)
            slot.store(gl.convert_layout(left if p == 0 else right, SMALL))
            fence_async_shared()
            tma.async_copy_shared_to_global(c_desc, [row, col + p * 64], slot)
    tma.store_wait(0)


@gluon.jit
def gemm_kernel(
    a_desc, as_desc, b_desc, c_desc, bs_ptr, M, N, K, CLUSTER: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, SLOTS: gl.constexpr, REGS: gl.constexpr, A: gl.constexpr, S: gl.constexpr, B: gl.constexpr,
    C: gl.constexpr, MMA: gl.constexpr, SMALL: gl.constexpr, OWN: gl.constexpr, FIRST: gl.constexpr,
):  # fmt: skip
    a_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 3, 64 * CLUSTER, 128], A)
    b_bufs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 128, 128], B)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [3 * SLOTS, 64 * CLUSTER, 64], C)
    s_bufs = gl.allocate_shared_memory(gl.float32, [STAGES * 3, 64 * CLUSTER], S)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, CLUSTER], OWN)
    given = gl.allocate_shared_memory(gl.int64, [STAGES, 1], FIRST)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, CLUSTER], OWN)
    for s in gl.static_range(STAGES):
        mbarrier.init(empty.index(s), count=3)
        mbarrier.init(given.index(s), count=1)
        mbarrier.init(ready.index(s), count=1)
    # what the copies complete must have been made before the first copy is asked for
    fence_async_shared()
    # fmt: off
    gl.warp_specialize(
        [
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, c_bufs, empty, ready,
                       CLUSTER, STAGES, GROUP, SLOTS, MMA, SMALL, 0)),
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, c_bufs, empty, ready,
                       CLUSTER, STAGES, GROUP, SLOTS, MMA, SMALL, 1)),
            (consume, (c_desc, bs_ptr, M, N, K, a_bufs, s_bufs, b_bufs, c_bufs, empty, ready,
                       CLUSTER, STAGES, GROUP, SLOTS, MMA, SMALL, 2)),
            (producer, (a_desc, as_desc, b_desc, M, N, K, a_bufs, s_bufs, b_bufs, empty, given, ready,
                        CLUSTER, STAGES, GROUP)),
        ],
        [4, 4, 1],
        [REGS, REGS, 24],
    )
    # fmt: on


def launch(inputs, params):
    a, b = inputs["a_q"], inputs["b_q"]
    m, k = a.shape
    n = b.shape[0]
    scales = inputs["a_s"].reshape(-1)
    out = torch.empty((m, n), dtype=torch.bfloat16)
    cluster = params["cluster"]
    piece = 64 * cluster
    # which rows are whose: a program's place in its cluster
    mine = {"cga_layout": [[1, 0]]} if cluster == 2 else {}
    alike = {"cga_layout": [[0, 0]]} if cluster == 2 else {}
    own = {"cga_layout": [[1]]} if cluster == 2 else {}
    first = {"cga_layout": [[0]]} if cluster == 2 else {}
    rows8 = gl.NVMMASharedLayout(128, 8, **mine)
    alike8 = gl.NVMMASharedLayout(128, 8, **alike)
    flat = gl.NVMMASharedLayout(0, 32, rank=1, **own)
    bf16 = gl.NVMMASharedLayout(128, 16, **mine)
    mma = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32], **mine)
    small = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32], **mine)
    grid = min(-(-m // (192 * cluster)) * -(-n // 128), params["programs"] // cluster)
    gemm_kernel[(grid,)](
        TensorDescriptor(a, [m, k], [k, 1], [piece, 128], rows8),
        TensorDescriptor(scales, [scales.shape[0]], [1], [piece], flat),
        TensorDescriptor(b, [n, k], [k, 1], [128, 128], alike8),
        TensorDescriptor(out, [m, n], [n, 1], [piece, 64], bf16),
        inputs["b_s"],
        m,
        n,
        k,
        cluster,
        params["stages"],
        params["group_m"],
        params["slots"],
        params["consumer_regs"],
        rows8,
        flat,
        alike8,
        bf16,
        mma,
        small,
        mbarrier.MBarrierLayout(**own),
        mbarrier.MBarrierLayout(**first),
        num_warps=4,
        maxnreg=128,
        num_ctas=cluster,
    )
    return (out,)
