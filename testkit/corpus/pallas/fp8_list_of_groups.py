"""All groups of a block quantised in a list first, then consumed with enumerate."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SPACE = {"m": (128, 256), "n": (128, 256), "k": (256, 512)}
DEFAULTS = {"m": 128, "n": 128, "k": 256}
CONSTRAINTS = {}


def q8(block):
    wide = block.astype(jnp.float32)
    unit = jnp.maximum(jnp.max(jnp.abs(wide), axis=1, keepdims=True), 1e-6) * (1.0 / 448.0)
    return (wide * (1.0 / unit)).astype(jnp.float8_e4m3fn), unit


def mm(p, q):
    return jnp.dot(p, q, preferred_element_type=jnp.float32)


def kern(a, w, sw, o, acc, *, g, nk):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def clear():
        acc[...] = jnp.zeros_like(acc)

    groups = [q8(a[:, i : i + g]) for i in range(0, a.shape[1], g)]
    r = acc[...]
    for i, (q, s) in enumerate(groups):
        r = r + mm(q, w[i * g : (i + 1) * g, :]) * (s * sw[i])
    acc[...] = r

    @pl.when(k == nk - 1)
    def write():
        o[...] = acc[...].astype(o.dtype)


def build(cfg):
    def f(a, w, sw):
        M, K = a.shape
        N = w.shape[1]
        g = K // sw.shape[0]
        bm, bn, bk = cfg["m"], cfg["n"], cfg["k"]
        nk = K // bk
        return pl.pallas_call(
            functools.partial(kern, g=g, nk=nk),
            grid=(M // bm, N // bn, nk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)),
                pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),
                pl.BlockSpec((bk // g, 1, bn), lambda i, j, k: (k, 0, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((M, N), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY)
            ),
        )(a, w, sw)

    return f
