"""A reduction over column blocks; the scale of the block is read per iteration."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPACE = {"num_warps": (4, 8)}
DEFAULTS = {"num_warps": 4}
CONSTRAINTS = {}


@gluon.jit
def reduce_rows(x_ptr, s_ptr, bias_ptr, y_ptr, M, K):
    tile: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    row = gl.program_id(0) * 16 + gl.arange(0, 16, gl.SliceLayout(1, tile))
    col = gl.arange(0, 128, gl.SliceLayout(0, tile))
    base = x_ptr + row[:, None] * K + col[None, :]
    acc = gl.zeros((16,), gl.float32, gl.SliceLayout(1, tile))
    for t in range(0, K // 128):
        s = gl.load(s_ptr + t)
        bias = gl.load(bias_ptr)
        acc += gl.sum(gl.load(base + t * 128), axis=1) * s + bias
    gl.store(y_ptr + row, acc)


def launch(inputs, params):
    x = inputs["x"]
    m, k = x.shape
    y = torch.empty((m,), dtype=torch.float32)
    reduce_rows[(m // 16,)](x, inputs["s"], inputs["bias"], y, m, k, num_warps=params["num_warps"])
    return (y,)
