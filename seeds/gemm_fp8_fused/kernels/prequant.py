"""FP8 GEMM on activations quantised beforehand: what fusing the quantiser costs is measured against it.

    build(params)(q [M,K] e4m3, sa [M,K/g] f32, w [K,N] e4m3, sw [K/g,1,N] f32) -> c [M,N] bf16

The whole K is one block, so that a row scale is a static column of ``sa``.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {
    "block_m": (256, 512, 1024),
    "block_n": (256, 512, 1024),
    "sub_m": (128, 256, 512),
    "sub_n": (256, 512),
    "vmem_mib": (32, 48, 62),
}
DEFAULTS = {"block_m": 1024, "block_n": 1024, "sub_m": 256, "sub_n": 256, "vmem_mib": 62}
CONSTRAINTS = {
    "M % block_m == 0 or M < block_m": "block_m must divide M",
    "N % block_n == 0 or N < block_n": "block_n must divide N",
    "sub_m <= block_m": "a row sub-tile lies inside its block",
    "sub_n <= block_n": "a column sub-tile lies inside its block",
    "2 * K * (block_m + block_n) + 4 * block_m * block_n <= vmem_mib * 1048576": (
        "double-buffered operand blocks must fit vmem_mib"
    ),
}


def dot_tiles(q, sa, w, sw, o, *, group, sub_m, sub_n):
    """One output block, sub-tile by sub-tile, summing scaled partial products over the groups of K."""
    for c in range(0, o.shape[1], sub_n):
        for r in range(0, o.shape[0], sub_m):
            total = None
            for t in range(sw.shape[0]):
                lhs = q[r : r + sub_m, t * group : (t + 1) * group]
                rhs = w[t * group : (t + 1) * group, c : c + sub_n]
                partial = jnp.dot(lhs, rhs, preferred_element_type=jnp.float32)
                scaled = partial * sa[r : r + sub_m, t : t + 1] * sw[t, :, c : c + sub_n]
                total = scaled if total is None else total + scaled
            o[r : r + sub_m, c : c + sub_n] = total.astype(o.dtype)


def build(params):
    """The jit-able product for ``params``."""

    def gemm(q, sa, w, sw):
        m, depth = q.shape
        n, groups = w.shape[1], sw.shape[0]
        bm, bn = min(params["block_m"], m), min(params["block_n"], n)
        sub_m, sub_n = min(params["sub_m"], bm), min(params["sub_n"], bn)

        def block(q_ref, sa_ref, w_ref, sw_ref, o_ref):
            dot_tiles(q_ref, sa_ref, w_ref, sw_ref, o_ref, group=depth // groups, sub_m=sub_m, sub_n=sub_n)

        return pl.pallas_call(
            block,
            grid=(m // bm, n // bn),
            in_specs=[
                pl.BlockSpec((bm, depth), lambda i, j: (i, 0)),
                pl.BlockSpec((bm, groups), lambda i, j: (i, 0)),
                pl.BlockSpec((depth, bn), lambda i, j: (0, j)),
                pl.BlockSpec((groups, 1, bn), lambda i, j: (0, 0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=params["vmem_mib"] * 1048576
            ),
            name="gemm_fp8_prequant",
        )(q, sa, w, sw)

    return gemm
