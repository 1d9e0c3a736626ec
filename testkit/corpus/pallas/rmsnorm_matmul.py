"""Normalise rows, then multiply: the normalisation repeats for every column block."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"bm": (64, 128), "bn": (128, 256)}
DEFAULTS = {"bm": 64, "bn": 128}
CONSTRAINTS = {}


def norm_dot(h_ref, gain_ref, w_ref, out_ref):
    h = h_ref[...].astype(jnp.float32)
    power = jnp.mean(h * h, axis=1, keepdims=True)
    unit = h / jnp.sqrt(power + 1e-6)
    normed = (unit * gain_ref[...]).astype(jnp.bfloat16)
    out_ref[...] = jnp.dot(normed, w_ref[...], preferred_element_type=jnp.float32).astype(out_ref.dtype)


def build(params):
    def layer(x, g, w):
        bm, bn = params["bm"], params["bn"]
        m, k = x.shape
        return pl.pallas_call(
            norm_dot,
            grid=(m // bm, w.shape[1] // bn),
            in_specs=[
                pl.BlockSpec((bm, k), lambda i, j: (i, 0)),
                pl.BlockSpec((1, k), lambda i, j: (0, 0)),
                pl.BlockSpec((k, bn), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, w.shape[1]), jnp.bfloat16),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        )(x, g, w)

    return layer
