"""bf16 GEMM, the baseline an fp8 kernel has to beat (Pallas, TPU).

build(params)(a [M,K] bf16, w [K,N] bf16) -> c [M,N] bf16

block_k is an upper bound: the largest divisor of K in multiples of 128 is taken.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {
    "block_m": (256, 512, 1024, 2048),
    "block_n": (256, 512, 1024, 2048),
    "block_k": (512, 1024, 2048, 4096),
    "vmem_mib": (32, 48, 62),
}
DEFAULTS = {"block_m": 1024, "block_n": 1024, "block_k": 4096, "vmem_mib": 62}
CONSTRAINTS = {
    "M % block_m == 0 or M < block_m": "block_m must divide M",
    "N % block_n == 0 or N < block_n": "block_n must divide N",
    "4 * block_k * (block_m + block_n) + 8 * block_m * block_n <= vmem_mib * 1048576": (
        "double-buffered operand blocks and the f32 sum must fit vmem_mib"
    ),
}


def whole_part(most, extent, unit):
    """The largest divisor of extent that is a multiple of unit and not above most."""
    return max(size for size in range(unit, min(most, extent) + 1, unit) if extent % size == 0)


def tile_step(a, w, o, acc, *, steps):
    """One grid step: acc [bm,bn] f32 += a . w; the last K step stores."""
    k = pl.program_id(2)

    @pl.when(k == 0)
    def init():
        acc[...] = jnp.zeros_like(acc)

    acc[...] += jnp.dot(a[...], w[...], preferred_element_type=jnp.float32)

    @pl.when(k == steps - 1)
    def store():
        o[...] = acc[...].astype(o.dtype)


def single_step(a, w, o):
    """The whole K at once: no accumulator."""
    o[...] = jnp.dot(a[...], w[...], preferred_element_type=jnp.float32).astype(o.dtype)


def build(params):
    """The jit-able product for ``params``."""

    def gemm(a, w):
        m, depth = a.shape
        n = w.shape[1]
        bm, bn = min(params["block_m"], m), min(params["block_n"], n)
        bk = whole_part(params["block_k"], depth, 128)
        steps = depth // bk
        body = single_step if steps == 1 else functools.partial(tile_step, steps=steps)
        return pl.pallas_call(
            body,
            grid=(m // bm, n // bn, steps),
            in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
            scratch_shapes=[] if steps == 1 else [pltpu.VMEM((bm, bn), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=params["vmem_mib"] * 1048576
            ),
            name="gemm_bf16",
        )(a, w)

    return gemm
