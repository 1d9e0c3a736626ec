"""Attention over the last ``WINDOW`` keys; the running state is loaded, walked over a block of keys, and stored."""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"bq": (64, 128), "bk": (128, 256), "tile": (64, 128)}
DEFAULTS = {"bq": 64, "bk": 128, "tile": 64}
CONSTRAINTS = {"bk % tile == 0": "whole tiles"}

WINDOW = 96
OUT_OF_SIGHT = -3.0e38


def build(params):
    def attention(q, k, v):
        length, width = q.shape
        bq, bk, tile = params["bq"], params["bk"], params["tile"]
        log_scale = 1.0 / math.sqrt(width)

        def kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
            start_q = pl.program_id(0) * bq
            step = pl.program_id(1)

            @pl.when(step == 0)
            def clear():
                m_ref[...] = jnp.full((bq, 128), -1e37, jnp.float32)
                l_ref[...] = jnp.zeros((bq, 128), jnp.float32)
                acc_ref[...] = jnp.zeros((bq, width), jnp.float32)

            m = m_ref[...]
            norm = l_ref[...]
            acc = acc_ref[...]
            for t in range(bk // tile):
                logits = log_scale * jnp.dot(
                    q_ref[...], k_ref[pl.ds(t * tile, tile), :].T, preferred_element_type=jnp.float32
                )
                rows = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 0) + start_q
                cols = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) + (step * bk + t * tile)
                logits = logits + jnp.where(cols <= rows, 0.0, OUT_OF_SIGHT)
                logits = jnp.where(rows - cols < WINDOW, logits, OUT_OF_SIGHT)
                top = jnp.maximum(m, jnp.max(logits, axis=1)[:, None])
                old = jnp.exp(m - top)
                e = jnp.exp(logits - top[:, :1])
                norm = norm * old + jnp.sum(e, axis=1)[:, None]
                seen = v_ref[pl.ds(t * tile, tile), :]
                acc = acc * old[:, :1] + jnp.dot(
                    e, seen.astype(jnp.float32), preferred_element_type=jnp.float32
                )
                m = top
            m_ref[...] = m
            l_ref[...] = norm
            acc_ref[...] = acc

            @pl.when(step == length // bk - 1)
            def write():
                o_ref[...] = (acc_ref[...] / l_ref[:, :1]).astype(o_ref.dtype)

        return pl.pallas_call(
            kernel,
            grid=(length // bq, length // bk),
            in_specs=[
                pl.BlockSpec((bq, width), lambda i, j: (i, 0)),
                pl.BlockSpec((bk, width), lambda i, j: (j, 0)),
                pl.BlockSpec((bk, width), lambda i, j: (j, 0)),
            ],
            out_specs=pl.BlockSpec((bq, width), lambda i, j: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((length, width), q.dtype),
            scratch_shapes=[
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, 128), jnp.float32),
                pltpu.VMEM((bq, width), jnp.float32),
            ],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        )(q, k, v)

    return attention
