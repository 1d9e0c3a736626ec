"""Causal attention of a whole head in one step: both loops over tiles are Python's, every tile is masked."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

SPACE = {"tile_q": (64, 128), "tile_k": (64, 128)}
DEFAULTS = {"tile_q": 64, "tile_k": 64}
CONSTRAINTS = {}

LOWEST = -1e38


def head(q_ref, k_ref, v_ref, o_ref, *, tq, tk):
    length, size = q_ref.shape
    for i in range(length // tq):
        q = q_ref[i * tq : (i + 1) * tq, :]
        best = jnp.full((tq, 1), LOWEST, jnp.float32)
        mass = jnp.zeros((tq, 1), jnp.float32)
        sums = jnp.zeros((tq, size), jnp.float32)
        for j in range(length // tk):
            k = k_ref[j * tk : (j + 1) * tk, :]
            dots = jax.lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
            s = dots * 0.08838834764831845
            ahead = jax.lax.broadcasted_iota(jnp.int32, (tq, tk), 1) - jax.lax.broadcasted_iota(
                jnp.int32, (tq, tk), 0
            )
            s = jnp.where(ahead <= i * tq - j * tk, s, LOWEST)
            higher = jnp.maximum(best, s.max(axis=1, keepdims=True))
            p = jnp.exp(s - higher)
            keep = jnp.exp(best - higher)
            mass = mass * keep + jnp.sum(p, axis=1, keepdims=True)
            v = v_ref[j * tk : (j + 1) * tk, :]
            sums = sums * keep + jnp.dot(p.astype(jnp.bfloat16), v, preferred_element_type=jnp.float32)
            best = higher
        o_ref[i * tq : (i + 1) * tq, :] = (sums / mass).astype(o_ref.dtype)


def build(params):
    def attention(q, k, v):
        heads, length, size = q.shape

        of_head = pl.BlockSpec((None, length, size), lambda h: (h, 0, 0))
        return pl.pallas_call(
            functools.partial(head, tq=params["tile_q"], tk=params["tile_k"]),
            grid=(heads,),
            in_specs=[of_head, of_head, of_head],
            out_specs=of_head,
            out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        )(q, k, v)

    return attention
