"""Row softmax, masked tail, one program per row."""

import torch
import triton
import triton.language as tl

SPACE = {"num_warps": (2, 4, 8)}
DEFAULTS = {"num_warps": 4}
CONSTRAINTS = {}


@triton.jit
def softmax_kernel(out_ptr, in_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(in_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    num = tl.exp(x)
    tl.store(out_ptr + row * n_cols + cols, num / tl.sum(num, axis=0), mask=cols < n_cols)


def launch(inputs, params):
    x = inputs["x"]
    y = torch.empty(x.shape, dtype=torch.float32)
    n = x.shape[1]
    softmax_kernel[(x.shape[0],)](y, x, n, triton.next_power_of_2(n), num_warps=params["num_warps"])
    return (y,)
