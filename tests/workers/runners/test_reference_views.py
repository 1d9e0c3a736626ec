"""Kernels that see a buffer in another shape and dtype, under the interpreter that gates use."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax._src.pallas.mosaic.interpret import interpret_pallas_call  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.experimental.pallas import tpu as pltpu  # noqa: E402

from tilewright.workers.intake.pallas.original import on_chip  # noqa: E402
from tilewright.workers.runners.pallas.check import IN_ORDER, SETTINGS, interpret  # noqa: E402
from tilewright.workers.runners.pallas.sampled_grid import Program  # noqa: E402
from tilewright.workers.runners.pallas.trace import mesh_of  # noqa: E402


def seen(rows):
    def kernel(first, x_hbm, o_ref, buffer, semaphore, others):
        none = pl.ds(0, first[0] // 2)
        pltpu.make_async_copy(x_hbm.at[0, none], buffer.at[1, none], semaphore).wait()
        copy = pltpu.make_async_copy(x_hbm.at[0], buffer.at[1], semaphore)
        copy.start()
        copy.wait()
        ahead = pltpu.make_async_copy(x_hbm.at[2], buffer.at[0], others)
        ahead.start()
        flat = buffer.reshape(2, 64, 128).at[1]
        words = flat.bitcast(jnp.uint32)[pl.ds(first[0], 32), :]  # of two rows each
        flat[4:8, :] = jnp.ones((4, 128), jnp.bfloat16)
        o_ref[...] = pltpu.bitcast(words << 16, jnp.float32)
        o_ref[0:8, :] += buffer[1, 0].astype(jnp.float32)
        ahead.wait()

    memories = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)]
    scratch = [pltpu.VMEM((2, 8, 8, 128), jnp.bfloat16), *[pltpu.SemaphoreType.DMA] * 2]
    out = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    call = pl.pallas_call(kernel, grid=(1,), in_specs=memories, out_shape=out, scratch_shapes=scratch)
    x = np.random.default_rng(0).standard_normal((3, 8, 8, 128)).astype(jnp.bfloat16)
    with mesh_of({"kind": "TPU7x", "cores": 1}):
        pltpu.reset_tpu_interpret_mode_state()
        found = interpret(jax.make_jaxpr(call)(rows, x), [rows, x], SETTINGS)[0]
    assert not interpret_pallas_call.races.races_found, "the copy ahead fills another part"
    return np.asarray(found), np.asarray(x[0], np.float32)


def test_views_are_read_and_written_as_a_tpu_does():
    found, x = seen(np.array([0], np.int32))
    due, head = x.reshape(64, 128)[0::2].copy(), x[0].copy()
    head[4:8] = 1.0
    due[:8] += head
    assert np.array_equal(found, due)


def test_a_range_behind_a_views_end_is_an_error():
    with pytest.raises(Exception, match="out-of-bounds access of a reference's view"):
        seen(np.array([1], np.int32))


@pytest.mark.parametrize("shape", [(8, 128), (256, 128), (4, 16, 8)])
def test_a_mask_says_what_is_stored(shape):
    def kernel(x_ref, mask_ref, o_ref):
        whole, mask = tuple(slice(None) for _ in shape), mask_ref[...] > 0
        o_ref[...] = -x_ref[...]
        pl.store(o_ref, idx=whole, val=pl.load(x_ref, whole, mask=mask, other=5.0), mask=mask)

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    mask = (x > 0.5).astype(np.int32)
    with on_chip({"kind": "TPU7x", "cores": 1}):
        pltpu.reset_tpu_interpret_mode_state()
        call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(shape, jnp.float32))
        found = interpret(jax.make_jaxpr(call)(x, mask), [x, mask], SETTINGS)[0]
    assert np.array_equal(np.asarray(found), np.where(mask, x, -x))


def test_a_mapped_kernel_with_named_axes_is_interpreted():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.0

    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    options = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"))
    out = jax.ShapeDtypeStruct((16, 256), jnp.float32)
    call = pl.pallas_call(
        kernel, grid=(2, 2), in_specs=[block], out_specs=block, out_shape=out, compiler_params=options
    )
    x = np.random.default_rng(0).standard_normal((3, 16, 256)).astype(np.float32)
    with mesh_of({"kind": "TPU7x", "cores": 1}):
        pltpu.reset_tpu_interpret_mode_state()
        closed = jax.make_jaxpr(jax.vmap(call))(x)
        found = interpret(closed, [x], IN_ORDER)[0]
        where = [[np.array([1]), np.array([3, 9]), np.array([5, 200])]]
        some = Program(closed, [x]).run(dict(enumerate(where)), IN_ORDER)[0]
    assert np.array_equal(np.asarray(found), x * 2)
    assert np.array_equal(some, (x * 2)[np.ix_(*where[0])])
