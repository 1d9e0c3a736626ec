"""Tiled product with a float32 accumulator in scratch."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"block_m": (128, 256), "block_n": (128, 256), "block_k": (128, 256)}
DEFAULTS = {"block_m": 128, "block_n": 128, "block_k": 128}
CONSTRAINTS = {"M % block_m == 0": "whole row blocks", "N % block_n == 0": "whole column blocks"}


def matmul_kernel(x_ref, y_ref, z_ref, acc_ref, *, nsteps):
    @pl.when(pl.program_id(2) == 0)
    def zero():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == nsteps - 1)
    def finish():
        z_ref[...] = acc_ref[...].astype(z_ref.dtype)


def build(params):
    def matmul(x, y):
        m, k = x.shape
        n = y.shape[1]
        tm, tn, tk = params["block_m"], params["block_n"], params["block_k"]
        return pl.pallas_call(
            functools.partial(matmul_kernel, nsteps=k // tk),
            grid=(m // tm, n // tn, k // tk),
            in_specs=[
                pl.BlockSpec((tm, tk), lambda i, j, k: (i, k)),
                pl.BlockSpec((tk, tn), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((tm, tn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
            scratch_shapes=[pltpu.VMEM((tm, tn), jnp.float32)],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        )(x, y)

    return matmul
