"""Fused-quantise FP8 GEMM whose schedule is spelled out by parameters (Pallas, TPU).

    build(params)(a [M,K] bf16, w [K,N] e4m3, sw [K/g,1,N] f32) -> c [M,N] bf16

The grid walks row blocks, column blocks and K blocks, K fastest. One grid step multiplies a block_m x block_k
tile of A with a block_k x block_n tile of W in sub-tiles of sub_m x sub_n. The defaults are the naive schedule:
quantise on every use, one dot per scale group over the whole block.

block_n, block_k  at most: the largest divisor of N in whole sub_n, of K in whole scale groups.
placement   where A is quantised. per_use: in every grid step. cached: once per row block, before its first dots,
            kept in VMEM for all column blocks. ahead: as cached, but within the straight-line code of the first
            column block's dots.
skew        how many tiles the quantiser runs ahead of the dot that needs the tile (per_use and ahead).
dequant     partial: e4m3 dots over one scale group, the f32 partial is scaled. operands_f32, operands_bf16: both
            operands are scaled to bf16 (multiplied in f32 or bf16) and one bf16 dot spans block_k.
row_scale   what a row carries. scale: absmax / 448, found in f32. absmax: the maximum itself, found in bf16, where it
            is exact and two rows share a register; columns carry the 1/448.
scaling     how a partial meets its two scales. product: partial * (row * column), which needs the product of the
            scales as one more tile; chained: (partial * row) * column, which needs none.
scales      row scales cached as one column or spread over 128 lanes.
order       outermost loop over sub-tiles: rows, columns, or groups (of scales along K).
accumulate  value: the sum over block_k of one sub-tile stays in values. ref: in a VMEM buffer.
row_unroll  row sub-tiles per iteration of a rolled loop; 0 writes all of them out in one block.
vmem_mib    the compiler's VMEM limit; one value, since a limit that the blocks fit changes no cycle.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {
    "block_m": (256, 512, 1024),
    "block_n": (256, 512, 1024),
    "block_k": (512, 1024, 2048, 4096),
    "sub_m": (128, 256, 512, 1024),
    "sub_n": (256, 512, 1024),
    "placement": ("per_use", "cached", "ahead"),
    "skew": (0, 1, 2),
    "dequant": ("partial", "operands_f32", "operands_bf16"),
    "row_scale": ("scale", "absmax"),
    "scaling": ("product", "chained"),
    "scales": ("column", "lanes"),
    "order": ("rows", "columns", "groups"),
    "accumulate": ("value", "ref"),
    "row_unroll": (0, 1, 2),
    "grid_order": ("mn", "nm"),
    "vmem_mib": (62,),
}
DEFAULTS = {
    "block_m": 512,
    "block_n": 1024,
    "block_k": 1024,
    "sub_m": 512,
    "sub_n": 1024,
    "placement": "per_use",
    "skew": 0,
    "dequant": "partial",
    "row_scale": "scale",
    "scaling": "product",
    "scales": "column",
    "order": "rows",
    "accumulate": "value",
    "row_unroll": 0,
    "grid_order": "mn",
    "vmem_mib": 62,
}
CONSTRAINTS = {
    "M % min(block_m, M) == 0": "block_m must divide M",
    "N % min(sub_n, N) == 0": "sub_n must divide N",
    "block_k % group == 0": "block_k must hold whole scale groups",
    "sub_m <= block_m": "a row sub-tile lies inside its block",
    "sub_n <= block_n": "a column sub-tile lies inside its block",
    "grid_order == 'mn' or placement == 'per_use'": (
        "quantised rows are cached for one row block, so the column blocks must come inside it"
    ),
    "order != 'groups' or (dequant == 'partial' and accumulate == 'ref' and row_unroll == 0)": (
        "with groups outermost every sub-tile's sum is live at once and must be in VMEM, in straight-line code"
    ),
    "row_unroll == 0 or order == 'rows'": "a loop over rows has rows outermost",
    "row_unroll * sub_m <= block_m": "one iteration of the row loop lies inside the block",
    "placement != 'ahead' or dequant != 'partial'": (
        "libtpu's simulator cannot cost e4m3 dots mixed with the quantiser's stores (weight FIFO full)"
    ),
    "placement != 'cached' or skew == 0": "a cache filled beforehand has nothing to run ahead of",
    "dequant != 'partial' or block_n * (block_k // group) * (row_unroll * sub_m if row_unroll else block_m)"
    " <= 4194304": "straight-line code of more than 4096 partial registers takes the compiler too long",
    "dequant == 'partial' or group < 512 or block_n * block_k * (row_unroll * sub_m if row_unroll else block_m)"
    " <= 2147483648": (
        "straight-line code of more than half of a 1024 x 1024 x 4096 product takes the compiler long, and bf16 dots"
        " cannot win with groups of 512"
    ),
    "4 * min(block_m, M) * min(block_k, K) + 2 * min(block_k, K) * min(block_n, N)"
    " + (8 if accumulate == 'ref' or block_k < K else 4) * min(block_m, M) * min(block_n, N)"
    " + (min(block_m, M) * (0 if placement == 'per_use' else K + 512 * (K // group)) if dequant == 'partial'"
    " else 2 * min(block_m, M) * (min(block_k, K) if placement == 'per_use' else K)"
    " + 2 * min(block_k, K) * min(block_n, N)) <= vmem_mib * 1048576": (
        "operand blocks, cache and sums must fit vmem_mib"
    ),
}

F8_MAX = 448.0
ABSMAX_FLOOR = 1e-12
LANES = 128
FILL_ROWS = 128


def quantise(x, plan):
    """x [m,g] bf16 -> e4m3 codes [m,g] and what row_scale says rows carry, f32 [m,1]."""
    wide = x.astype(jnp.float32)
    if plan["row_scale"] == "absmax":
        largest = jnp.max(jnp.abs(x), axis=1, keepdims=True).astype(jnp.float32)
        absmax = jnp.maximum(largest, ABSMAX_FLOOR)  # in f32: the bf16 next to 1e-12 turns 2 % of such codes
        return (wide * (F8_MAX / absmax)).astype(jnp.float8_e4m3fn), absmax
    absmax = jnp.maximum(jnp.max(jnp.abs(wide), axis=1, keepdims=True), ABSMAX_FLOOR)
    return (wide * (F8_MAX / absmax)).astype(jnp.float8_e4m3fn), absmax * (1.0 / F8_MAX)


def column_scales(refs, plan, t, cols):
    """f32 [1, columns] that go with group t: the weight scales, and the 1/448 that rows do not carry."""
    scale = refs["sw"][t, :, cols]
    return scale * (1.0 / F8_MAX) if plan["row_scale"] == "absmax" else scale


def to_lanes(scale, plan):
    """Row scales as they are kept: [m,1], or [m,128] with equal lanes."""
    return jnp.broadcast_to(scale, (scale.shape[0], LANES)) if plan["scales"] == "lanes" else scale


def over_columns(scale, plan):
    """Kept row scales, ready to multiply [m, sub_n]."""
    return jnp.concatenate([scale] * (plan["sub_n"] // LANES), axis=1) if plan["scales"] == "lanes" else scale


def scaled(codes, scale, plan):
    """e4m3 codes times a broadcastable scale, as bf16."""
    if plan["dequant"] == "operands_f32":
        return (codes.astype(jnp.float32) * scale.astype(jnp.float32)).astype(jnp.bfloat16)
    return codes.astype(jnp.bfloat16) * scale.astype(jnp.bfloat16)


def at_group(t, plan):
    """Slice of K that scale group t of a K block covers."""
    return slice(t * plan["group"], (t + 1) * plan["group"])


def quantise_tile(refs, plan, start, rows, groups):
    """Quantise rows x groups of the A block, into the cache when there is one; returns one operand per group.

    An operand is (codes, kept scales) for partial, bf16 values for the others.
    """
    made = []
    for t in groups:
        codes, scale = quantise(refs["a"][pl.ds(start, rows), at_group(t, plan)], plan)
        if plan["dequant"] == "partial":
            made.append((codes, to_lanes(scale.astype(jnp.float32), plan)))
        else:
            made.append(scaled(codes, scale, plan))
        if plan["placement"] != "per_use":
            store_operand(refs, plan, start, rows, t, made[-1])
    return made


def store_operand(refs, plan, start, rows, t, operand):
    """Put one operand of quantise_tile into the cache."""
    k = refs["k"]
    if plan["dequant"] == "partial":
        refs["codes"][k, pl.ds(start, rows), at_group(t, plan)] = operand[0]
        refs["scales"][k * plan["groups"] + t, pl.ds(start, rows), :] = operand[1]
    else:
        refs["codes"][k, pl.ds(start, rows), at_group(t, plan)] = operand


def cached_operand(refs, plan, starts, row, t):
    """One (row sub-tile, group) from the cache; t None: the whole K block (bf16 operands)."""
    k, rows = refs["k"], pl.ds(starts[row], plan["sub_m"])
    if t is None:
        return refs["codes"][k, rows, :]
    return refs["codes"][k, rows, at_group(t, plan)], refs["scales"][k * plan["groups"] + t, rows, :]


def fresh_operands(refs, plan, starts):
    """A function (row, t) -> operand that quantises tiles in order of need, skew tiles ahead of the asked one."""
    rows, groups = range(len(starts)), range(plan["groups"])
    if plan["dequant"] != "partial":
        tiles = [(row, None) for row in rows]
    elif plan["order"] == "groups":
        tiles = [(row, t) for t in groups for row in rows]
    else:
        tiles = [(row, t) for row in rows for t in groups]
    ready = []

    def operand(row, t):
        wanted = tiles.index((row, t))
        for number, only in tiles[len(ready) : wanted + 1 + plan["skew"]]:
            made = quantise_tile(refs, plan, starts[number], plan["sub_m"], groups if only is None else [only])
            ready.append(jnp.concatenate(made, axis=1) if only is None else made[0])
        return ready[wanted]

    return operand


def partial_product(refs, plan, operand, t, col):
    """Scaled f32 [sub_m, sub_n] product over scale group t."""
    codes, scale = operand
    cols = pl.ds(col, plan["sub_n"])
    product = jnp.dot(codes, refs["w"][at_group(t, plan), cols], preferred_element_type=jnp.float32)
    by_row, by_column = over_columns(scale, plan), column_scales(refs, plan, t, cols)
    if plan["scaling"] == "product":
        return product * (by_row * by_column)
    return (product * by_row) * by_column


def add_up(refs, plan, start, col, value, first, last):
    """Add value to the sum of a sub-tile; the last addition of the last K block goes to the output."""
    place = (pl.ds(start, plan["sub_m"]), pl.ds(col, plan["sub_n"]))
    whole = plan["steps"] == 1
    if not (whole and first):
        value = refs["acc"][place] + value
    if whole and last:
        refs["o"][place] = value.astype(refs["o"].dtype)
    else:
        refs["acc"][place] = value


def partial_step(refs, plan, starts, operand):
    """All sub-tiles of the rows at starts, one dot per scale group; operand(row number, group)."""
    cols, groups = range(0, plan["block_n"], plan["sub_n"]), range(plan["groups"])
    rows, final = range(len(starts)), plan["groups"] - 1
    if plan["accumulate"] == "value":
        for row, col in sub_tiles(plan, rows, cols):
            total = None
            for t in groups:
                product = partial_product(refs, plan, operand(row, t), t, col)
                total = product if total is None else total + product
            add_up(refs, plan, starts[row], col, total, True, True)
        return
    if plan["order"] == "rows":
        walk = [(row, t, col) for row in rows for t in groups for col in cols]
    elif plan["order"] == "columns":
        walk = [(row, t, col) for col in cols for t in groups for row in rows]
    else:
        walk = [(row, t, col) for t in groups for row in rows for col in cols]
    for row, t, col in walk:
        product = partial_product(refs, plan, operand(row, t), t, col)
        add_up(refs, plan, starts[row], col, product, t == 0, t == final)


def operand_step(refs, plan, starts, operand):
    """All sub-tiles of the rows at starts, one bf16 dot each; weights are dequantised when first needed."""
    weights = {}
    for row, col in sub_tiles(plan, range(len(starts)), range(0, plan["block_n"], plan["sub_n"])):
        lhs = operand(row, None)
        if col not in weights:
            cols = pl.ds(col, plan["sub_n"])
            parts = [
                scaled(refs["w"][at_group(t, plan), cols], column_scales(refs, plan, t, cols), plan)
                for t in range(plan["groups"])
            ]
            weights[col] = jnp.concatenate(parts, axis=0)
        product = jnp.dot(lhs, weights[col], preferred_element_type=jnp.float32)
        add_up(refs, plan, starts[row], col, product, True, True)


def sub_tiles(plan, rows, cols):
    """(row number, column) of every sub-tile, the outermost as order says."""
    if plan["order"] == "rows":
        return [(row, col) for row in rows for col in cols]
    return [(row, col) for col in cols for row in rows]


def run_step(refs, plan, fresh):
    """Every sub-tile of the grid step; fresh: A is quantised here, otherwise it comes from the cache."""
    step = partial_step if plan["dequant"] == "partial" else operand_step

    def some_rows(starts):
        if fresh:
            step(refs, plan, starts, fresh_operands(refs, plan, starts))
        else:
            step(refs, plan, starts, functools.partial(cached_operand, refs, plan, starts))

    chunk = plan["row_unroll"] * plan["sub_m"]
    if chunk == 0:
        some_rows(list(range(0, plan["block_m"], plan["sub_m"])))
        return

    def iteration(i, carry):
        start = pl.multiple_of(i * chunk, chunk)
        some_rows([start + extra for extra in range(0, chunk, plan["sub_m"])])
        return carry

    jax.lax.fori_loop(0, plan["block_m"] // chunk, iteration, 0)


def fill_cache(refs, plan):
    """Quantise the whole A block into the cache, FILL_ROWS rows at a time."""
    rows = min(FILL_ROWS, plan["block_m"])

    def iteration(i, carry):
        quantise_tile(refs, plan, pl.multiple_of(i * rows, rows), rows, range(plan["groups"]))
        return carry

    jax.lax.fori_loop(0, plan["block_m"] // rows, iteration, 0)


def make_body(plan):
    """The Pallas body for a resolved plan."""

    def body(a, w, sw, o, *scratch):
        buffers = dict(zip(plan["scratch"], scratch, strict=True))
        refs = {"a": a, "w": w, "sw": sw, "o": o, "k": pl.program_id(2), **buffers}
        j, k = pl.program_id(1), refs["k"]
        if plan["steps"] > 1:

            @pl.when(k == 0)
            def clear():
                refs["acc"][...] = jnp.zeros_like(refs["acc"])

        if plan["placement"] == "per_use":
            run_step(refs, plan, True)
        elif plan["placement"] == "cached":

            @pl.when(j == 0)
            def fill():
                fill_cache(refs, plan)

            run_step(refs, plan, False)
        else:

            @pl.when(j == 0)
            def first_column():
                run_step(refs, plan, True)

            @pl.when(j > 0)
            def other_columns():
                run_step(refs, plan, False)

        if plan["steps"] > 1:

            @pl.when(k == plan["steps"] - 1)
            def store():
                o[...] = refs["acc"][...].astype(o.dtype)

    return body


def whole_part(most, extent, unit):
    """The largest divisor of extent that is a multiple of unit and not above most."""
    return max(size for size in range(unit, min(most, extent) + 1, unit) if extent % size == 0)


def resolve(params, m, n, depth, groups):
    """Parameters clamped to the operands' shapes, with the counts that follow from them."""
    plan = dict(params)
    plan["group"] = depth // groups
    plan["block_m"] = min(params["block_m"], m)
    plan["sub_m"], plan["sub_n"] = min(params["sub_m"], m), min(params["sub_n"], n)
    plan["block_n"] = whole_part(params["block_n"], n, plan["sub_n"])
    plan["block_k"] = whole_part(params["block_k"], depth, plan["group"])
    if plan["row_unroll"] * plan["sub_m"] > plan["block_m"]:
        plan["row_unroll"] = 1
    plan["groups"] = plan["block_k"] // plan["group"]
    plan["steps"] = depth // plan["block_k"]
    return plan


def scratch_shapes(plan):
    """Name to VMEM buffer, in the order the body receives them."""
    bm, bk, steps = plan["block_m"], plan["block_k"], plan["steps"]
    shapes = {}
    if steps > 1 or plan["accumulate"] == "ref":
        shapes["acc"] = pltpu.VMEM((bm, plan["block_n"]), jnp.float32)
    if plan["placement"] != "per_use":
        partial = plan["dequant"] == "partial"
        shapes["codes"] = pltpu.VMEM((steps, bm, bk), jnp.float8_e4m3fn if partial else jnp.bfloat16)
        if partial:
            lanes = LANES if plan["scales"] == "lanes" else 1
            shapes["scales"] = pltpu.VMEM((steps * plan["groups"], bm, lanes), jnp.float32)
    return shapes


def block_specs(plan):
    """Input and output blocks; a cached A is not fetched again after the first column block."""
    bm, bn, bk = plan["block_m"], plan["block_n"], plan["block_k"]
    last = plan["steps"] - 1
    swap = plan["grid_order"] == "nm"

    def a_index(i, j, k):
        if plan["placement"] == "per_use":
            return (j if swap else i, k)
        return (i, jnp.where(j == 0, k, last))

    inputs = [
        pl.BlockSpec((bm, bk), a_index),
        pl.BlockSpec((bk, bn), lambda i, j, k: (k, i if swap else j)),
        pl.BlockSpec((plan["groups"], 1, bn), lambda i, j, k: (k, 0, i if swap else j)),
    ]
    return inputs, pl.BlockSpec((bm, bn), lambda i, j, k: (j, i) if swap else (i, j))


def build(params):
    """The jit-able product for ``params``, a point of SPACE."""

    def gemm(a, w, sw):
        m, depth = a.shape
        n = w.shape[1]
        plan = resolve(params, m, n, depth, sw.shape[0])
        shapes = scratch_shapes(plan)
        plan["scratch"] = tuple(shapes)
        rows, cols = m // plan["block_m"], n // plan["block_n"]
        inputs, output = block_specs(plan)
        return pl.pallas_call(
            make_body(plan),
            grid=(cols, rows, plan["steps"]) if plan["grid_order"] == "nm" else (rows, cols, plan["steps"]),
            in_specs=inputs,
            out_specs=output,
            out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
            scratch_shapes=tuple(shapes.values()),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("arbitrary", "arbitrary", "arbitrary"),
                vmem_limit_bytes=params["vmem_mib"] * 1048576,
            ),
            name="gemm_fp8_fused",
        )(a, w, sw)

    return gemm
