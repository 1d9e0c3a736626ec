"""SwiGLU to bf16 and then 1 x 128 quantisation, as two kernels: what a program without the fused one launches."""

import torch
import triton
import triton.language as tl

from tilewright.seeds.fused_quant.kernels.rows import rows_kernel

SPACE = {"block_m": (8, 16, 32), "num_warps": (4, 8)}
DEFAULTS = {"block_m": 16, "num_warps": 4}
CONSTRAINTS = {"K % 128 == 0": "a group is 128 columns"}


@triton.jit
def gate_kernel(x_ptr, y_ptr, K, WIDE: tl.constexpr):
    row = (tl.program_id(0) // tl.cdiv(K, WIDE)).to(tl.int64)
    col = tl.program_id(0) % tl.cdiv(K, WIDE) * WIDE + tl.arange(0, WIDE)
    gate = tl.load(x_ptr + row * 2 * K + col, mask=col < K, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * K + K + col, mask=col < K, other=0.0).to(tl.float32)
    y = tl.div_rn(gate, 1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + row * K + col, y.to(tl.bfloat16), mask=col < K)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape[0], x.shape[1] // 2
    y = torch.empty((m, k), dtype=torch.bfloat16)
    q = torch.empty((m, k), dtype=torch.float8_e4m3fn)
    s = torch.empty((k // 128, m), dtype=torch.float32)
    gate_kernel[(m * triton.cdiv(k, 2048),)](x, y, k, 2048, num_warps=params["num_warps"])
    grid = (triton.cdiv(m, params["block_m"]) * (k // 128),)
    rows_kernel[grid](y, q, s, m, k, params["block_m"], num_warps=params["num_warps"])
    return (q, s)
