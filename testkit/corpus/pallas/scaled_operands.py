"""Weights dequantised per group, a dot per group, a scratch that lives for one step only."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"bm": (128, 256), "bn": (128, 256)}
DEFAULTS = {"bm": 128, "bn": 128}
CONSTRAINTS = {}


def dequant_dot(x, w, sw, y, acc):
    g = x.shape[1] // sw.shape[0]
    acc[...] = jnp.zeros_like(acc)
    for t in range(sw.shape[0]):
        wide = (w[t * g : (t + 1) * g, :].astype(jnp.float32) * sw[t]).astype(jnp.bfloat16)
        acc[...] += jnp.dot(x[:, t * g : (t + 1) * g], wide, preferred_element_type=jnp.float32)
    y[...] = acc[...].astype(y.dtype)


def build(params):
    def gemm(a, w, sw):
        bm, bn = params["bm"], params["bn"]
        k = a.shape[1]
        return pl.pallas_call(
            dequant_dot,
            grid=(a.shape[0] // bm, w.shape[1] // bn),
            in_specs=[
                pl.BlockSpec((bm, k), lambda i, j: (i, 0)),
                pl.BlockSpec((k, bn), lambda i, j: (0, j)),
                pl.BlockSpec((sw.shape[0], 1, bn), lambda i, j: (0, 0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((a.shape[0], w.shape[1]), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        )(a, w, sw)

    return gemm
