"""Large shapes interpreted in samples: the same elements as the whole run gives, for a part of its steps."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.experimental.pallas import tpu as pltpu  # noqa: E402

from tilewright.workers.runners.pallas import sampled_grid  # noqa: E402
from tilewright.workers.runners.pallas.check import SETTINGS, interpret  # noqa: E402
from tilewright.workers.runners.pallas.trace import mesh_of  # noqa: E402

F32 = jnp.float32
X = np.random.default_rng(0).standard_normal((1000, 256), dtype=np.float32)
ROWS, COLUMNS = np.array([300, 301, 999]), np.array([0, 200])
"""In blocks 2 and 7 of 8 rows, the last one half empty, and in both blocks of columns."""


def _call(body, x, semantics, scratch=(), grid=(8, 2), **options):
    """A kernel over blocks [128, 128] of ``x``."""
    spec = pl.BlockSpec((128, 128), lambda i, j: (i, j))
    return pl.pallas_call(
        body,
        grid=grid,
        in_specs=[spec],
        out_specs=options.get("out", spec),
        out_shape=jax.ShapeDtypeStruct(options.get("shape", x.shape), F32),
        scratch_shapes=list(scratch),
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    )(x)


def places_told(x):
    def body(a, o):
        o[...] = a[...] + pl.program_id(0) * 100 + pl.num_programs(0) * 10 + pl.program_id(1)

    return _call(body, x, ("parallel", "parallel"))


def running(x):
    """Each row of blocks builds on the one before."""

    def body(a, o, kept):
        @pl.when(pl.program_id(0) == 0)
        def fill():
            kept[...] = jnp.zeros_like(kept)

        kept[...] += a[...]
        o[...] = kept[...]

    return _call(body, x, ("arbitrary", "arbitrary"), [pltpu.VMEM((128, 128), F32)])


def summed(x):
    """Every block of the output is the sum over the second axis of the grid."""

    def body(a, o):
        @pl.when(pl.program_id(1) == 0)
        def fill():
            o[...] = jnp.zeros_like(o)

        o[...] += a[...]

    return _call(
        body, x, ("parallel", "arbitrary"), out=pl.BlockSpec((128, 128), lambda i, j: (i, 0)), shape=(1000, 128)
    )


def looked_up(x):
    """Blocks in an order that a table on the device says."""
    table = jnp.arange(8)[::-1] * 1
    spec = pl.BlockSpec((128, 256), lambda i, table: (table[i], 0))
    return pl.pallas_call(
        lambda table, a, o: o.__setitem__(..., a[...] + table[pl.program_id(0)]),
        grid_spec=pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(8,), in_specs=[spec], out_specs=spec),
        out_shape=jax.ShapeDtypeStruct(x.shape, F32),
    )(table, x)


def _found(function, where, **options):
    with mesh_of({"kind": "TPU7x", "cores": 1}):
        jaxpr = jax.jit(function).trace(jax.ShapeDtypeStruct(X.shape, F32)).jaxpr
        program = sampled_grid.Program(jaxpr, [X])
        (found,) = program.run({0: where}, SETTINGS, **options)
        (whole,) = jax.jit(lambda x: interpret(jaxpr, [x], SETTINGS))(X)
    return found, np.asarray(whole)[np.ix_(*where)], program


@pytest.fixture
def steps(monkeypatch):
    """Steps of every kernel that was interpreted."""
    seen = []
    interpreted = sampled_grid._interpret

    def counted(params, operands, indices, settings):
        seen.append(int(np.prod([len(axis) for axis in indices])))
        return interpreted(params, operands, indices, settings)

    monkeypatch.setattr(sampled_grid, "_interpret", counted)
    return seen


@pytest.mark.parametrize(
    ("function", "where", "run"),
    [(places_told, (ROWS, COLUMNS), [4]), (summed, (ROWS, COLUMNS[:1]), [4]), (looked_up, (ROWS, COLUMNS), [2])],
)
def test_chosen_elements_are_those_of_the_whole_run_for_the_steps_they_need(function, where, run, steps):
    found, whole, _ = _found(function, where)
    assert found.shape == whole.shape and np.array_equal(found, whole)
    assert steps == run


def test_what_builds_on_steps_left_out_is_seen_and_right_when_none_is_left_out(steps):
    found, whole, _ = _found(running, (ROWS, COLUMNS))
    assert not np.array_equal(found, whole)
    found, whole, _ = _found(running, (ROWS, COLUMNS), whole=True)
    assert np.array_equal(found, whole)
    assert steps == [6, 16]
