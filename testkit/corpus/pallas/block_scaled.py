"""One scale a tile of the product: a table of scalars, looked up by the tile's place in the grid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

SPACE = {"rows": (128, 256), "cols": (128, 256)}
DEFAULTS = {"rows": 128, "cols": 128}
CONSTRAINTS = {"M % rows == 0": "rows must divide M", "N % cols == 0": "cols must divide N"}


def scaled_tile(left, right, table, out):
    down, across = pl.program_id(0), pl.program_id(1)
    tile = jnp.dot(left[...], right[...], preferred_element_type=jnp.float32)
    out[...] = (tile * table[down, across]).astype(out.dtype)


def build(params):
    rows, cols = params["rows"], params["cols"]

    def product(x, y, scales):
        m, depth = x.shape
        n, (down, across) = y.shape[1], scales.shape
        return pl.pallas_call(
            scaled_tile,
            grid=(m // rows, n // cols),
            in_specs=[
                pl.BlockSpec((rows, depth), lambda i, j: (i, 0)),
                pl.BlockSpec((depth, cols), lambda i, j: (0, j)),
                pl.BlockSpec((down, across), lambda i, j: (0, 0)),
            ],
            out_specs=pl.BlockSpec((rows, cols), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        )(x, y, scales)

    return product
