"""Float32 product; the grid walks columns first, specs are named, indices come from functions."""

import jax
from jax import numpy as np
from jax.experimental import pallas
from jax.experimental.pallas import tpu

SPACE = {"bm": (128, 256), "bn": (128, 256), "bk": (128, 256)}
DEFAULTS = {"bm": 128, "bn": 128, "bk": 128}
CONSTRAINTS = {}


def body(left, right, out, total):
    step = pallas.program_id(2)

    @pallas.when(step == 0)
    def start():
        total[...] = np.zeros(total.shape, np.float32)

    total[...] = total[...] + left[...] @ right[...]

    @pallas.when(step == pallas.num_programs(2) - 1)
    def end():
        out[...] = total[...]


def build(config):
    def product(lhs, rhs):
        bm, bn, bk = config["bm"], config["bn"], config["bk"]
        grid = (rhs.shape[1] // bn, lhs.shape[0] // bm, lhs.shape[1] // bk)
        lhs_spec = pallas.BlockSpec((bm, bk), lambda j, i, k: (i, k))
        rhs_spec = pallas.BlockSpec((bk, bn), lambda j, i, k: (k, j))
        out_spec = pallas.BlockSpec((bm, bn), lambda j, i, k: (i, j))
        shape = jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), np.float32)
        call = pallas.pallas_call(
            body,
            grid=grid,
            in_specs=[lhs_spec, rhs_spec],
            out_specs=out_spec,
            out_shape=shape,
            scratch_shapes=[tpu.VMEM((bm, bn), np.float32)],
        )
        return call(lhs, rhs)

    return product
