"""Rows of several experts, each with its own weights: a tile of rows begins where its expert's rows do."""

import torch
import triton
import triton.language as tl

SPACE = {"BT": (64, 128), "BN": (32, 64), "BK": (32, 64)}
DEFAULTS = {"BT": 64, "BN": 32, "BK": 32}
CONSTRAINTS = {}


@triton.jit
def experts_kernel(
    tokens, weights, counts, result, T, D, H, E, BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    block = tl.program_id(1)
    pn = tl.program_id(0)
    expert = 0
    first = T
    last = T
    seen = 0
    above = 0
    for e in range(E):
        count = tl.load(counts + e)
        blocks = tl.cdiv(count, BT)
        hit = (block >= above) & (block < above + blocks)
        expert = tl.where(hit, e, expert)
        first = tl.where(hit, seen + (block - above) * BT, first)
        last = tl.where(hit, seen + count, last)
        seen += count
        above += blocks
    t = first + tl.arange(0, BT)
    h = pn * BN + tl.arange(0, BN)
    acc = tl.zeros((BT, BN), dtype=tl.float32)
    for d in range(0, D, BK):
        k = d + tl.arange(0, BK)
        x = tl.load(
            tokens + t[:, None] * D + k[None, :], mask=(t[:, None] < last) & (k[None, :] < D), other=0.0
        )
        w = tl.load(
            weights + expert * D * H + k[:, None] * H + h[None, :],
            mask=(k[:, None] < D) & (h[None, :] < H),
            other=0.0,
        )
        acc += tl.dot(x, w)
    mask = (t[:, None] < last) & (h[None, :] < H)
    tl.store(result + t[:, None] * H + h[None, :], acc.to(tl.float16), mask=mask)


def launch(inputs, params):
    tokens, weights, counts = inputs["tokens"], inputs["weights"], inputs["counts"]
    result = torch.empty((tokens.shape[0], weights.shape[2]), dtype=torch.float16)
    grid = (
        triton.cdiv(weights.shape[2], params["BN"]),
        triton.cdiv(tokens.shape[0], params["BT"]) + weights.shape[0],
    )
    experts_kernel[grid](
        tokens,
        weights,
        counts,
        result,
        tokens.shape[0],
        tokens.shape[1],
        weights.shape[2],
        weights.shape[0],
        params["BT"],
        params["BN"],
        params["BK"],
    )
    return (result,)
