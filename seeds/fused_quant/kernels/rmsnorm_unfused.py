"""RMSNorm to bf16 and then 1 x 128 quantisation, as two kernels: what a program without the fused one launches."""

import torch
import triton
import triton.language as tl

from tilewright.seeds.fused_quant.kernels.rows import rows_kernel

SPACE = {"block_m": (8, 16, 32), "num_warps": (4, 8)}
DEFAULTS = {"block_m": 16, "num_warps": 4}
CONSTRAINTS = {"K % 128 == 0": "a group is 128 columns"}


@triton.jit
def norm_kernel(x_ptr, g_ptr, y_ptr, K, WIDE: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * K
    col = tl.arange(0, WIDE)
    x = tl.load(x_ptr + start + col, mask=col < K, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + col, mask=col < K, other=0.0).to(tl.float32)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(x * x, axis=0) / K + 1e-6))
    tl.store(y_ptr + start + col, (x * factor * g).to(tl.bfloat16), mask=col < K)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    y = torch.empty((m, k), dtype=torch.bfloat16)
    q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
    s = torch.empty((k // 128, m), dtype=torch.float32)
    norm_kernel[(m,)](x, inputs["g"], y, k, triton.next_power_of_2(k), num_warps=params["num_warps"])
    grid = (triton.cdiv(m, params["block_m"]) * (k // 128),)
    rows_kernel[grid](y, q, s, m, k, params["block_m"], num_warps=params["num_warps"])
    return (q, s)
