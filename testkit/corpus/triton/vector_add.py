"""Elementwise sum with a masked tail."""

import torch
import triton
import triton.language as tl

SPACE = {"BLOCK": (64, 128, 256)}
DEFAULTS = {"BLOCK": 64}
CONSTRAINTS = {}


@triton.jit
def add_kernel(x_ptr, y_ptr, output_ptr, n_elements, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, x + y, mask=mask)


def launch(inputs, params):
    x = inputs["x"]
    out = torch.empty(x.shape, dtype=torch.float32)
    n = x.shape[0]
    add_kernel[(triton.cdiv(n, params["BLOCK"]),)](x, inputs["y"], out, n, BLOCK=params["BLOCK"])
    return (out,)
