"""Grouped tile order, NT layout with wrapped rows, even-K guard."""

import torch
import triton
import triton.language as tl

SPACE = {"bm": (32, 64), "bn": (32, 64), "bk": (32, 64), "group": (1, 2, 4, 8)}
DEFAULTS = {"bm": 32, "bn": 32, "bk": 64, "group": 4}
CONSTRAINTS = {}


@triton.jit
def nt_kernel(
    A,
    B,
    C,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    p = tl.program_id(0)
    grid_m = tl.cdiv(M, BM)
    grid_n = tl.cdiv(N, BN)
    width = GROUP * grid_n
    gid = p // width
    gsize = min(grid_m - gid * GROUP, GROUP)
    pm = gid * GROUP + (p % width) % gsize
    pn = (p % width) // gsize
    rm = (pm * BM + tl.arange(0, BM)) % M
    rn = (pn * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a_at = A + rm[:, None] * K + (k * BK + rk)[None, :]
        b_at = B + rn[None, :] * K + (k * BK + rk)[:, None]
        a = tl.load(a_at) if EVEN_K else tl.load(a_at, mask=rk[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_at) if EVEN_K else tl.load(b_at, mask=rk[:, None] < K - k * BK, other=0.0)
        acc += tl.dot(a, b)
    om = pm * BM + tl.arange(0, BM)
    on = pn * BN + tl.arange(0, BN)
    keep = (om[:, None] < M) & (on[None, :] < N)
    tl.store(C + om[:, None] * N + on[None, :], acc.to(tl.float16), mask=keep)


def launch(inputs, params):
    a, b = inputs["a"], inputs["b"]
    m, k = a.shape
    n = b.shape[0]
    c = torch.empty((m, n), dtype=torch.float16)
    tiles = triton.cdiv(m, params["bm"]) * triton.cdiv(n, params["bn"])
    nt_kernel[(tiles,)](
        a, b, c, m, n, k, params["bm"], params["bn"], params["bk"], params["group"], k % params["bk"] == 0
    )
    return (c,)
