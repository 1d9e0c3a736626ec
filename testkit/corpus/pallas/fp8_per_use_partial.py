"""Naive fused-quantise FP8 GEMM."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"block_m": (256, 512, 1024), "block_n": (256, 512, 1024, 2048), "block_k": (512, 1024, 2048, 4096)}
DEFAULTS = {"block_m": 512, "block_n": 512, "block_k": 512}
CONSTRAINTS = {"M % block_m == 0": "block_m must divide M", "K % block_k == 0": "block_k must divide K"}


def quantise(tile):
    x = tile.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(x), axis=1, keepdims=True), 1e-12) / 448.0
    return (x / scale).astype(jnp.float8_e4m3fn), scale


def kernel(a_ref, w_ref, sw_ref, o_ref, acc_ref, *, group):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def init():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    for t in range(a_ref.shape[1] // group):
        q, s = quantise(a_ref[:, t * group : (t + 1) * group])
        part = jnp.dot(q, w_ref[t * group : (t + 1) * group, :], preferred_element_type=jnp.float32)
        acc_ref[...] += part * (s * sw_ref[t])

    @pl.when(k == pl.num_programs(2) - 1)
    def store():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def build(params):
    bm, bn, bk = params["block_m"], params["block_n"], params["block_k"]

    def gemm(a, w, sw):
        m, k = a.shape
        n = w.shape[1]
        group = k // sw.shape[0]
        return pl.pallas_call(
            functools.partial(kernel, group=group),
            grid=(m // bm, n // bn, k // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
                pl.BlockSpec((bk // group, 1, bn), lambda i, j, k: (k, 0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary"),
                vmem_limit_bytes=48 << 20,
            ),
            name="gemm",
        )(a, w, sw)

    return gemm
