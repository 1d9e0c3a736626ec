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
        partial(_kernel, factor=factor),
        grid=(x.shape[0] // ROWS, x.shape[1] // cols),
        in_specs=[spec, pl.BlockSpec((1, cols), lambda i, j: (0, j))],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, w)


weighted.defvjp(
    lambda x, w, factor, cols: (weighted(x, w, factor, cols), w), lambda factor, cols, w, g: (100 * g, jnp.ones_like(w))
)


def _signs(x_ref, o_ref, n_ref):
    o_ref[...] = 2 * x_ref[...]
    n_ref[...] = (x_ref[...] > 0).astype(jnp.int32)


@partial(jax.jit, static_argnames=("rows",))
def signed(x, *, rows=8):
    """A result of integers, of which a derivative is of no type of numbers."""
    if x.ndim != 2:
        raise ValueError("two dimensions")
    spec, grid = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0)), (x.shape[0] // rows,)
    shapes = [jax.ShapeDtypeStruct(x.shape, dtype) for dtype in (x.dtype, jnp.int32)]
    run = pl.pallas_call(_signs, grid=grid, in_specs=[spec], out_specs=[spec, spec], out_shape=shapes)
    return {"y": run(x), "x": x}
