"""Grouped product over rows: each group of rows of X meets the matrix of its group (Pallas, TPU).

    build(params)(x [M,C] bf16, w [G,C,F] e4m3, sw [G,C/g,1,F] f32, sizes [G] i32) -> out [M,F] bf16

With TRANSPOSED, w is [G,F,C]. Without QUANTISED there is no sw, w is bf16, and so is the product. Without
QUANTISE_X, rows stay bf16 and the codes of w are multiplied as bf16. A visit is a tile of block_m rows and a group
that has rows in it; there are at most M / block_m + G - 1, and the grid has that many.

order       outermost in the grid: columns (of F, block_n at a time) or visits, whose output block then has all of F.
placement   where X is quantised. per_use: in every grid step. cached: once per tile, kept in VMEM for all column
            blocks and for the other groups that visit the tile.
dequant     partial: one e4m3 dot a scale group, the f32 partial is scaled. operands: both operands are scaled to
            bf16 and one bf16 dot spans block_k.
arithmetic  f32, or bf16: maxima are found in bf16, where they are exact and two rows share a register; rows then carry
            the maximum, columns the 1/448, and operands are scaled in bf16.
scaling     how a partial meets its two scales. product: partial * (row * column); chained: (partial * row) * column.
bodies      shared: one body that masks its stores. split: tiles inside a group have a body of their own, without mask.
copies      grid: the grid moves blocks, two buffers each. kernel: a pipeline inside the kernel, with as many as
            ``buffers`` of each operand. A step that is shorter than a copy's latency waits for it with two.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.seeds.gmm_fp8.kernels.visits import visits

SPACE = {
    "block_m": (128, 256, 512),
    "block_n": (128, 256, 512, 1024, 2048, 8192),
    "block_k": (256, 512, 1024, 2048, 8192),
    "sub_m": (128, 256, 512),
    "sub_n": (128, 256, 512),
    "order": ("columns", "visits"),
    "placement": ("per_use", "cached"),
    "dequant": ("partial", "operands"),
    "arithmetic": ("f32", "bf16"),
    "scaling": ("product", "chained"),
    "bodies": ("shared", "split"),
    "copies": ("grid", "kernel"),
    "buffers": (2, 3, 4),
    "vmem_mib": (62,),
}
DEFAULTS = {
    "block_m": 256,
    "block_n": 256,
    "block_k": 512,
    "sub_m": 256,
    "sub_n": 256,
    "order": "columns",
    "placement": "per_use",
    "dequant": "partial",
    "arithmetic": "f32",
    "scaling": "product",
    "bodies": "shared",
    "copies": "grid",
    "buffers": 2,
    "vmem_mib": 62,
}
CONSTRAINTS = {
    "M % block_m == 0": "block_m must divide M",
    "F % min(block_n, F) == 0": "block_n must divide the columns of the output",
    "C % min(block_k, C) == 0": "block_k must divide the contracted dimension",
    "min(block_k, C) % max(scale_width, 1) == 0": "block_k must hold whole scale groups",
    "is_full == 0 or block_k >= C": "a scale for a whole row needs the whole row",
    "sub_m <= block_m": "a row sub-tile lies inside its block",
    "sub_n <= block_n": "a column sub-tile lies inside its block",
    "order == 'visits' or placement == 'per_use'": (
        "quantised rows are cached for one tile, so the column blocks must come inside it"
    ),
    "dequant == 'partial' or x_quantised == 1": "operands are scaled where both have scales",
    "x_quantised == 1 or (placement == 'per_use' and scaling == 'product')": "there is nothing to quantise",
    "placement == 'per_use' or dequant == 'operands' or bodies == 'shared'": (
        "libtpu's simulator aborts on two bodies of e4m3 dots beside a cache that is filled (weight FIFO full)"
    ),
    "placement == 'per_use' or dequant == 'operands' or is_transposed == 0": (
        "libtpu's simulator aborts on e4m3 dots with transposed weights beside a cache that is filled"
    ),
    "dequant == 'partial' or scaling == 'product'": "operands are scaled before the product",
    "arithmetic == 'f32' or (x_quantised == 1 and rounds_scales == 0)": (
        "rows that carry their maximum are quantised here, and their scales are not rounded"
    ),
    "dequant == 'operands' or is_quantised == 0"
    " or block_m * min(block_n, F) * (min(block_k, C) // max(scale_width, 128)) <= 4194304": (
        "straight-line code of more than 4096 partial registers takes the compiler too long"
    ),
    "copies == 'kernel' or buffers == 2": "the grid's pipeline has two buffers",
    "buffers * (2 * block_m * min(block_k, C) + (2 - is_quantised) * min(block_k, C) * min(block_n, F))"
    " + 4 * block_m * (min(block_n, F) + (min(block_n, F) if order == 'columns' else F))"
    " + (block_m * (2 * C + 512 * (C // max(scale_width, 128))) if placement == 'cached' else 0)"
    " <= vmem_mib * 1048576": "operand blocks, cache and sums must fit vmem_mib",
}

TRANSPOSED = False
QUANTISED = True
QUANTISE_X = True
BF16_SCALES = False
WEIGHT_BLOCK = 128
F8_MAX = 448.0
ABSMAX_FLOOR = 1e-12


def quantise(x, plan):
    """x [m,g] bf16 -> e4m3 codes [m,g] and what rows carry, f32 [m,1]: scales or maxima."""
    wide = x.astype(jnp.float32)
    if plan["arithmetic"] == "bf16":
        largest = jnp.max(jnp.abs(x), axis=1, keepdims=True).astype(jnp.float32)
        absmax = jnp.maximum(largest, ABSMAX_FLOOR)  # in f32: the bf16 next to 1e-12 turns 2 % of such codes
        return (wide * (F8_MAX / absmax)).astype(jnp.float8_e4m3fn), absmax
    absmax = jnp.maximum(jnp.max(jnp.abs(wide), axis=1, keepdims=True), ABSMAX_FLOOR)
    if BF16_SCALES:
        scale = (absmax * (1.0 / F8_MAX)).astype(jnp.bfloat16).astype(jnp.float32)
        return (wide * (1.0 / scale)).astype(jnp.float8_e4m3fn), scale
    return (wide * (F8_MAX / absmax)).astype(jnp.float8_e4m3fn), absmax * (1.0 / F8_MAX)


def at_group(t, plan):
    """Slice of the contracted dimension that scale group t of a block covers."""
    return slice(t * plan["group"], (t + 1) * plan["group"])


def operand(refs, plan, rows, t):
    """Rows of X for scale group t: (codes, row scales), or bf16 values for dequant operands and unquantised rows."""
    if plan["placement"] == "cached":
        codes = refs["codes"][refs["k"], rows, at_group(t, plan)]
        return (codes, refs["scales"][refs["k"] * plan["groups"] + t, rows, :]) if plan["pairs"] else (codes, None)
    return fresh(refs, plan, rows, t)


def fresh(refs, plan, rows, t):
    """The same, from the block of X."""
    x = refs["x"][rows, at_group(t, plan)]
    if not plan["quantise_x"]:
        return x, None
    codes, scale = quantise(x, plan)
    if plan["pairs"]:
        return codes, scale.astype(jnp.float32)
    return scaled(codes, scale, plan), None


def scaled(codes, scale, plan):
    """e4m3 codes times a broadcastable scale, as bf16."""
    if plan["arithmetic"] == "bf16":
        return codes.astype(jnp.bfloat16) * scale.astype(jnp.bfloat16)
    return (codes.astype(jnp.float32) * scale).astype(jnp.bfloat16)


def column_scales(refs, plan, t, cols):
    """f32 [1, columns] that go with group t: the weight scales, and the 1/448 that rows do not carry."""
    scale = refs["sw"][t, :, cols]
    return scale * (1.0 / F8_MAX) if plan["arithmetic"] == "bf16" else scale


def fill(refs, plan):
    """Quantise the whole block of X into the cache."""
    for start in range(0, plan["block_m"], plan["sub_m"]):
        rows = slice(start, start + plan["sub_m"])
        for t in range(plan["groups"]):
            codes, scale = fresh(refs, plan, rows, t)
            refs["codes"][refs["k"], rows, at_group(t, plan)] = codes
            if plan["pairs"]:
                refs["scales"][refs["k"] * plan["groups"] + t, rows, :] = scale


def weights(refs, plan, t, cols):
    """Codes of w for scale group t and these columns: [g, n], or [n, g] when transposed."""
    return refs["w"][cols, at_group(t, plan)] if TRANSPOSED else refs["w"][at_group(t, plan), cols]


def scaled_weights(refs, plan, t, cols):
    """Weights of scale group t times their scales, as bf16: [g, n], or [n, g] when transposed.

    A scale holds for WEIGHT_BLOCK columns, which are rows of transposed weights: one value for a block of them.
    """
    codes, scale = weights(refs, plan, t, cols), column_scales(refs, plan, t, cols)
    if not TRANSPOSED:
        return scaled(codes, scale, plan)
    starts = range(0, codes.shape[0], WEIGHT_BLOCK)
    blocks = [scaled(codes[n : n + WEIGHT_BLOCK], scale[:, n : n + 1], plan) for n in starts]
    return jnp.concatenate(blocks, axis=0)


def multiply(x, w):
    """x [m,g] . w in f32."""
    if w.dtype == jnp.float8_e4m3fn and x.dtype == jnp.bfloat16:
        w = w.astype(jnp.bfloat16)
    contracted = (((1,), (1 if TRANSPOSED else 0,)), ((), ()))
    return jax.lax.dot_general(x, w, contracted, preferred_element_type=jnp.float32)


def scaled_partial(refs, plan, made, t, cols):
    """Scaled f32 product over scale group t."""
    values, scale = made
    product = multiply(values, weights(refs, plan, t, cols))
    by_column = column_scales(refs, plan, t, cols)
    if scale is None:
        return product * by_column
    if plan["scaling"] == "product":
        return product * (scale * by_column)
    return (product * scale) * by_column


def block_sum(refs, plan, made, cols):
    """f32 product of one sub-tile over the whole of block_k."""
    if not QUANTISED:
        return multiply(made[0][0], refs["w"][cols, :] if TRANSPOSED else refs["w"][:, cols])
    if plan["dequant"] == "operands":
        parts = [scaled_weights(refs, plan, t, cols) for t in range(plan["groups"])]
        whole = jnp.concatenate(parts, axis=1 if TRANSPOSED else 0)
        return multiply(jnp.concatenate([m[0] for m in made], axis=1), whole)
    total = None
    for t in range(plan["groups"]):
        product = scaled_partial(refs, plan, made[t], t, cols)
        total = product if total is None else total + product
    return total


def place(refs, plan, start, column, value, masked):
    """Put a sub-tile into the output: all of its rows, or those of the group."""
    rows = slice(start, start + plan["sub_m"])
    cols = pl.ds(refs["column"] + column, plan["sub_n"])
    value = value.astype(refs["o"].dtype)
    if masked:
        row = jax.lax.broadcasted_iota(jnp.int32, value.shape, 0) + start
        value = jnp.where((row >= refs["low"]) & (row < refs["high"]), value, refs["o"][rows, cols])
    refs["o"][rows, cols] = value


def run_step(refs, plan, masked):
    """Every sub-tile of the grid step."""
    if plan["steps"] > 1:

        @pl.when(refs["k"] == 0)
        def clear():
            refs["acc"][...] = jnp.zeros_like(refs["acc"])

    for start in range(0, plan["block_m"], plan["sub_m"]):
        rows = slice(start, start + plan["sub_m"])
        made = [operand(refs, plan, rows, t) for t in range(plan["groups"])]
        for column in range(0, plan["block_n"], plan["sub_n"]):
            cols = slice(column, column + plan["sub_n"])
            total = block_sum(refs, plan, made, cols)
            if plan["steps"] == 1:
                place(refs, plan, start, column, total, masked)
            else:
                refs["acc"][rows, cols] += total
    if plan["steps"] > 1:

        @pl.when(refs["k"] == plan["steps"] - 1)
        def store():
            for start in range(0, plan["block_m"], plan["sub_m"]):
                for column in range(0, plan["block_n"], plan["sub_n"]):
                    value = refs["acc"][start : start + plan["sub_m"], column : column + plan["sub_n"]]
                    place(refs, plan, start, column, value, masked)


def grid_step(plan, tile, group, low, high, x, w, *others):
    """One visit, column block and block of the contracted dimension."""
    others = list(others)
    refs = {"x": x, "w": w, "sw": others.pop(0) if QUANTISED else None, "o": others.pop(0)}
    first, second, k = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    v, n = (second, first) if plan["order"] == "columns" else (first, second)
    refs["k"], refs["low"], refs["high"] = k, low[v], high[v]
    refs["column"] = (
        0 if plan["order"] == "columns" or plan["columns"] == 1 else pl.multiple_of(n * plan["block_n"], 128)
    )
    if plan["steps"] > 1:
        refs["acc"] = others.pop(0)
    if plan["placement"] == "cached":
        refs["codes"] = others.pop(0)
        if plan["pairs"]:
            refs["scales"] = others.pop(0)

        @pl.when((n == 0) & (high[v] > low[v]) & ((v == 0) | (tile[v] != tile[jnp.maximum(v - 1, 0)])))
        def quantise_tile():
            fill(refs, plan)

    inside = (low[v] == 0) & (high[v] == plan["block_m"])
    if plan["bodies"] == "split":

        @pl.when(inside)
        def whole():
            run_step(refs, plan, False)

        @pl.when((high[v] > low[v]) & jnp.logical_not(inside))
        def part():
            run_step(refs, plan, True)

    else:

        @pl.when(high[v] > low[v])
        def any_visit():
            run_step(refs, plan, True)


def specs(plan, features, tables=None):
    """Block specifications of (operands, output). A visit of no rows fetches nothing: it stays at the last blocks.

    ``tables`` are the tables of visits, where index maps do not get them from the grid.
    """

    def spec(shape, index, buffers):
        def at(first, second, k, *given):
            tile, group, low, high = tables or given
            v, n = (second, first) if plan["order"] == "columns" else (first, second)
            if plan["steps"] > 1:
                k = jnp.where(high[v] > low[v], k, plan["steps"] - 1)
            if plan["columns"] > 1 and plan["order"] == "visits":
                n = jnp.where(high[v] > low[v], n, plan["columns"] - 1)
            n, k = n if plan["columns"] > 1 else 0, k if plan["steps"] > 1 else 0
            return index(tile[v], group[v], n, k)

        if buffers == 2:
            return pl.BlockSpec(shape, at)
        return pl.BlockSpec(shape, at, pipeline_mode=pl.Buffered(buffers))

    bm, bn, bk = plan["block_m"], plan["block_n"], plan["block_k"]
    many = plan["buffers"]
    operands = [spec((bm, bk), lambda tile, group, n, k: (tile, k), many)]
    if TRANSPOSED:
        operands.append(spec((None, bn, bk), lambda tile, group, n, k: (group, n, k), many))
    else:
        operands.append(spec((None, bk, bn), lambda tile, group, n, k: (group, k, n), many))
    if QUANTISED:
        scales = (None, plan["groups"], 1, bn)
        operands.append(spec(scales, lambda tile, group, n, k: (group, k, 0, n), many))
    if plan["order"] == "columns":
        return operands, spec((bm, bn), lambda tile, group, n, k: (tile, n), 2)
    return operands, spec((bm, features), lambda tile, group, n, k: (tile, 0), 2)


def pipelined(plan, features, grid, tile, group, low, high, *refs):
    """The whole walk in one grid step: operands and output stay in HBM, a pipeline moves their blocks."""
    moved = 4 if QUANTISED else 3
    tables = (tile, group, low, high)
    operands, output = specs(plan, features, tables)

    def step(*blocks):
        grid_step(plan, *tables, *blocks, *refs[moved:])

    pltpu.emit_pipeline(step, grid=grid, in_specs=operands, out_specs=[output])(*refs[:moved])


def build(params):
    """The jit-able product for ``params``."""

    def gmm(x, w, *rest):
        m, depth = x.shape
        features = w.shape[1] if TRANSPOSED else w.shape[2]
        sizes = rest[-1]
        plan = dict(params)
        plan["block_n"] = min(params["block_n"], features)
        plan["sub_n"] = min(params["sub_n"], features)
        plan["block_k"] = bk = min(params["block_k"], depth)
        plan["group"] = depth // rest[0].shape[1] if QUANTISED else bk
        plan["groups"] = bk // plan["group"]
        plan["steps"], plan["columns"] = depth // bk, features // plan["block_n"]
        plan["quantise_x"] = QUANTISED and QUANTISE_X
        plan["pairs"] = plan["quantise_x"] and params["dequant"] == "partial"
        bm, bn = plan["block_m"], plan["block_n"]
        tables = visits(sizes, m, bm, False)[:4]
        scratch = [] if plan["steps"] == 1 else [pltpu.VMEM((bm, bn), jnp.float32)]
        if params["placement"] == "cached":
            kind = jnp.float8_e4m3fn if plan["pairs"] else jnp.bfloat16
            scratch.append(pltpu.VMEM((plan["steps"], bm, bk), kind))
            if plan["pairs"]:
                scratch.append(pltpu.VMEM((plan["steps"] * plan["groups"], bm, 1), jnp.float32))
        outer = (plan["columns"], tables[0].shape[0])
        grid = (*(outer if plan["order"] == "columns" else outer[::-1]), plan["steps"])
        if params["copies"] == "grid":
            body = functools.partial(grid_step, plan)
            operands, output = specs(plan, features)
        else:
            body = functools.partial(pipelined, plan, features, grid)
            output = pl.BlockSpec(memory_space=pl.ANY)
            operands, grid = [output] * (3 if QUANTISED else 2), (1,)
        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=4, grid=grid, in_specs=operands, out_specs=output, scratch_shapes=scratch
            ),
            out_shape=jax.ShapeDtypeStruct((m, features), jnp.bfloat16),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("arbitrary",) * len(grid), vmem_limit_bytes=params["vmem_mib"] * 1048576
            ),
            name="gmm",
        )(*tables, x, w, *rest[:-1])

    return gmm
