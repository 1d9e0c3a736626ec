"""Python loop over row chunks with a value that is carried; one-dimensional grid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

SPACE = {"bm": (64, 128)}
DEFAULTS = {"bm": 64}
CONSTRAINTS = {}


def prefix(x_ref, y_ref, o_ref):
    carry = jnp.zeros((8, x_ref.shape[1]), jnp.float32)
    for i in range(x_ref.shape[0] // 8):
        carry = carry + x_ref[i * 8 : (i + 1) * 8, :] * y_ref[i * 8 : (i + 1) * 8, :]
        o_ref[i * 8 : (i + 1) * 8, :] = carry


def build(params):
    def run(x, y):
        bm = params["bm"]
        spec = pl.BlockSpec((bm, x.shape[1]), lambda i: (i, 0))
        return pl.pallas_call(
            prefix,
            grid=(x.shape[0] // bm,),
            in_specs=[spec, spec],
            out_specs=spec,
            out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        )(x, y)

    return run
