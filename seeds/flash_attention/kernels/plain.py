"""The kernel one writes first: a grid over heads, blocks of queries and blocks of keys (Pallas, TPU).

build(params)(q [H,S,D], k [KV,T,D], v [KV,T,D]) -> out [H,S,D], all bf16. The running maximum, sum and output of a
block of queries stay in VMEM while the grid walks its keys.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"block_q": (128, 256, 512, 1024, 2048), "block_k": (128, 256, 512, 1024, 2048), "vmem_mib": (32, 64, 100)}
DEFAULTS = {"block_q": 128, "block_k": 128, "vmem_mib": 32}
CONSTRAINTS = {
    "S % block_q == 0 or S < block_q": "block_q must divide S",
    "T % block_k == 0 or T < block_k": "block_k must divide T",
    "8 * D * (block_q + block_k) + 4 * block_q * (D + 256) + 12 * block_q * block_k <= vmem_mib * 1048576": (
        "blocks, sums and scores must fit vmem_mib"
    ),
}

CAUSAL = True
HIDDEN = -1e30


def build(params):
    """The jit-able attention for ``params``."""

    def attention(q, k, v):
        heads, rows, size = q.shape
        shared, keys, _ = k.shape
        group = heads // shared
        bq, bk = min(params["block_q"], rows), min(params["block_k"], keys)
        scale = 1.0 / math.sqrt(size)

        def block_step(q_ref, k_ref, v_ref, o_ref, top, total, acc):
            i, j = pl.program_id(1), pl.program_id(2)
            first_row = i * bq + (keys - rows)

            @pl.when(j == 0)
            def init():
                top[...] = jnp.full_like(top, HIDDEN)
                total[...] = jnp.zeros_like(total)
                acc[...] = jnp.zeros_like(acc)

            @pl.when(jnp.logical_or(not CAUSAL, j * bk <= first_row + bq - 1))
            def visible():
                s = jax.lax.dot_general(
                    q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
                )
                s = s * scale
                if CAUSAL:
                    row = first_row + jax.lax.broadcasted_iota(jnp.int32, (bq, bk), 0)
                    column = j * bk + jax.lax.broadcasted_iota(jnp.int32, (bq, bk), 1)
                    s = jnp.where(column <= row, s, HIDDEN)
                before = top[...]
                now = jnp.maximum(before, jnp.max(s, axis=1, keepdims=True))
                p = jnp.exp(s - now)
                shrink = jnp.exp(before - now)
                total[...] = total[...] * shrink + jnp.sum(p, axis=1, keepdims=True)
                acc[...] = acc[...] * shrink + jnp.dot(
                    p.astype(jnp.bfloat16), v_ref[...], preferred_element_type=jnp.float32
                )
                top[...] = now

            @pl.when(j == keys // bk - 1)
            def store():
                o_ref[...] = (acc[...] / total[...]).astype(o_ref.dtype)

        return pl.pallas_call(
            block_step,
            grid=(heads, rows // bq, keys // bk),
            in_specs=[
                pl.BlockSpec((None, bq, size), lambda h, i, j: (h, i, 0)),
                pl.BlockSpec((None, bk, size), lambda h, i, j: (h // group, j, 0)),
                pl.BlockSpec((None, bk, size), lambda h, i, j: (h // group, j, 0)),
            ],
            out_specs=pl.BlockSpec((None, bq, size), lambda h, i, j: (h, i, 0)),
            out_shape=jax.ShapeDtypeStruct((heads, rows, size), jnp.bfloat16),
            scratch_shapes=[
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, size), jnp.float32),
            ],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=params["vmem_mib"] * 1048576
            ),
            name="attention_plain",
        )(q, k, v)

    return attention
