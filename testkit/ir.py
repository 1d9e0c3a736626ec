"""Helpers that import jax: tracing a source and reading facts from the module, in the process that calls them."""

from testkit.twins import PARAMS
from tilewright.workers.child.frames import Frame


def traced(source, params=PARAMS, m=256, n=256, k=512):
    from tilewright.workers.runners.pallas import check as pallas_check
    from tilewright.workers.runners.pallas import trace as pallas_trace

    def tensor(name, *shape):
        return {"name": name, "shape": list(shape), "dtype": "bfloat16"}

    workload = {"id": "w", "inputs": [tensor("a", m, k), tensor("b", k, n)], "outputs": [tensor("c", m, n)]}
    chip = {"kind": "TPU7x", "cores": 1}
    data = {"source": source, "params": params, "chip": chip, "workloads": [workload], "check": [], "lower": ["w"]}
    frames = []
    pallas_trace.run(Frame("pallas.trace", data), frames.append)
    if frames[-1].kind == "artefact":
        arrays = {f"constant/w/{number}": array for number, array in frames[-1].arrays.items()}
        job = Frame("pallas.check", data, arrays, {"w": frames[-1].blobs["text"]})
        pallas_check.run(job, frames.append)
    return frames[-1]


def facts(source, **options):
    from tilewright.workers.runners.mosaic.facts import module_facts

    frame = traced(source, **options)
    assert frame.kind == "traced", dict(frame.data)
    return module_facts(frame.blobs["module"])


def refusal(module):
    from tilewright.workers.runners.mosaic.facts import ModuleError, module_facts

    try:
        module_facts(module)
    except ModuleError as error:
        return str(error)
    return None


def scalars_followed(source, **options):
    """Products and scalar divisions of a kernel, as it was sent and as it is simulated."""
    from tilewright.workers.runners.mosaic.facts import module_facts
    from tilewright.workers.runners.mosaic.known_operands import bind

    module = traced(source, **options).blobs["module"]
    bound = bind(module, {})
    counts = []
    for each in (bound.original, bound.costed):
        (kernel,) = module_facts(each)["kernels"]
        counts.append((kernel["matmul_flops"], sum(_count(each, f"arith.{name}si") for name in ("div", "rem"))))
    return counts


def _count(module, name, text=""):
    from jax._src.interpreters import mlir

    from tilewright.workers.runners.mosaic import ir as read
    from tilewright.workers.runners.mosaic.ir import body_of

    with mlir.make_ir_context():
        calls = [op for op in read.walk(read.parse(module)) if read.is_kernel(op)]
        kernels = [body_of(call)[1] for call in calls]
        ops = [op for kernel in kernels for op in read.walk(kernel.module) if read.name_of(op) == name]
        return sum(text in str(op.operation.operands[0].type) for op in ops)


def _exported(function, *shapes):
    import jax
    from jax import export

    unchecked = [export.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    made = export.export(jax.jit(function), platforms=["tpu"], disabled_checks=unchecked)
    return made(*shapes).mlir_module_serialized


def side_by_side(shape, block):
    """(operand shapes, how many arrays are others) of a kernel that copies blocks of an array, standing alone."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    from tilewright.workers.runners.mosaic.isolated_kernels import isolated_kernels

    grid = tuple(size // part for size, part in zip(shape, block, strict=True))
    spec = pl.BlockSpec(block, lambda *place: place)

    def copy(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    def run(x):
        out = jax.ShapeDtypeStruct(shape, jnp.float32)
        return pl.pallas_call(copy, grid=grid, in_specs=[spec], out_specs=spec, out_shape=out)(x)

    alone = isolated_kernels(_exported(run, jax.ShapeDtypeStruct(shape, jnp.float32)))
    return [shape for shape, _ in alone.inputs], alone.restated


def walked(lengths, *, by_data=False):
    """Facts of a kernel that loops while its turns are within a length that the program computes from constants, from
    where a table says it is to begin.

    The table, one integer without an axis, starts at 1 and turns between 0 and 1 from one point of the grid to the
    next, or holds what an operand does that nobody knows (``by_data``).
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    from tilewright.workers.runners.mosaic.facts import module_facts
    from tilewright.workers.runners.mosaic.known_operands import bind

    def walk(lengths_ref, state_ref, data_ref, x_ref, o_ref):
        point = pl.program_id(0)
        begun = state_ref[...]

        def multiply(turn):
            o_ref[...] = jnp.dot(x_ref[...], x_ref[...], preferred_element_type=jnp.float32)
            return turn + 1

        jax.lax.while_loop(lambda turn: turn * 128 < lengths_ref[point], multiply, begun)
        state_ref[...] = data_ref[0] if by_data else 1 - begun

    block = pl.BlockSpec((128, 128), lambda *_: (0, 0))
    grid = pltpu.PrefetchScalarGridSpec(3, (len(lengths),), [block], block)

    def run(data, x):
        out = jax.ShapeDtypeStruct((128, 128), jnp.float32)
        called = pl.pallas_call(walk, grid_spec=grid, out_shape=out)
        return called(jnp.flip(jnp.array(lengths[::-1])), jnp.int32(1), data, x)

    module = _exported(run, jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((128, 128), jnp.float32))
    (kernel,) = module_facts(module, bind(module, {}))["kernels"]
    return kernel


def copied(lengths, *, begun=True):
    """Facts of a kernel that copies as many rows as a known table says, at every other point of its grid; the copies
    in what is simulated, and whether one there is of a size that nobody knows.

    Scratch turns between 0 and 1 from one point to the next, where it is ``begun``.
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    from tilewright.workers.runners.mosaic.facts import module_facts
    from tilewright.workers.runners.mosaic.known_operands import bind

    def copy(lengths_ref, x_ref, o_ref, turn_ref, flag):
        point = pl.program_id(0)
        if begun:
            pl.when(point == 0)(lambda: turn_ref.__setitem__(0, 0))

        @pl.when(turn_ref[0] == 0)
        def _():
            rows = pl.ds(0, lengths_ref[point])
            made = pltpu.make_async_copy(x_ref.at[rows], o_ref.at[rows], flag)
            made.start()
            made.wait()

        turn_ref[0] = 1 - turn_ref[0]

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    scratch = [pltpu.SMEM((1,), jnp.int32), pltpu.SemaphoreType.DMA]
    grid = pltpu.PrefetchScalarGridSpec(1, (len(lengths),), [anywhere], anywhere, scratch)
    out = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    run = pl.pallas_call(copy, grid_spec=grid, out_shape=out)
    module = _exported(run, jax.ShapeDtypeStruct((len(lengths),), jnp.int32), out)
    bound = bind(module, {0: lengths})
    (kernel,) = module_facts(module, bound)["kernels"]
    return kernel, _count(bound.costed, "tpu.enqueue_dma"), _count(bound.costed, "tpu.enqueue_dma", "?") > 0
