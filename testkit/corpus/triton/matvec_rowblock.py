"""Matrix times vector; pointers advance, the vector tile is shared by the rows."""

import torch
import triton
import triton.language as tl

SPACE = {"BM": (16, 32), "BK": (64, 128)}
DEFAULTS = {"BM": 16, "BK": 64}
CONSTRAINTS = {}


@triton.jit
def gemv(A, V, Y, M, K, stride_m, BM: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    rm = pid * BM + tl.arange(0, BM)
    rk = tl.arange(0, BK)
    ap = A + rm[:, None] * stride_m + rk[None, :]
    vp = V + rk
    acc = tl.zeros((BM,), dtype=tl.float32)
    for k in range(0, K, BK):  # noqa: B007
        a = tl.load(ap)
        v = tl.load(vp)
        acc += tl.sum(a * v[None, :], axis=1)
        ap += BK
        vp += BK
    tl.store(Y + rm, acc)


def launch(inputs, params):
    a = inputs["a"]
    m, k = a.shape
    y = torch.empty((m,), dtype=torch.float32)
    gemv[(triton.cdiv(m, params["BM"]),)](a, inputs["v"], y, m, k, a.stride(0), params["BM"], params["BK"])
    return (y,)
