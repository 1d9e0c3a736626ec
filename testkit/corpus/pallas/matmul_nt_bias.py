"""Right operand stored [N, K]; bias and a squared relu in the last step."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"bm": (64, 128), "bn": (128, 256), "bk": (128, 256)}
DEFAULTS = {"bm": 64, "bn": 128, "bk": 128}
CONSTRAINTS = {}


def nt(a_ref, b_ref, bias_ref, y_ref, sum_ref):
    k, last = pl.program_id(2), pl.num_programs(2) - 1

    @pl.when(k == 0)
    def begin():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    sum_ref[...] += jax.lax.dot_general(
        a_ref[...], b_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )

    @pl.when(k == last)
    def finish():
        y = jnp.maximum(sum_ref[...] + bias_ref[...], 0.0)
        y_ref[...] = (y * y).astype(y_ref.dtype)


def build(params):
    def apply(a, b, bias):
        bm, bn, bk = params["bm"], params["bn"], params["bk"]
        return pl.pallas_call(
            nt,
            grid=(pl.cdiv(a.shape[0], bm), pl.cdiv(b.shape[0], bn), pl.cdiv(a.shape[1], bk)),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bn, bk), lambda i, j, k: (j, k)),
                pl.BlockSpec((1, bn), lambda i, j, k: (0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((a.shape[0], b.shape[0]), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        )(a, b, bias)

    return apply
