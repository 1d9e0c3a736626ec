"""Parts of warp-specialised products for Hopper (see ``seeds.inlined``).

One producer warp fills a ring of stages by TMA, two consumer warpgroups multiply and store. A stage holds a step of 128
columns of K: A in two pieces of 64 x 128 e4m3, B in one or two (``HALVES``) of 128 x 128. Tuples: ``maps`` the
descriptors of A, its scales, B, its scales; ``bufs`` the shared buffers of the same; ``bars`` the rings of barriers
``empty`` (given back by both consumers), ``ready``, and ``ready1`` of B's second half. Scales that are not copied have
a descriptor and a buffer that are not read.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait


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
    """The next stage of a ring and its phase bit."""
    wrap = s == STAGES - 1
    return gl.where(wrap, 0, s + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def ring(STAGES: gl.constexpr, COUNT: gl.constexpr):
    """A barrier for each stage, complete with COUNT arrivals.

    Stages that are waited for in turn have rings of their own: waits on one allocation get a thread barrier between
    them. ``fence_async_shared`` must follow before the first copy is asked for.
    """
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(bars.index(s), count=COUNT)
    return bars


@gluon.jit
def fenced(total):
    """A sum, made where it stands by a wait that has nothing left to wait for.

    LLVM sinks plain multiply-adds below the next wgmma, which keeps two partials alive and spills.
    """
    return warpgroup_mma_wait(num_outstanding=0, deps=(total,))


@gluon.jit
def fetch(
    maps, row, col, k, M, N, bufs, bars, s, phase, HALVES: gl.constexpr, SCALES: gl.constexpr, COLUMNS: gl.constexpr
):
    """Ask for step ``k`` of a tile into stage ``s``, with A's SCALES [K/128, M], and B's [K/128, N] for COLUMNS."""
    a_desc, as_desc, b_desc, bs_desc = maps
    a_bufs, s_bufs, b_bufs, t_bufs = bufs
    empty, ready, ready1 = bars
    B_BYTES: gl.constexpr = 128 * 128 + (128 * 4 if COLUMNS else 0)
    A_BYTES: gl.constexpr = 2 * 64 * 128 + (2 * 64 * 4 if SCALES else 0)
    mbarrier.wait(empty.index(s), phase)
    bar = ready.index(s)
    mbarrier.expect(bar, A_BYTES + B_BYTES)
    for p in gl.static_range(2):
        tma.async_copy_global_to_shared(a_desc, [row + p * 64, k * 128], bar, a_bufs.index(s * 2 + p))
        if SCALES:
            tma.async_copy_global_to_shared(as_desc, [k * M + row + p * 64], bar, s_bufs.index(s * 2 + p))
    tma.async_copy_global_to_shared(b_desc, [col, k * 128], bar, b_bufs.index(s * HALVES))
    if COLUMNS:
        tma.async_copy_global_to_shared(bs_desc, [k * N + col], bar, t_bufs.index(s * HALVES))
    if HALVES == 2:
        bar1 = ready1.index(s)
        mbarrier.expect(bar1, B_BYTES)
        tma.async_copy_global_to_shared(b_desc, [col + 128, k * 128], bar1, b_bufs.index(s * 2 + 1))
        if COLUMNS:
            tma.async_copy_global_to_shared(bs_desc, [k * N + col + 128], bar1, t_bufs.index(s * 2 + 1))


@gluon.jit
def store_half(c_desc, c_bufs, acc, row, col, FIRST: gl.constexpr, SLOTS: gl.constexpr, WG: gl.constexpr):
    """Store 64 x 128 as bf16, in two 64 x 64 pieces through this warpgroup's slots, from number FIRST on."""
    small: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])
    left, right = acc.to(gl.bfloat16).reshape([64, 2, 64]).permute(0, 2, 1).split()
    for p in gl.static_range(2):
        slot = c_bufs.index(WG * SLOTS + (FIRST + p) % SLOTS)
        tma.store_wait(SLOTS - 1)
        slot.store(gl.convert_layout(left if p == 0 else right, small))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [row, col + p * 64], slot)
