"""Pallas functions whose winners are compared with them on odd calls."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

ROWS = 8


def _kernel(x_ref, w_ref, o_ref, *, factor):
    o_ref[...] = (x_ref[...] * w_ref[...] * factor).astype(o_ref.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def weighted(x, w, factor=2.0, cols=128):
    """A derivative of its own, which is not what the kernel's would be."""
    if x.shape[1] % cols:
        raise ValueError("whole blocks")
    spec = pl.BlockSpec((ROWS, cols), lambda i, j: (i, j))
    return pl.pallas_call(
        partial(_kernel, factor=factor), grid=(x.shape[0] // ROWS, x.shape[1] // cols),
        in_specs=[spec, pl.BlockSpec((1, cols), lambda i, j: (0, j))], out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, w)  # fmt: skip


weighted.defvjp(
    lambda x, w, factor, cols: (weighted(x, w, factor, cols), w),
    lambda factor, cols, w, g: (100 * g, jnp.ones_like(w)),
)


@partial(jax.jit, static_argnames=("cols",))
def doubled(x, *, cols=128):
    if x.ndim != 2:
        raise ValueError("two dimensions")
    return {"y": weighted(x, jnp.ones((1, x.shape[1]), x.dtype), 2.0, cols), "x": x}


def _signs(x_ref, o_ref, n_ref):
    o_ref[...] = 2 * x_ref[...]
    n_ref[...] = (x_ref[...] > 0).astype(jnp.int32)


def signed(x):
    """A result of integers, of which a derivative is of no type of numbers."""
    shapes = [jax.ShapeDtypeStruct(x.shape, dtype) for dtype in (x.dtype, jnp.int32)]
    return pl.pallas_call(_signs, out_shape=shapes)(x)
