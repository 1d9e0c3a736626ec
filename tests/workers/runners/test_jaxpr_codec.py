"""A traced kernel written as data and read again: the same kernel, or a reason."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest

from testkit import twins
from tilewright.workers.runners.pallas import jaxpr_codec as codec
from tilewright.workers.runners.pallas.check import exported
from tilewright.workers.runners.pallas.trace import load_build, mesh_of, trace

CHIP = {"kind": "TPU7x", "cores": 1}
HEAD = """
import functools
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

F32 = jnp.float32

def call(body, more=(), **options):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((128, 128), F32), scratch_shapes=list(more))

def build(params):
    def run(x, y):
        {}
    return run
"""

BODIES = {
    "blocks": """
        def body(a, b, c):
            c[...] = jnp.dot(a[...], b[...], preferred_element_type=F32)
        spec = pl.BlockSpec((64, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(buffer_count=2))
        whole = pl.BlockSpec(memory_space=pltpu.VMEM)
        return pl.pallas_call(body, grid=(2,), in_specs=[spec, whole],
            out_specs=pl.BlockSpec((64, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((128, 128), F32), name="named",
            compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",), vmem_limit_bytes=1 << 24),
        )(x, y)""",
    "masked": """
        def body(a, b, c, acc):
            acc[...] = jnp.where(a[...] > 0.0, a[...], 0.0)
            c[...] = jnp.where(acc[...] < 1.0, -jnp.inf, acc[...]) + jnp.where(b[...] > 1.0, 0, b[...])
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((128, 128), F32),
            scratch_shapes=[pltpu.VMEM((128, 128), F32)])(x, y)""",
    "derived": """
        def body(a, b, c):
            c[...] = jax.vjp(lambda v: jnp.sin(v.astype(jnp.bfloat16).astype(F32)) * v, a[...])[1](b[...])[0]
        return call(body)(x, y)""",
    "copies": """
        def body(a, b, c, buf, sem):
            copy = pltpu.make_async_copy(a, buf.at[0], sem.at[0])
            copy.start()
            copy.wait()
            pltpu.async_copy(b, buf.at[1], sem.at[1]).wait()
            c[...] = buf[0] + buf[1]
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(body, in_specs=[anywhere, anywhere], out_shape=jax.ShapeDtypeStruct((128, 128), F32),
            scratch_shapes=[pltpu.VMEM((2, 128, 128), F32), pltpu.SemaphoreType.DMA((2,))])(x, y)""",
    "control": """
        def body(a, b, c):
            def step(i, held):
                return held + a[pl.ds(i * 8, 8), :].sum()
            total = lax.fori_loop(0, 16, step, 0.0)
            total = lax.fori_loop(0, 4, lambda i, h: h * 1.5, total, unroll=True)
            total = lax.while_loop(lambda h: h[0] < 3, lambda h: (h[0] + 1, h[1] * 2.0), (0, total))[1]
            total = lax.cond(total > 0, lambda t: t, lambda t: -t, total)
            total = lax.switch(jnp.int32(1), [lambda t: t, lambda t: t + 1.0], total)
            @pl.when(total > 0)
            def first():
                c[...] = b[...] * total
        return call(body)(x, y)""",
    "scan and loop": """
        def body(a, b, c):
            def step(held, unused):
                return held + 1.0, None
            held, unused = lax.scan(step, b[...], None, length=3)
            rows = b[...]
            @pl.loop(0, 128, step=8)
            def fill(i):
                c[pl.ds(i, 8), :] = rows[:8] + held[:8]
        return call(body)(x, y)""",
    "scoped": """
        def body(a, b, c):
            def inner(buf, sem):
                pltpu.sync_copy(a, buf)
                c[...] = buf[...] + b[...]
            pl.run_scoped(inner, pltpu.VMEM((128, 128), F32), pltpu.SemaphoreType.DMA)
        return call(body)(x, y)""",
    "prefetched": """
        def body(table, a, b, c):
            c[...] = a[...] + b[...] * table[0].astype(F32)
        spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(2,),
            in_specs=[pl.BlockSpec((64, 128), lambda i, t: (t[i], 0)), pl.BlockSpec((64, 128), lambda i, t: (i, 0))],
            out_specs=pl.BlockSpec((64, 128), lambda i, t: (i, 0)))
        table = jnp.array([1, 0], jnp.int32)
        return pl.pallas_call(body, grid_spec=spec, out_shape=jax.ShapeDtypeStruct((128, 128), F32))(table, x, y)""",
    "tpu": """
        def body(a, b, c):
            rolled = pltpu.roll(a[...], 3, 1)
            bits = pltpu.bitcast(rolled, jnp.int32)
            c[...] = pltpu.bitcast(bits & 0x7FFFFFFF, F32) + pl.reciprocal(b[...] + 2.0, approx=True)
        return call(body)(x, y)""",
    "functions": """
        def body(a, b, c):
            z = jax.nn.silu(a[...]) + jax.nn.relu(b[...]) + jax.nn.gelu(a[...]) + jnp.tanh(b[...])
            z = jnp.where(z > 0, jnp.sqrt(jnp.abs(z)), lax.rsqrt(z * z + 1.0)) + jnp.log1p(jnp.abs(z))
            z = z + jnp.exp2(-jnp.abs(z))
            z = z + jnp.max(z, axis=1, keepdims=True) - jnp.mean(z, axis=0) + jnp.clip(z, -1.0, 1.0) + lax.erf(z)
            z = z + lax.broadcasted_iota(jnp.int32, (128, 128), 1).astype(F32)
            z = z + (z.astype(jnp.int32) << 2).astype(F32) + z.astype(jnp.float8_e4m3fn).astype(F32)
            z = z + jax.nn.softmax(z, axis=-1) + jnp.concatenate([z[:64], z[64:]], axis=0) + z.T + jnp.round(z)
            z = z + jnp.einsum("ij,jk->ik", z, z) + z.reshape(128, 128)
            z = z + jnp.argmax(z, axis=1, keepdims=True).astype(F32)
            c[...] = jnp.minimum(z, jnp.float32(3.0)) ** 2 + jnp.float32(0.1) * jnp.sum(z, axis=(0, 1))
        return call(body)(x, y)""",
    "views": """
        def body(a, b, c):
            c[...] = jnp.zeros_like(c)
            c[0:8, :] = a.at[8:16, :][...] + b[pl.ds(0, 8), pl.ds(0, 128)]
            c.at[pl.ds(16, 8)][...] = a[3:11, :]
            c[24, :] = b[5, :]
            c[32:40] += a[0:8] * jnp.int32(3).astype(F32)
        return call(body)(x, y)""",
    "pipeline": """
        def inner(a, b, c):
            c[...] = a[...] + b[...]
        def body(a, b, c):
            spec = pl.BlockSpec((32, 128), lambda i: (i, 0))
            pltpu.emit_pipeline(inner, grid=(4,), in_specs=[spec, spec], out_specs=[spec])(a, b, c)
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(body, in_specs=[anywhere, anywhere], out_specs=anywhere,
            out_shape=jax.ShapeDtypeStruct((128, 128), F32))(x, y)""",
    "around": """
        def body(a, b, c):
            c[...] = a[...] + b[...]
        x = jnp.pad(x, ((0, 0), (0, 0))).reshape(128, 128)
        out = jax.jit(call(body))(jnp.transpose(jnp.transpose(x)), y.astype(jnp.bfloat16).astype(F32))
        return out[:, :]""",
    "two": """
        def body(a, b, c):
            c[...] = a[...] * b[...]
        first = call(body)(x, y)
        return call(body)(first, jnp.ones((128, 128), F32))""",
    "partial": """
        def body(a, b, c, scale=1.0):
            c[...] = a[...] * scale + b[...]
        return call(functools.partial(body, scale=0.5))(x, y)""",
    "packed": """
        def body(a, b, c):
            both = pltpu.pack_elementwise([a[...], b[...]], packed_dtype=jnp.bfloat16)
            c[...] = pltpu.unpack_elementwise(both, index=1, packed_dtype=jnp.bfloat16, unpacked_dtype=F32)
        return call(body)(x, y)""",
    "precision": """
        def body(a, b, c):
            c[...] = lax.dot_general(a[...], b[...], (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST,
                preferred_element_type=F32)
        return call(body)(x, y)""",
}


def tensor(name):
    return {"name": name, "shape": [128, 128], "dtype": "float32"}


WORKLOAD = {"id": "w", "inputs": [tensor("x"), tensor("y")], "outputs": [tensor("z")]}


@pytest.fixture(autouse=True)
def chip():
    with mesh_of(CHIP):
        yield


def kernel(body):
    return trace(load_build(HEAD.format(body.strip())), {}, WORKLOAD)


@pytest.mark.parametrize("name", BODIES)
def test_what_is_read_is_what_was_written(name):
    traced = kernel(BODIES[name])
    artefact = codec.encode(traced)
    again = codec.decode(artefact)
    assert codec.encode(again).hash == artefact.hash
    fingerprints = [exported(WORKLOAD, j, "").data["fingerprint"] for j in (traced, again)]
    # names of a pipeline's steps, and rules of derivation, are no part of the data
    assert fingerprints[0] == fingerprints[1] or name in ("pipeline", "functions", "derived")


def test_the_hash_tells_kernels_and_constants_apart():
    hashes = {codec.encode(kernel(body)).hash for body in BODIES.values()}
    assert len(hashes) == len(BODIES)
    artefact = codec.encode(kernel(BODIES["prefetched"]))
    assert artefact.arrays
    other = dataclasses.replace(artefact, arrays=tuple(a + 1 for a in artefact.arrays))
    assert other.hash != artefact.hash


CALLBACKS = {
    "callback": "return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((128, 128), F32), x)",
    "print": "jax.debug.print('x')\n        return x",
    "interpreted": """
        def body(a, b, c):
            c[...] = a[...]
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((128, 128), F32), interpret=True)(x, y)""",
    "flags": """
        def body(a, b, c):
            c[...] = a[...]
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((128, 128), F32),
            compiler_params=pltpu.CompilerParams(flags={'xla_x': True}))(x, y)""",
    "printed within": """
        def body(a, b, c):
            pl.debug_print('x')
            c[...] = a[...]
        return call(body)(x, y)""",
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_what_no_kernel_needs_has_no_form(name):
    source = HEAD.format(CALLBACKS[name].strip())
    module = types.ModuleType("m")
    exec(compile(source, "m", "exec"), module.__dict__)
    with pytest.raises(codec.NoForm):
        codec.encode(trace(module.build, {}, WORKLOAD))


def places(data, path=()):
    """Every place in nested lists and dicts."""
    yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def changed(data, path, value):
    copy = json.loads(json.dumps(data))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


EVIL = (
    None,
    7,
    "os",
    [],
    {},
    {"o": "object", "v": {}},
    {"o": "CompilerParams", "v": {"flags": None}},
    {"e": ["Precision", "mro"]},
    {"dt": "object"},
    {"T": "dict", "x": [1], "c": []},
    {"cr": 99},
    {"a": 99},
    {"sa": [[1 << 60], {"dt": "float32"}, False, False, None]},
    {"t": [{"t": [{"t": []}]}]},
    {"f": "nonsense"},
    {"x": 1},
    -1,
    ["debug_callback", [], {}, [], []],
)


@pytest.mark.parametrize("name", ["blocks", "copies", "prefetched"])
def test_damaged_data_is_refused_or_reads_as_a_kernel(name):
    artefact = codec.encode(kernel(BODIES[name]))
    data = json.loads(artefact.text)
    found = [path for path in places(data) if path]
    rng = np.random.default_rng(1)
    for place in rng.integers(len(found), size=120):
        for evil in (EVIL[n] for n in rng.integers(len(EVIL), size=2)):
            text = json.dumps(changed(data, found[place], evil)).encode()
            try:
                codec.decode(codec.Artefact(text, artefact.arrays))
            except codec.NoForm:
                continue
    for text in (b"", b"[]", b"{}", b"\xff", b"null", b'{"J": {}}', b"[" * 100_000, b'{"J":' * 5000):
        with pytest.raises(codec.NoForm):
            codec.decode(codec.Artefact(text, ()))


def test_nothing_a_candidate_wrote_stays_but_names():
    artefact = codec.encode(trace(load_build(twins.HONEST), twins.PARAMS, gemm()))
    text = artefact.text.decode()
    assert "candidate" not in text and "Tiled" not in text and ".py" not in text


def gemm():
    shapes = {"a": [256, 512], "b": [512, 256], "c": [256, 256]}
    tensors = [{"name": n, "shape": s, "dtype": "bfloat16"} for n, s in shapes.items()]
    return {"id": "w", "inputs": tensors[:2], "outputs": tensors[2:]}


def test_a_variable_of_a_later_jax_is_written_too():
    """JAX 0.11.2 dropped quasi-dynamic types, and with them two attributes of each variable."""

    class Variable:
        aval = jax.core.ShapedArray((8, 128), np.dtype("float32"))

    assert codec._Writer()._binder(Variable())[0] == 0
