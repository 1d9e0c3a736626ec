"""Scaled copy with an explicit one-dimensional layout."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPACE = {"BLOCK": (256, 512), "num_warps": (4,)}
DEFAULTS = {"BLOCK": 256, "num_warps": 4}
CONSTRAINTS = {}


@gluon.jit
def copy_kernel(src, factor, dst, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    x = gl.load(src + at, mask=at < n)
    f = gl.load(factor)
    gl.store(dst + at, x / f, mask=at < n)


def launch(inputs, params):
    x, f = inputs["x"], inputs["f"]
    out = torch.empty(x.shape, dtype=torch.float32)
    n = x.numel()
    copy_kernel[((n + params["BLOCK"] - 1) // params["BLOCK"],)](
        x, f, out, n, params["BLOCK"], num_warps=params["num_warps"]
    )
    return (out,)
