"""Causal attention whose running output is kept divided by its sum, sub-tile by sub-tile of a block of keys."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"rows": (64, 128, 256), "cols": (128, 256), "sub": (64, 128)}
DEFAULTS = {"rows": 128, "cols": 128, "sub": 64}
CONSTRAINTS = {"cols % sub == 0": "whole sub-tiles"}

NEGATIVE = -1e30


def attend(q_ref, k_ref, v_ref, out_ref, high, total, mean, *, sub, factor, blocks):
    qi = pl.program_id(1)
    ki = pl.program_id(2)
    rows, cols = q_ref.shape[0], k_ref.shape[0]

    @pl.when(ki == 0)
    def start():
        high[...] = jnp.full_like(high, -jnp.inf)
        total[...] = jnp.zeros_like(total)
        mean[...] = jnp.zeros_like(mean)

    @pl.when(ki * cols < (qi + 1) * rows)
    def below():
        for part in range(cols // sub):
            scores = lax.dot_general(
                q_ref[...],
                k_ref[part * sub : (part + 1) * sub, :],
                (((1,), (1,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            scores *= factor
            q_at = lax.broadcasted_iota(jnp.int32, (rows, sub), 0)
            q_at += qi * rows
            k_at = lax.broadcasted_iota(jnp.int32, (rows, sub), 1) + ki * cols + part * sub
            scores = jnp.where(q_at >= k_at, scores, NEGATIVE)
            high_before = high[...]
            total_before = total[...]
            high_now = jnp.maximum(high_before, jnp.max(scores, axis=1, keepdims=True))
            weights = jnp.exp(scores - high_now)
            fade = jnp.exp(high_before - high_now)
            total_now = fade * total_before + jnp.sum(weights, axis=1, keepdims=True)
            added = jnp.dot(
                weights.astype(jnp.bfloat16),
                v_ref[part * sub : (part + 1) * sub, :],
                preferred_element_type=jnp.float32,
            )
            mean[...] = (mean[...] * fade * total_before + added) / total_now
            high[...] = high_now
            total[...] = total_now

    @pl.when(ki == blocks - 1)
    def finish():
        out_ref[...] = mean[...].astype(out_ref.dtype)


def build(params):
    def run(q, k, v):
        heads, length, size = q.shape
        rows, cols = params["rows"], params["cols"]
        grid = (heads, length // rows, length // cols)
        of_rows = pl.BlockSpec((None, rows, size), lambda h, i, j: (h, i, 0))
        of_cols = pl.BlockSpec((None, cols, size), lambda h, i, j: (h, j, 0))
        kernel = functools.partial(attend, sub=params["sub"], factor=size**-0.5, blocks=length // cols)
        return pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=[of_rows, of_cols, of_cols],
            out_specs=of_rows,
            out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
            scratch_shapes=[
                pltpu.VMEM((rows, 1), jnp.float32),
                pltpu.VMEM((rows, 1), jnp.float32),
                pltpu.VMEM((rows, size), jnp.float32),
            ],
        )(q, k, v)

    return run
