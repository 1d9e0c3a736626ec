"""Weight-only int8: columns dequantised in the kernel, then a bfloat16 dot."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"bm": (128, 256), "bn": (128, 256), "bk": (128, 256)}
DEFAULTS = {"bm": 128, "bn": 128, "bk": 128}
CONSTRAINTS = {}


def w8_kernel(x_ref, w_ref, s_ref, y_ref, acc_ref):
    kb = pl.program_id(2)

    @pl.when(kb == 0)
    def init():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    weights = w_ref[...].astype(jnp.float32)
    scaled = (weights * s_ref[...]).astype(jnp.bfloat16)
    acc_ref[...] += jnp.dot(x_ref[...], scaled, preferred_element_type=jnp.float32)

    @pl.when(kb == pl.num_programs(2) - 1)
    def done():
        y_ref[...] = acc_ref[...].astype(y_ref.dtype)


def build(params):
    def apply(x, w, s):
        bm, bn, bk = (params[n] for n in ("bm", "bn", "bk"))
        return pl.pallas_call(
            w8_kernel,
            grid=(x.shape[0] // bm, w.shape[1] // bn, x.shape[1] // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
                pl.BlockSpec((1, bn), lambda i, j, k: (0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=32 * 1024 * 1024
            ),
        )(x, w, s)

    return apply
