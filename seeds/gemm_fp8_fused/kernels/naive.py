"""The kernel one writes first: quantise a tile whenever it is used, one dot per scale group (Pallas, TPU).

build(params)(a [M,K] bf16, w [K,N] e4m3, sw [K/g,1,N] f32) -> c [M,N] bf16
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"block_m": (256, 512, 1024), "block_n": (256, 512, 1024), "block_k": (512, 1024, 2048), "vmem_mib": (62,)}
DEFAULTS = {"block_m": 512, "block_n": 1024, "block_k": 1024, "vmem_mib": 62}
CONSTRAINTS = {
    "M % block_m == 0 or M < block_m": "block_m must divide M",
    "N % block_n == 0 or N < block_n": "block_n must divide N",
    "K % block_k == 0 or K < block_k": "block_k must divide K",
    "block_k % group == 0": "block_k must hold whole scale groups",
    "block_k * (4 * block_m + 2 * block_n) + 8 * block_m * block_n <= vmem_mib * 1048576": (
        "double-buffered operand blocks and the f32 sum must fit vmem_mib"
    ),
}

F8_MAX = 448.0
ABSMAX_FLOOR = 1e-12


def quantise(x):
    """x [m,g] bf16 -> e4m3 codes [m,g] and f32 row scales [m,1]."""
    wide = x.astype(jnp.float32)
    absmax = jnp.maximum(jnp.max(jnp.abs(wide), axis=1, keepdims=True), ABSMAX_FLOOR)
    return (wide * (F8_MAX / absmax)).astype(jnp.float8_e4m3fn), absmax * (1.0 / F8_MAX)


def build(params):
    """The jit-able product for ``params``."""

    def gemm(a, w, sw):
        m, depth = a.shape
        n, group = w.shape[1], depth // sw.shape[0]
        bm, bn, bk = min(params["block_m"], m), min(params["block_n"], n), min(params["block_k"], depth)
        steps = depth // bk

        def tile_step(a_ref, w_ref, sw_ref, o_ref, acc):
            k = pl.program_id(2)

            @pl.when(k == 0)
            def init():
                acc[...] = jnp.zeros_like(acc)

            total = acc[...]
            for t in range(bk // group):
                q, scale = quantise(a_ref[:, t * group : (t + 1) * group])
                rhs = w_ref[t * group : (t + 1) * group, :]
                total = total + jnp.dot(q, rhs, preferred_element_type=jnp.float32) * (scale * sw_ref[t])
            acc[...] = total

            @pl.when(k == steps - 1)
            def store():
                o_ref[...] = acc[...].astype(o_ref.dtype)

        return pl.pallas_call(
            tile_step,
            grid=(m // bm, n // bn, steps),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
                pl.BlockSpec((bk // group, 1, bn), lambda i, j, k: (k, 0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=params["vmem_mib"] * 1048576
            ),
            name="gemm_fp8_naive",
        )(a, w, sw)

    return gemm
