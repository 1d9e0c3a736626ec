"""Product with weights of eight bits, stored by rows of N, whose columns have scales and zero points."""

import torch
import triton
import triton.language as tl

SPACE = {"BM": (32, 64), "BN": (32, 64), "BK": (32, 64)}
DEFAULTS = {"BM": 64, "BN": 32, "BK": 32}
CONSTRAINTS = {}


@triton.jit
def packed_kernel(
    a, codes, scales, zeros, result, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    pid = tl.program_id(0)
    across = tl.cdiv(n, BN)
    pm = pid // across
    pn = pid % across
    i = pm * BM + tl.arange(0, BM)
    j = pn * BN + tl.arange(0, BN)
    scale = tl.load(scales + j, mask=j < n, other=0.0)
    zero = tl.load(zeros + j, mask=j < n, other=0.0)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(k, BK)):
        kk = step * BK + tl.arange(0, BK)
        left = tl.load(a + i[:, None] * k + kk[None, :], mask=(i[:, None] < m) & (kk[None, :] < k), other=0.0)
        code = tl.load(
            codes + kk[:, None] * n + j[None, :], mask=(kk[:, None] < k) & (j[None, :] < n), other=0
        )
        weight = ((code.to(tl.float32) - zero[None, :]) * scale[None, :]).to(tl.float16)
        acc += tl.dot(left, weight)
    tl.store(
        result + i[:, None] * n + j[None, :], acc.to(tl.float16), mask=(i[:, None] < m) & (j[None, :] < n)
    )


def launch(inputs, params):
    a, codes = inputs["a"], inputs["codes"]
    m, k = a.shape
    n = codes.shape[1]
    result = torch.empty((m, n), dtype=torch.float16)
    grid = (triton.cdiv(m, params["BM"]) * triton.cdiv(n, params["BN"]),)
    packed_kernel[grid](
        a, codes, inputs["scales"], inputs["zeros"], result, m, n, k, params["BM"], params["BN"], params["BK"]
    )
    return (result,)
