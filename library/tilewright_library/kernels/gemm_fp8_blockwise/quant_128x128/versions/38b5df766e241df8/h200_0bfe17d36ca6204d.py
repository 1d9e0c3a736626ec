# gemm_fp8_blockwise/quant_128x128 for h200. Promoted by tilewright: do not edit,
# a file whose hash differs from its receipt is not used.
# dispatch.json has the parameters and shapes of the kernels that are made of this source,
# receipt.json has their campaigns, lineages and gains.
#
"""128 x 128 quantisation of a bf16 matrix in Triton: one program per block."""

import torch
import triton
import triton.language as tl

SPACE = {"num_warps": (4, 8, 16)}
DEFAULTS = {"num_warps": 8}
CONSTRAINTS = {"M % 128 == 0": "a block is 128 rows", "K % 128 == 0": "a block is 128 columns"}


@triton.jit
def blocks_kernel(x_ptr, q_ptr, s_ptr, K):
    steps = K // 128
    pm = tl.program_id(0) // steps
    pk = tl.program_id(0) % steps
    row = pm * 128 + tl.arange(0, 128)
    at = row.to(tl.int64)[:, None] * K + (pk * 128 + tl.arange(0, 128))[None, :]
    x = tl.load(x_ptr + at).to(tl.float32)
    scale = tl.div_rn(448.0, tl.maximum(tl.max(tl.max(tl.abs(x), axis=1), axis=0), 1e-4))
    tl.store(q_ptr + at, (x * scale).to(tl.float8e4nv))
    tl.store(s_ptr + pm * steps + pk, tl.div_rn(1.0, scale))


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
    s = torch.empty((m // 128, k // 128), dtype=torch.float32)
    blocks_kernel[((m // 128) * (k // 128),)](x, q, s, k, num_warps=params["num_warps"])
    return (q, s)
