"""Attention whose schedule is spelled out by parameters (Pallas, TPU).

    build(params)(q [H,S,D], k [KV,T,D], v [KV,T,D]) -> out [H,S,D], all bf16

A step of the grid has block_q queries of ``heads`` heads and works in sub-tiles of sub_q queries by sub_k keys. The
defaults are the plain schedule: blocks of keys are the fastest axis of the grid, every score is masked.

walk        how keys are walked. grid: block_k at a time by the grid, running values in VMEM. loop: all keys of a head
            in VMEM, a loop as far as the queries see, running values carried. whole: all queries and keys of a head,
            every sub-tile written out, those that no query sees left out.
mask        all: every sub-tile is masked. edge: those that all queries see are not.
exponent    exp of scaled scores, or exp2 with the scale and log2(e) in one factor.
scale       scores: each is multiplied. queries: rounded to bf16 (gates say where that is right).
row_sum     vector: weights are added by the vector units. matrix: by a column of ones beside the values.
stats       running maxima and sums as one column, or spread over 128 lanes.
order       outermost within a step: rows finishes one sub-tile of queries, keys brings each sub-tile of keys to all.
unroll      sub-tiles of keys in one turn of the loop.
heads       heads of one step; those that share keys read them once.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {
    "walk": ("grid", "loop", "whole"),
    "block_q": (128, 256, 512, 1024, 2048, 4096),
    "block_k": (128, 256, 512, 1024, 2048),
    "sub_q": (128, 256, 512, 1024, 2048),
    "sub_k": (128, 256, 512, 1024, 2048),
    "mask": ("all", "edge"),
    "exponent": ("exp", "exp2"),
    "scale": ("scores", "queries"),
    "row_sum": ("vector", "matrix"),
    "stats": ("column", "lanes"),
    "order": ("rows", "keys"),
    "unroll": (1, 2, 4),
    "heads": (1, 2, 4),
    "vmem_mib": (100,),
}
DEFAULTS = {
    "walk": "grid",
    "block_q": 256,
    "block_k": 256,
    "sub_q": 256,
    "sub_k": 256,
    "mask": "all",
    "exponent": "exp",
    "scale": "scores",
    "row_sum": "vector",
    "stats": "column",
    "order": "rows",
    "unroll": 1,
    "heads": 1,
    "vmem_mib": 100,
}
CONSTRAINTS = {
    "S % min(block_q, S) == 0": "block_q must divide S",
    "walk != 'grid' or T % min(block_k, T) == 0": "block_k must divide T",
    "sub_q <= block_q and min(block_q, S) % min(sub_q, S) == 0": "sub_q must divide block_q",
    "walk == 'grid' or T % min(sub_k, T) == 0": "sub_k must divide T",
    "walk != 'grid' or (sub_k <= block_k and min(block_k, T) % min(sub_k, T) == 0)": "sub_k must divide block_k",
    "walk != 'loop' or (min(block_q, S) % min(sub_k, T) == 0 and (T - S) % min(sub_k, T) == 0)": (
        "the loop ends at whole sub-tiles of keys before the queries' own"
    ),
    "walk != 'whole' or block_q >= S": "a step of the whole walk has all queries",
    "walk != 'grid' or mask == 'all' or min(block_q, S) == min(block_k, T) and (T - S) % min(block_k, T) == 0": (
        "only square blocks have their edge at a known place"
    ),
    "walk == 'loop' or unroll == 1": "only the loop is unrolled",
    "walk != 'grid' or order == 'rows'": "the grid brings the keys",
    "H % heads == 0 and ((H // KV) % heads == 0 or heads % (H // KV) == 0)": "heads of a step share whole key heads",
    "heads * min(block_q, S) * (T if walk == 'whole' else unroll * sub_k if walk == 'loop' else block_k) <= 8388608": (
        "straight-line code of more than eight million scores takes the compiler long"
    ),
    "heads * min(block_q, S) * (16 * D + 1024) + 8 * D * heads * (block_k if walk == 'grid' else T)"
    " + 16 * min(block_q, S) * min(sub_k, T) <= vmem_mib * 1048576": (
        "blocks, running values and scores must fit vmem_mib"
    ),
}

CAUSAL = True
HIDDEN = -1e30
LANES = 128
LOG2E = 1.4426950408889634


def spread(x, width):
    """Columns or lanes of statistics [rows, 1 or 128] over ``width`` columns."""
    if x.shape[1] == 1 or width == x.shape[1]:
        return x
    if width < x.shape[1]:
        return x[:, :width]
    return jnp.concatenate([x] * (width // x.shape[1]), axis=1)


def attend(q, k, v, state, edge, plan):
    """One sub-tile: q [sq,D], k and v [sk,D or more]; state (top, total, acc); ``edge``: the last key row 0 sees."""
    top, total, acc = state
    s = jax.lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    if edge is not None:
        row = jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        column = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where(column - row <= edge, s, HIDDEN)
    if plan["factor"] != 1.0:
        s = s * plan["factor"]
    now = jnp.maximum(top, jnp.max(s, axis=1, keepdims=True))
    away = s - spread(now, s.shape[1])
    power = jnp.exp2 if plan["exponent"] == "exp2" else jnp.exp
    p = power(away)
    shrink = power(top - now)
    if plan["row_sum"] == "vector":
        total = total * shrink + jnp.sum(p, axis=1, keepdims=True)
    part = jnp.dot(p.astype(jnp.bfloat16), v, preferred_element_type=jnp.float32)
    return now, total, acc * spread(shrink, acc.shape[1]) + part


def fresh(rows, plan):
    """State before any key."""
    stats = LANES if plan["stats"] == "lanes" else 1
    return (
        jnp.full((rows, stats), HIDDEN, jnp.float32),
        jnp.zeros((rows, stats), jnp.float32),
        jnp.zeros((rows, plan["width"]), jnp.float32),
    )


def finished(state, size, plan):
    """The output of a sub-tile of queries."""
    _, total, acc = state
    if plan["row_sum"] == "matrix":
        return acc[:, :size] / spread(acc[:, plan["width"] - LANES :], size)
    return acc / spread(total, size)


def values(v_ref, head, start, count, plan):
    """``count`` rows of values, a column of ones beside them where it sums the weights."""
    v = v_ref[head, pl.ds(start, count), :]
    if plan["row_sum"] == "matrix":
        return jnp.concatenate([v, jnp.ones((count, plan["width"] - v.shape[1]), v.dtype)], axis=1)
    return v


def queries(q_ref, head, start, count, plan):
    """``count`` rows of queries, scaled if they carry the scale."""
    q = q_ref[head, start : start + count, :]
    if plan["queries"] != 1.0:
        return (q.astype(jnp.float32) * plan["queries"]).astype(q.dtype)
    return q


def edge_of(last, start, sub_q, sub_k, plan):
    """``edge`` of a sub-tile whose queries see up to key ``last`` + row (numbers): None where nothing is hidden."""
    if not CAUSAL:
        return None
    edge = last - start
    return None if plan["mask"] == "edge" and edge >= sub_k - 1 else edge


def build(params):
    """The jit-able attention for ``params``."""

    def attention(q, k, v):
        heads, rows, size = q.shape
        shared, keys, _ = k.shape
        bq = min(params["block_q"], rows)
        sq, sk = min(params["sub_q"], bq), min(params["sub_k"], keys)
        walk = params["walk"]
        bk = min(params["block_k"], keys) if walk == "grid" else keys
        per = params["heads"]
        group = heads // shared
        pairs = max(1, per // group)
        ahead = keys - rows
        factor = (LOG2E if params["exponent"] == "exp2" else 1.0) / math.sqrt(size)
        width = size
        if params["row_sum"] == "matrix":
            width = (size + LANES - 1) // LANES * LANES + LANES
        plan = {
            **params,
            "factor": factor if params["scale"] == "scores" else 1.0,
            "queries": factor if params["scale"] == "queries" else 1.0,
            "width": width,
        }
        tiles = [(h, h * pairs // per, r) for h in range(per) for r in range(0, bq, sq)]

        def written_out(q_ref, k_ref, v_ref, states, first, stop):
            """Sub-tiles of keys up to ``stop`` in straight-line code; row 0 of the block sees up to key ``first``."""
            states = list(states)
            starts = range(0, stop, sk)
            turns = [(t, start) for t in range(len(tiles)) for start in starts]
            if plan["order"] == "keys":
                turns = [(t, start) for start in starts for t in range(len(tiles))]
            for t, start in turns:
                h, pair, r = tiles[t]
                if CAUSAL and start > first + r + sq - 1:
                    continue
                states[t] = attend(
                    queries(q_ref, h, r, sq, plan),
                    k_ref[pair, start : start + sk, :],
                    values(v_ref, pair, start, sk, plan),
                    states[t],
                    edge_of(first + r, start, sq, sk, plan),
                    plan,
                )
            return states

        def whole_step(q_ref, k_ref, v_ref, o_ref):
            states = written_out(q_ref, k_ref, v_ref, [fresh(sq, plan) for _ in tiles], ahead, keys)
            for (h, _, r), state in zip(tiles, states, strict=True):
                o_ref[h, r : r + sq, :] = finished(state, size, plan).astype(o_ref.dtype)

        def loop_step(q_ref, k_ref, v_ref, o_ref):
            first = pl.program_id(1) * bq + ahead
            before = first // sk if CAUSAL else keys // sk
            unroll = plan["unroll"]

            def one(number, states, last):
                start = pl.multiple_of(number * sk, sk)
                return tuple(
                    attend(
                        queries(q_ref, h, r, sq, plan),
                        k_ref[pair, pl.ds(start, sk), :],
                        values(v_ref, pair, start, sk, plan),
                        state,
                        None if last is None else last + r - start,
                        plan,
                    )
                    for (h, pair, r), state in zip(tiles, states, strict=True)
                )

            shown = first if CAUSAL and plan["mask"] == "all" else None

            def several(turn, states):
                for number in range(unroll):
                    states = one(turn * unroll + number, states, shown)
                return states

            states = tuple(fresh(sq, plan) for _ in tiles)
            states = jax.lax.fori_loop(0, before // unroll, several, states)
            if unroll > 1:
                left = before // unroll * unroll
                states = jax.lax.fori_loop(left, before, lambda n, x: one(n, x, shown), states)
            if CAUSAL:
                states = list(states)
                for start in range(0, bq, sk):
                    for t, (h, pair, r) in enumerate(tiles):
                        if start > r + sq - 1:
                            continue
                        place = pl.multiple_of(first + start, sk)
                        states[t] = attend(
                            queries(q_ref, h, r, sq, plan),
                            k_ref[pair, pl.ds(place, sk), :],
                            values(v_ref, pair, place, sk, plan),
                            states[t],
                            edge_of(r, start, sq, sk, plan),
                            plan,
                        )
            for (h, _, r), state in zip(tiles, states, strict=True):
                o_ref[h, r : r + sq, :] = finished(state, size, plan).astype(o_ref.dtype)

        def grid_step(q_ref, k_ref, v_ref, o_ref, top, total, acc):
            i, j = pl.program_id(1), pl.program_id(2)
            first = i * bq + ahead - j * bk

            @pl.when(j == 0)
            def init():
                for t in range(len(tiles)):
                    top[t], total[t], acc[t] = fresh(sq, plan)

            def step(edges):
                states = [(top[t], total[t], acc[t]) for t in range(len(tiles))]
                for t, (h, pair, r) in enumerate(tiles):
                    for start in range(0, bk, sk):
                        if edges == "known" and start > r + sq - 1:
                            continue
                        edge = None
                        if edges == "known":
                            edge = edge_of(r, start, sq, sk, plan)
                        elif edges == "unknown":
                            edge = first + r - start
                        states[t] = attend(
                            queries(q_ref, h, r, sq, plan),
                            k_ref[pair, start : start + sk, :],
                            values(v_ref, pair, start, sk, plan),
                            states[t],
                            edge,
                            plan,
                        )
                for t, state in enumerate(states):
                    top[t], total[t], acc[t] = state

            if not CAUSAL:
                step("none")
            elif plan["mask"] == "all":
                pl.when(first > -bq)(lambda: step("unknown"))
            else:
                pl.when(first >= bk)(lambda: step("none"))
                pl.when(first == 0)(lambda: step("known"))

            @pl.when(j == keys // bk - 1)
            def store():
                for t, (h, _, r) in enumerate(tiles):
                    state = top[t], total[t], acc[t]
                    o_ref[h, r : r + sq, :] = finished(state, size, plan).astype(o_ref.dtype)

        step = {"grid": grid_step, "loop": loop_step, "whole": whole_step}[walk]
        stats = LANES if plan["stats"] == "lanes" else 1
        count = len(tiles)
        running = [
            pltpu.VMEM((count, sq, stats), jnp.float32),
            pltpu.VMEM((count, sq, stats), jnp.float32),
            pltpu.VMEM((count, sq, width), jnp.float32),
        ]
        share = per if group <= per else group
        return pl.pallas_call(
            step,
            grid=(heads // per, rows // bq, keys // bk),
            in_specs=[
                pl.BlockSpec((per, bq, size), lambda h, i, j: (h, i, 0)),
                pl.BlockSpec((pairs, bk, size), lambda h, i, j: (h * per // share, j, 0)),
                pl.BlockSpec((pairs, bk, size), lambda h, i, j: (h * per // share, j, 0)),
            ],
            out_specs=pl.BlockSpec((per, bq, size), lambda h, i, j: (h, i, 0)),
            out_shape=jax.ShapeDtypeStruct((heads, rows, size), jnp.bfloat16),
            scratch_shapes=running if walk == "grid" else [],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=params["vmem_mib"] * 1048576
            ),
            name="attention",
        )(q, k, v)

    return attention
