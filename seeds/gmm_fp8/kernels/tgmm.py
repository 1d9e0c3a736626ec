"""Grouped product over columns: out[g] = X_g^T . Y_g for the rows of each group (Pallas, TPU).

    build(params)(x [M,K] bf16, y [M,N] bf16, sizes [G] i32) -> out [G,K,N] bf16

Both operands are quantised along M: one scale for GROUP rows of a column, whatever groups these rows belong to.
Without QUANTISED they stay bf16; without QUANTISE_Y only y does. A visit is a tile of block_m rows and a group that
has rows in it, or an empty group; the visits of a group add up in VMEM.

placement   per_use: operands are quantised at every visit. cached: once per tile, for all groups that visit it.
dequant     partial: one e4m3 dot for GROUP rows, the f32 partial is scaled. operands: both operands are scaled to bf16
            and one bf16 dot spans block_m.
arithmetic  f32, or bf16: maxima are found in bf16, where they are exact and two rows share a register, and operands are
            scaled in bf16.
sums        ref: added up in VMEM. direct: a group that is one visit goes to the output at once, in a body of its own.
block_k     at most: the largest divisor of K in whole sub_k.
narrow      rows of a body for groups that fit this part of a tile; 0: every dot spans block_m.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.seeds.gmm_fp8.kernels.visits import border, visits

SPACE = {
    "block_m": (128, 256, 512, 1024),
    "block_n": (128, 256, 512, 1024, 2048),
    "block_k": (128, 256, 512, 1024, 2048, 4096),
    "sub_k": (128, 256, 512, 1024, 2048),
    "sub_n": (128, 256, 512, 1024, 2048),
    "placement": ("per_use", "cached"),
    "dequant": ("partial", "operands"),
    "arithmetic": ("f32", "bf16"),
    "sums": ("ref", "direct"),
    "narrow": (0, 128, 256),
    "vmem_mib": (62,),
}
DEFAULTS = {
    "block_m": 1024,
    "block_n": 128,
    "block_k": 512,
    "sub_k": 512,
    "sub_n": 128,
    "placement": "per_use",
    "dequant": "operands",
    "arithmetic": "f32",
    "sums": "ref",
    "narrow": 0,
    "vmem_mib": 62,
}
CONSTRAINTS = {
    "M % block_m == 0": "block_m must divide M",
    "N % min(block_n, N) == 0": "block_n must divide N",
    "K % min(sub_k, K) == 0": "sub_k must divide K",
    "block_m % max(scale_width, 1) == 0": "block_m must hold whole scale groups",
    "sub_k <= block_k": "a sub-tile lies inside its block",
    "sub_n <= block_n": "a sub-tile lies inside its block",
    "is_quantised == 1 or (placement == 'per_use' and dequant == 'operands')": "there is nothing to quantise",
    "arithmetic == 'f32' or (is_quantised == 1 and rounds_scales == 0)": "scales that are rounded are found in f32",
    "placement == 'per_use' or dequant == 'operands'": "what is kept is what a bf16 dot takes",
    "narrow < block_m": "a part of a tile is smaller than the tile",
    "narrow == 0 or placement == 'cached' or is_quantised == 0": "scales need all of their rows, so they are kept",
    "y_quantised == 1 or dequant == 'operands'": "partials are those of two quantised operands",
    "dequant == 'operands' or min(block_k, K) * min(block_n, N) * (block_m // max(scale_width, 128)) <= 4194304": (
        "straight-line code of more than 4096 partial registers takes the compiler too long"
    ),
    "4 * block_m * (min(block_k, K) + min(block_n, N)) + 8 * min(block_k, K) * min(block_n, N)"
    " + (2 * block_m * (min(block_k, K) + min(block_n, N)) if placement == 'cached' else 0)"
    " <= vmem_mib * 1048576": "operand blocks, cache and sums must fit vmem_mib",
}

QUANTISED = True
QUANTISE_Y = True
BF16_SCALES = False
GROUP = 128
F8_MAX = 448.0
ABSMAX_FLOOR = 1e-12


def quantise(x, plan):
    """x [GROUP,n] bf16 -> e4m3 codes and f32 column scales [1,n]."""
    wide = x.astype(jnp.float32)
    source = x if plan["arithmetic"] == "bf16" else wide
    absmax = jnp.maximum(jnp.max(jnp.abs(source), axis=0, keepdims=True).astype(jnp.float32), ABSMAX_FLOOR)
    if BF16_SCALES:
        scale = (absmax * (1.0 / F8_MAX)).astype(jnp.bfloat16).astype(jnp.float32)
        return (wide * (1.0 / scale)).astype(jnp.float8_e4m3fn), scale
    return (wide * (F8_MAX / absmax)).astype(jnp.float8_e4m3fn), absmax * (1.0 / F8_MAX)


def rounded(x, plan):
    """x [GROUP,n] bf16 as its e4m3 codes times their scales, in bf16."""
    codes, scale = quantise(x, plan)
    if plan["arithmetic"] == "bf16":
        return codes.astype(jnp.bfloat16) * scale.astype(jnp.bfloat16)
    return (codes.astype(jnp.float32) * scale).astype(jnp.bfloat16)


def values(ref, plan, quantised, rows, cols):
    """Rows of a block of an operand as bf16, rounded through e4m3 when it is quantised (all rows, then)."""
    if not quantised:
        return ref[rows, cols]
    parts = [rounded(ref[t * GROUP : (t + 1) * GROUP, cols], plan) for t in range(plan["groups"])]
    return jnp.concatenate(parts, axis=0)


def kept(refs, plan, name, quantised, rows, cols):
    """The same, from the cache where there is one."""
    if plan["placement"] == "cached":
        return refs[name + "_kept"][rows, cols]
    return values(refs[name], plan, quantised, rows, cols)


def of_group(refs, start, value):
    """Rows of a tile from ``start``, those of other groups made zero."""
    row = jax.lax.broadcasted_iota(jnp.int32, value.shape, 0) + start
    return jnp.where((row >= refs["low"]) & (row < refs["high"]), value, jnp.zeros_like(value))


def product(x, y):
    """x^T . y in f32, over rows."""
    return jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def operand_sums(refs, plan, start, size, direct):
    """Products of bf16 operands over ``size`` rows of the tile."""
    rows = pl.ds(start, size)
    for column in range(0, plan["block_n"], plan["sub_n"]):
        cols = slice(column, column + plan["sub_n"])
        y = of_group(refs, start, kept(refs, plan, "y", QUANTISED and QUANTISE_Y, rows, cols))
        for first in range(0, plan["block_k"], plan["sub_k"]):
            at = slice(first, first + plan["sub_k"])
            value = product(kept(refs, plan, "x", QUANTISED, rows, at), y)
            if direct:
                refs["o"][at, cols] = value.astype(refs["o"].dtype)
            else:
                refs["acc"][at, cols] += value


def partial_sums(refs, plan, start, size, direct):
    """Scaled products of e4m3 codes, GROUP rows at a time; columns of Y are quantised once for all of X's."""
    groups = [slice(t * GROUP, (t + 1) * GROUP) for t in range(plan["groups"])]
    for column in range(0, plan["block_n"], plan["sub_n"]):
        cols = slice(column, column + plan["sub_n"])
        right = [quantise(refs["y"][rows, cols], plan) for rows in groups]
        right = [
            (of_group(refs, rows.start, y.astype(jnp.bfloat16)).astype(jnp.float8_e4m3fn), scale)
            for rows, (y, scale) in zip(groups, right, strict=True)
        ]
        for first in range(0, plan["block_k"], plan["sub_k"]):
            at = slice(first, first + plan["sub_k"])
            total = None
            for rows, (y, y_scale) in zip(groups, right, strict=True):
                x, x_scale = quantise(refs["x"][rows, at], plan)
                value = product(x, y) * y_scale * x_scale.T
                total = value if total is None else total + value
            if direct:
                refs["o"][at, cols] = total.astype(refs["o"].dtype)
            else:
                refs["acc"][at, cols] += total


def keep(refs, plan):
    """Fill the cache with both operands of the tile, as the dots take them."""
    for name, quantised in (("x", True), ("y", QUANTISE_Y)):
        refs[name + "_kept"][...] = values(refs[name], plan, quantised, slice(None), slice(None))


def visit(plan, tile, group, low, high, first, last, x, y, o, acc, *cache):
    """One visit of a block of the output."""
    v = pl.program_id(2)
    refs = {"x": x, "y": y, "o": o, "acc": acc, "low": low[v], "high": high[v]}
    some = high[v] > low[v]
    step = partial_sums if plan["dequant"] == "partial" else operand_sums
    if plan["placement"] == "cached":
        refs["x_kept"], refs["y_kept"] = cache

        @pl.when((v == 0) | (tile[v] != tile[jnp.maximum(v - 1, 0)]))
        def new_tile():
            keep(refs, plan)

    special, start, size, direct = some, 0, plan["block_m"], plan["sums"] == "direct"
    if direct:
        special = special & (first[v] == 1) & (last[v] == 1)
    if plan["narrow"]:
        size = plan["narrow"]
        start = pl.multiple_of(jax.lax.div(low[v], size) * size, size)
        special = special & (high[v] <= start + size)
    summed = jnp.logical_not(special) if direct else True

    @pl.when((first[v] == 1) & summed)
    def clear():
        acc[...] = jnp.zeros_like(acc)

    if direct or plan["narrow"]:

        @pl.when(special)
        def special_body():
            step(refs, plan, start, size, direct)

        some = some & jnp.logical_not(special)

    @pl.when(some)
    def body():
        step(refs, plan, 0, plan["block_m"], False)

    @pl.when((last[v] == 1) & summed)
    def store():
        o[...] = acc[...].astype(o.dtype)


def whole_part(most, extent, unit):
    """The largest divisor of extent that is a multiple of unit and not above most."""
    return max(size for size in range(unit, min(most, extent) + 1, unit) if extent % size == 0)


def build(params):
    """The jit-able product for ``params``."""

    def tgmm(x, y, sizes):
        m, depth = x.shape
        n = y.shape[1]
        plan = dict(params)
        bm = plan["block_m"]
        plan["sub_k"] = min(params["sub_k"], depth)
        plan["block_k"] = bk = whole_part(params["block_k"], depth, plan["sub_k"])
        plan["block_n"] = bn = min(params["block_n"], n)
        plan["sub_n"] = min(params["sub_n"], bn)
        plan["groups"] = bm // GROUP
        tile, group, low, high, total = visits(sizes, m, bm, True)
        cached = params["placement"] == "cached"
        return pl.pallas_call(
            functools.partial(visit, plan),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=6,
                grid=(depth // bk, n // bn, tile.shape[0]),
                in_specs=[
                    pl.BlockSpec((bm, bk), lambda i, j, v, tile, *others: (tile[v], i)),
                    pl.BlockSpec((bm, bn), lambda i, j, v, tile, *others: (tile[v], j)),
                ],
                out_specs=pl.BlockSpec((None, bk, bn), lambda i, j, v, tile, group, *others: (group[v], i, j)),
                scratch_shapes=[
                    pltpu.VMEM((bk, bn), jnp.float32),
                    *([pltpu.VMEM((bm, bk), jnp.bfloat16), pltpu.VMEM((bm, bn), jnp.bfloat16)] if cached else []),
                ],
            ),
            out_shape=jax.ShapeDtypeStruct((sizes.shape[0], depth, n), jnp.bfloat16),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("arbitrary", "arbitrary", "arbitrary"),
                vmem_limit_bytes=params["vmem_mib"] * 1048576,
            ),
            name="tgmm",
        )(tile, group, low, high, *border(group, total), x, y)

    return tgmm
