"""Decode over pages that the grid fetches by their tables (Pallas, TPU).

    build(params)(q [B,H,D], k_pages [P,KV,R,D], v_pages, lengths [B] i32, tables [B,L] i32) -> out [B,H,D]

A step of the grid has ``pages`` pages of one sequence, each an operand of its own; past a sequence's last page the
same page is named again, so that nothing is copied, and nothing is computed.

heads       each: a product for every key head. all: one product of all queries with the keys of all heads, those of
            other heads masked: matrix units have time to spare, vector registers are full.
exponent    exp of scaled scores, or exp2 with the scale and log2(e) in one factor.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"pages": (1, 2, 4, 8, 16, 32), "heads": ("each", "all"), "exponent": ("exp", "exp2"), "vmem_mib": (64,)}
DEFAULTS = {"pages": 1, "heads": "each", "exponent": "exp", "vmem_mib": 64}
CONSTRAINTS = {
    "L % pages == 0": "pages of a step must divide those of a sequence",
    "8 * pages * KV * R * D + 16 * H * KV * pages * R <= vmem_mib * 1048576": "pages and scores must fit vmem_mib",
}

HIDDEN = -1e30
LOG2E = 1.4426950408889634


def softmax_step(q, k, v, shown, state, factor, power):
    """Scores of q [h,D] with k [n,D], shown [h,n]; state (top [h,1], total [h,1], acc [h,D])."""
    top, total, acc = state
    s = jax.lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32) * factor
    s = jnp.where(shown, s, HIDDEN)
    now = jnp.maximum(top, jnp.max(s, axis=1, keepdims=True))
    p = jnp.where(shown, power(s - now), 0.0)
    shrink = power(top - now)
    part = jnp.dot(p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return now, total * shrink + jnp.sum(p, axis=1, keepdims=True), acc * shrink + part


def build(params):
    """The jit-able attention for ``params``."""

    def decode(q, k_pages, v_pages, lengths, tables):
        batch, heads, size = q.shape
        _, shared, rows, _ = k_pages.shape
        group = heads // shared
        count = params["pages"]
        steps = tables.shape[1] // count
        last = jax.lax.div(lengths + (rows - 1), rows) - 1
        power = jnp.exp2 if params["exponent"] == "exp2" else jnp.exp
        factor = (LOG2E if params["exponent"] == "exp2" else 1.0) / math.sqrt(size)

        def step(lengths, tables, last, q_ref, *refs):
            k_refs, v_refs = refs[:count], refs[count : 2 * count]
            o_ref, top, total, acc = refs[2 * count :]
            b, j = pl.program_id(0), pl.program_id(1)
            left = lengths[b] - j * (count * rows)

            @pl.when(j == 0)
            def init():
                top[...] = jnp.full_like(top, HIDDEN)
                total[...] = jnp.zeros_like(total)
                acc[...] = jnp.zeros_like(acc)

            def gathered(page_refs, head):
                pages = [ref[0, head] for ref in page_refs]
                return pages[0] if count == 1 else jnp.concatenate(pages, axis=0)

            @pl.when(left > 0)
            def some():
                if params["heads"] == "all":
                    keys = [jnp.reshape(ref[0], (shared * rows, size)) for ref in k_refs]
                    vals = [jnp.reshape(ref[0], (shared * rows, size)) for ref in v_refs]
                    width = count * shared * rows
                    row = jax.lax.broadcasted_iota(jnp.int32, (heads, width), 0)
                    column = jax.lax.broadcasted_iota(jnp.int32, (heads, width), 1)
                    token = jax.lax.div(column, shared * rows) * rows + jax.lax.rem(column, rows)
                    head = jax.lax.rem(jax.lax.div(column, rows), shared)
                    shown = jnp.logical_and(token < left, head == jax.lax.div(row, group))
                    state = softmax_step(
                        q_ref[0],
                        keys[0] if count == 1 else jnp.concatenate(keys, axis=0),
                        vals[0] if count == 1 else jnp.concatenate(vals, axis=0),
                        shown,
                        (top[...], total[...], acc[...]),
                        factor,
                        power,
                    )
                    top[...], total[...], acc[...] = state
                    return
                token = jax.lax.broadcasted_iota(jnp.int32, (group, count * rows), 1)
                for head in range(shared):
                    mine = slice(head * group, (head + 1) * group)
                    state = softmax_step(
                        q_ref[0, mine, :],
                        gathered(k_refs, head),
                        gathered(v_refs, head),
                        token < left,
                        (top[mine, :], total[mine, :], acc[mine, :]),
                        factor,
                        power,
                    )
                    top[mine, :], total[mine, :], acc[mine, :] = state

            @pl.when(j == steps - 1)
            def store():
                o_ref[0] = (acc[...] / total[...]).astype(o_ref.dtype)

        def page(number):
            def place(b, j, lengths, tables, last):
                return tables[b, jnp.minimum(j * count + number, last[b])], 0, 0, 0

            return pl.BlockSpec((1, shared, rows, size), place)

        whole = pl.BlockSpec((1, heads, size), lambda b, j, *tables: (b, 0, 0))
        return pl.pallas_call(
            step,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=(batch, steps),
                in_specs=[whole, *(page(n) for n in range(count)), *(page(n) for n in range(count))],
                out_specs=whole,
                scratch_shapes=[
                    pltpu.VMEM((heads, 1), jnp.float32),
                    pltpu.VMEM((heads, 1), jnp.float32),
                    pltpu.VMEM((heads, size), jnp.float32),
                ],
            ),
            out_shape=jax.ShapeDtypeStruct((batch, heads, size), jnp.bfloat16),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=params["vmem_mib"] * 1048576
            ),
            name="paged_decode",
        )(lengths, tables, last, q, *([k_pages] * count), *([v_pages] * count))

    return decode
