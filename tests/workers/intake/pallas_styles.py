"""Pallas functions in the styles of public code. Taken in by ``test_pallas_styles``, never imported."""

import functools
from dataclasses import dataclass

import jax
from absent_types import Array, Float
from jax.experimental import pallas as pl

TABLE = {"block": 128, "shape": [64, 128], "name": "unused"}


@dataclass(frozen=True)
class Config:
    columns: int
    block: int
    scale: float = 2.0

    @property
    def doubled(self):
        return self.scale * 2


@dataclass
class Outputs:
    out: object


jax.tree_util.register_dataclass(Outputs, data_fields=["out"], meta_fields=[])


class Copies:
    """Holds a reference and does something with it."""

    def __init__(self, ref, count):
        self._ref = ref
        self._rows = [self._row(i) for i in range(count)]

    def _row(self, i):
        return self._ref[i]

    def total(self):
        return functools.reduce(lambda a, b: a + b, self._rows)


def _kernel(x_ref, outputs: Outputs, *, cfg: Config):
    copies = Copies(x_ref, 8)
    total = copies.total()

    @pl.when(pl.program_id(0) >= 0)
    def _store():
        outputs.out[...] = x_ref[...] * cfg.doubled + total[None] / cfg.columns


def scaled(x: Float[Array, "int"] | None) -> Float[Array, "int"]:
    rows, columns = x.shape
    cfg = Config(columns=columns, block=TABLE["block"])
    spec = pl.BlockSpec((8, cfg.block), lambda i, j: (i, j))
    made = pl.pallas_call(
        functools.partial(_kernel, cfg=cfg),
        grid=(rows // 8, columns // cfg.block),
        in_specs=[spec],
        out_specs=Outputs(out=spec),
        out_shape=Outputs(out=jax.ShapeDtypeStruct(x.shape, x.dtype)),
    )(x)
    return made.out


BLOCK_ROWS = 8


def _scale_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0


def _launched(x, *, block_cols=128, **options):
    spec = pl.BlockSpec((BLOCK_ROWS, block_cols), lambda i, j: (i, j))
    grid = (x.shape[0] // BLOCK_ROWS, x.shape[1] // block_cols)
    out_shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(_scale_kernel, grid=grid, in_specs=[spec], out_specs=spec, out_shape=out_shape)(x)


def below(x):
    return _launched(x)


MAX_BLOCK = 65536


def capped(x):
    return _launched(x, block_cols=min(x.shape[1], MAX_BLOCK))


def only_v6e(x):
    assert "v6" in jax.devices()[0].device_kind
    return _launched(x)


def largest(x):
    return jax.lax.approx_max_k(_launched(x), 8)


def _chosen(columns):
    return 256 if columns % 256 == 0 else columns


def chosen_within(x, block_cols="auto"):
    size = _chosen(x.shape[1]) if block_cols == "auto" else block_cols
    return _launched(x, block_cols=size)


rounded = lambda size, by: -(-size // by) * by  # noqa: E731


@functools.cache
def _limit():
    return 1 << 20 if jax.devices()[0].platform == "tpu" else None


def asked(x, block_cols=None):
    columns = rounded(x.shape[1], 128)
    limit = _limit()
    if block_cols is None:
        block_cols = _chosen(columns)
    spec = pl.BlockSpec((8, block_cols), lambda i, j: (i, j))
    grid = (x.shape[0] // 8, columns // block_cols)
    return pl.pallas_call(
        _scale_kernel,
        grid=grid,
        in_specs=[spec],
        out_specs=spec,
        name="asked" if limit else "plain",
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        cost_estimate=pl.CostEstimate(1, 1, 1),
    )(x)
