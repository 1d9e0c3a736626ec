"""2D block quantisation with one program per block that keeps its block in registers as bf16: one read, no second pass.

The largest magnitude is found on bit patterns, so that no float32 copy of the block lives across the reduction.
"""

import torch
import triton
import triton.language as tl

SPACE = {"num_warps": (4, 8, 16, 32), "edge": (128, 256)}
DEFAULTS = {"num_warps": 16, "edge": 256}
CONSTRAINTS = {"edge == block": "the recipe's block", "edge * edge <= num_warps * 8192": "the block stays in registers"}


@triton.jit
def block_kernel(x_ptr, q_ptr, s_ptr, M, K, EDGE: tl.constexpr, EVEN: tl.constexpr):
    wide = tl.cdiv(K, EDGE)
    pm = tl.program_id(0) // wide
    pk = tl.program_id(0) % wide
    row = tl.arange(0, EDGE)
    col = tl.arange(0, EDGE)
    corner = pm.to(tl.int64) * EDGE * K + pk * EDGE
    at = row[:, None] * K + col[None, :]
    inside = (pm * EDGE + row < M)[:, None] & (pk * EDGE + col < K)[None, :]
    x = tl.load(x_ptr + corner + at) if EVEN else tl.load(x_ptr + corner + at, mask=inside, other=0.0)
    top = tl.max(tl.max(x.to(tl.int16, bitcast=True) & 0x7FFF, axis=1), axis=0)
    amax = (top.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    scale = tl.div_rn(448.0, tl.maximum(amax, 1e-4))
    tl.store(s_ptr + pm * wide + pk, scale)
    q = tl.clamp(x.to(tl.float32) * scale, -448.0, 448.0).to(tl.float8e4nv)
    if EVEN:
        tl.store(q_ptr + corner + at, q)
    else:
        tl.store(q_ptr + corner + at, q, mask=inside)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    edge = params["edge"]
    tall, wide = triton.cdiv(m, edge), triton.cdiv(k, edge)
    q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
    s = torch.empty((tall, wide), dtype=torch.float32)
    even = m % edge == 0 and k % edge == 0
    block_kernel[(tall * wide,)](x, q, s, m, k, edge, even, num_warps=params["num_warps"])
    return (q, s)
