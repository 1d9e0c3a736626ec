"""The fused-quantise FP8 GEMM of ``fused.py`` whose copies can be written out as well (Pallas, TPU).

    build(params)(a [M,K] bf16, w [K,N] e4m3, sw [K/g,1,N] f32) -> c [M,N] bf16

All parameters of ``fused.py``, with the same defaults, and

copies      grid: the grid's pipeline moves blocks, and waits for all that a step reads before the step begins. kernel:
            loops in place of the grid, and every copy written out. The first tile begins when its first rows and
            weights are there; rows need one buffer, since they are quantised before the next ones are fetched; and
            nothing is looked after between two tiles but one store that begins and one that is over.
first_rows  rows of A fetched in a copy of their own, before the others, for which the very first tile waits only when
            it gets there; 0: all of a block in one. (kernel)
weights     kept: all of W stays in VMEM once it came. moved: a column block is fetched one tile ahead, for every row
            block again. (kernel)
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.seeds.gemm_fp8_fused.kernels.fused import (
    block_specs,
    fresh_operands,
    make_body,
    operand_step,
    partial_step,
    quantise_tile,
    resolve,
    run_step,
    scratch_shapes,
)

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
    "copies": ("grid", "kernel"),
    "first_rows": (0, 128, 256, 512),
    "weights": ("kept", "moved"),
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
    "copies": "grid",
    "first_rows": 0,
    "weights": "kept",
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
    "copies == 'grid' or (block_k >= K and placement != 'per_use')": (
        "copies in the kernel fetch whole rows, which are quantised once"
    ),
    "copies == 'kernel' or (first_rows == 0 and weights == 'kept')": "the grid's copies have neither choice",
    "first_rows <= block_m": "what is fetched first is a part of the row block",
    "copies == 'kernel' or 4 * min(block_m, M) * min(block_k, K) + 2 * min(block_k, K) * min(block_n, N)"
    " + (8 if accumulate == 'ref' or block_k < K else 4) * min(block_m, M) * min(block_n, N)"
    " + (min(block_m, M) * (0 if placement == 'per_use' else K + 512 * (K // group)) if dequant == 'partial'"
    " else 2 * min(block_m, M) * (min(block_k, K) if placement == 'per_use' else K)"
    " + 2 * min(block_k, K) * min(block_n, N)) <= vmem_mib * 1048576": (
        "operand blocks, cache and sums must fit vmem_mib"
    ),
    "copies == 'grid' or 2 * min(block_m, M) * K + (K * N if weights == 'kept' else 2 * K * min(block_n, N))"
    " + (8 if accumulate == 'ref' else 4) * min(block_m, M) * min(block_n, N)"
    " + (min(block_m, M) * (K + 512 * (K // group)) if dequant == 'partial'"
    " else 2 * min(block_m, M) * K + 2 * K * min(block_n, N)) <= vmem_mib * 1048576": (
        "rows, cache, kept or moved weights, two tiles of results and sums must fit vmem_mib"
    ),
}

F8_MAX = 448.0
ABSMAX_FLOOR = 1e-12
LANES = 128
FILL_ROWS = 128


def pieces_of(plan):
    """(first, end) of the rows of a block of A that one copy brings."""
    first, rows = plan["first_rows"], plan["block_m"]
    return [(0, first), (first, rows)] if 0 < first < rows else [(0, rows)]


def fill_rest(refs, plan, first):
    """Quantise the rows of the A block from this one on into the cache, FILL_ROWS at a time."""
    rows = min(FILL_ROWS, plan["block_m"])

    def iteration(i, carry):
        quantise_tile(refs, plan, pl.multiple_of(i * rows, rows), rows, range(plan["groups"]))
        return carry

    jax.lax.fori_loop(first // rows, plan["block_m"] // rows, iteration, 0)


def fresh_tile(refs, plan, wait, apart):
    """The tile whose rows are quantised here; wait(number) waits for a piece of them, each where it is needed if
    apart, else for all at first: a wait amid the dots keeps the compiler from moving work across it.
    """
    pieces = pieces_of(plan)
    if plan["placement"] == "cached":
        wait(0)
        written_out = pieces[0][1] if len(pieces) > 1 else 0
        for first in range(0, written_out, FILL_ROWS):
            quantise_tile(refs, plan, first, FILL_ROWS, range(plan["groups"]))
        if written_out:
            wait(1)
        fill_rest(refs, plan, written_out)
        run_step(refs, plan, False)
        return
    if plan["row_unroll"] or not apart:
        for number in range(len(pieces)):
            wait(number)
        run_step(refs, plan, True)
        return
    starts = list(range(0, plan["block_m"], plan["sub_m"]))
    made, waited = fresh_operands(refs, plan, starts), []

    def operand(row, t):
        ahead = starts[min(row + plan["skew"], len(starts) - 1)] + plan["sub_m"]
        for number, (first, _) in enumerate(pieces):
            if first < ahead and number not in waited:
                waited.append(number)
                wait(number)
        return made(row, t)

    step = partial_step if plan["dequant"] == "partial" else operand_step
    step(refs, plan, starts, operand)


def make_loops(plan):
    """The body of a launch without a grid: row blocks, column blocks inside them, all copies written out.

    No wait is conditional, and none stands at the head of a loop or of a conditional block: the compiler moves such
    a wait in front of the branch, where the simulator takes it for one that is executed.
    """
    bm, bn, rows, cols = plan["block_m"], plan["block_n"], plan["rows"], plan["cols"]
    pieces = pieces_of(plan)

    def body(a, w, sw, o, *scratch):
        at = dict(zip(plan["scratch"], scratch, strict=True))

        def rows_copy(i, number):
            first, end = pieces[number]
            source = a.at[pl.ds(i * bm + first, end - first)]
            return pltpu.make_async_copy(
                source, at["a"].at[pl.ds(first, end - first)], at["a_done"].at[number]
            )

        def slot_of(i, j):
            """Where the weights of a tile are, and where its result is made."""
            turn = jax.lax.rem(i * cols + j, 2)
            return (j if plan["weights"] == "kept" else turn), turn

        def weight_copies(i, j):
            columns, (slot, _) = pl.ds(j * bn, bn), slot_of(i, j)
            return [
                pltpu.make_async_copy(sw.at[:, :, columns], at["sw"].at[slot], at["sw_done"].at[slot]),
                pltpu.make_async_copy(w.at[:, columns], at["w"].at[slot], at["w_done"].at[slot]),
            ]

        def result_copy(i, j):
            _, slot = slot_of(i, j)
            target = o.at[pl.ds(i * bm, bm), pl.ds(j * bn, bn)]
            return pltpu.make_async_copy(at["o"].at[slot], target, at["o_done"].at[slot])

        def refs_of(i, j):
            slot, turn = slot_of(i, j)
            return {**at, "w": at["w"].at[slot], "sw": at["sw"].at[slot], "o": at["o"].at[turn], "k": 0}

        def start(copies):
            for copy in copies:
                copy.start()

        def wait(copies):
            for copy in copies:
                copy.wait()

        def fetch_next(i, j):
            """Begin to fetch the weights of the tile after this one, if there is one."""

            @pl.when(j + 1 < cols)
            def beside():
                start(weight_copies(i, j + 1))

            @pl.when((j + 1 == cols) & (i + 1 < rows))
            def below():
                start(weight_copies(i + 1, 0))

        def fresh(i, apart):
            fresh_tile(refs_of(i, 0), plan, lambda number: rows_copy(i, number).wait(), apart)
            if rows > 1:

                @pl.when(i + 1 < rows)
                def follow():
                    start([rows_copy(i + 1, number) for number in range(len(pieces))])

        def later_tile(i, j, before, compute):
            """A tile beside whose dots the result of the one before leaves; weights of the next come, if moved."""
            result_copy(*before).start()
            if plan["weights"] == "moved":
                wait(weight_copies(i, j))
                fetch_next(i, j)
            compute()
            result_copy(*before).wait()

        def columns(i):
            def column(j, carry):
                later_tile(i, j, (i, j - 1), lambda: run_step(refs_of(i, j), plan, False))
                return carry

            jax.lax.fori_loop(1, cols, column, 0)

        def row_block(i, carry):
            later_tile(i, 0, (i - 1, cols - 1), lambda: fresh(i, False))
            columns(i)
            return carry

        kept = [(0, j) for j in range(1, cols)] if plan["weights"] == "kept" else []
        rows_copy(0, 0).start()
        start(weight_copies(0, 0))
        start([rows_copy(0, number) for number in range(1, len(pieces))])
        for tile in kept:
            start(weight_copies(*tile))
        if plan["weights"] == "moved" and rows * cols > 1:
            start(weight_copies(0, 1) if cols > 1 else weight_copies(1, 0))
        wait(weight_copies(0, 0))
        fresh(0, True)
        for tile in kept:
            wait(weight_copies(*tile))
        columns(0)
        jax.lax.fori_loop(1, rows, row_block, 0)
        last = result_copy(rows - 1, cols - 1)
        last.start()
        last.wait()

    return body


def loops_scratch(plan):
    """Name to buffer of a launch without a grid, in the order the body receives them."""
    bm, bk, bn, slots = plan["block_m"], plan["block_k"], plan["block_n"], plan["slots"]
    done = pltpu.SemaphoreType.DMA
    return {
        "a": pltpu.VMEM((bm, bk), jnp.bfloat16),
        "a_done": done((len(pieces_of(plan)),)),
        "w": pltpu.VMEM((slots, bk, bn), jnp.float8_e4m3fn),
        "w_done": done((slots,)),
        "sw": pltpu.VMEM((slots, plan["groups"], 1, bn), jnp.float32),
        "sw_done": done((slots,)),
        "o": pltpu.VMEM((2, bm, bn), jnp.bfloat16),
        "o_done": done((2,)),
        **scratch_shapes(plan),
    }


def pallas_call_of(plan, m, n):
    """The Pallas call of a resolved plan."""
    result = jax.ShapeDtypeStruct((m, n), jnp.bfloat16)
    limit = plan["vmem_mib"] * 1048576
    if plan["copies"] == "kernel":
        plan["slots"] = plan["cols"] if plan["weights"] == "kept" else 2
        shapes = loops_scratch(plan)
        plan["scratch"] = tuple(shapes)
        whole = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            make_loops(plan),
            in_specs=[whole, whole, whole],
            out_specs=whole,
            out_shape=result,
            scratch_shapes=tuple(shapes.values()),
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit),
            name="gemm_fp8_fused",
        )
    shapes = scratch_shapes(plan)
    plan["scratch"] = tuple(shapes)
    inputs, output = block_specs(plan)
    outer = (plan["cols"], plan["rows"]) if plan["grid_order"] == "nm" else (plan["rows"], plan["cols"])
    return pl.pallas_call(
        make_body(plan),
        grid=(*outer, plan["steps"]),
        in_specs=inputs,
        out_specs=output,
        out_shape=result,
        scratch_shapes=tuple(shapes.values()),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary", "arbitrary"), vmem_limit_bytes=limit
        ),
        name="gemm_fp8_fused",
    )


def build(params):
    """The jit-able product for ``params``, a point of SPACE."""

    def gemm(a, w, sw):
        m, depth = a.shape
        n = w.shape[1]
        plan = resolve(params, m, n, depth, sw.shape[0])
        plan["rows"], plan["cols"] = m // plan["block_m"], n // plan["block_n"]
        return pallas_call_of(plan, m, n)(a, w, sw)

    return gemm
