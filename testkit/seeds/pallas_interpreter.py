"""Pallas seeds in JAX's interpreter of a TPU, and what gates read of them."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import GateReading
from tilewright.fitness.gates import ill_formed, read_gates
from tilewright.seeds.operator import Arrays, Operator, Workload

STRICT = pltpu.InterpretParams(out_of_bounds_reads="raise", uninitialized_memory="nan")


def edited(source: str, old: str, new: str) -> str:
    """A wrong twin."""
    assert old in source
    return source.replace(old, new)


def interpreted(source: str, params: Mapping[str, Any], operands: Sequence[Any], how: Any = STRICT) -> np.ndarray:
    """A kernel's answer on the CPU."""
    # pipelines inside a kernel lay out their buffers for the device at hand
    device = jax.sharding.AbstractDevice(device_kind="TPU7x", num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), pltpu.force_tpu_interpret_mode(how):
        return np.asarray(_built(source, tuple(sorted(params.items())))(*operands))


@functools.lru_cache(maxsize=8)
def _built(source: str, params: tuple[tuple[str, Any], ...]) -> Any:
    """Traced once for all inputs of a shape."""
    module: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(source, "kernel.py", "exec"), module)
    return jax.jit(module["build"](dict(params)))


def readings(
    operator: Operator,
    workload: Workload,
    source: str,
    params: Mapping[str, Any],
    kind: str,
    *,
    inputs: Arrays | None = None,
    how: Any = STRICT,
) -> dict[str, GateReading]:
    """Gates by name on one draw of inputs, of a kernel at its defaults with ``params``, which must be legal."""
    inputs = inputs or operator.make_inputs(workload, 5, kind)
    space = Space.from_source(source, [{**operator.constants, **workload.dims}])
    point = {**space.defaults, **params}
    assert space.violations(point) == []
    (output,) = operator.outputs(workload)
    operands = [inputs[spec.name] for spec in operator.inputs(workload)]
    outputs = {output.name: interpreted(source, point, operands, how)}
    assert ill_formed(outputs, (output,)) is None
    references = operator.oracle(workload, inputs)
    return {r.gate: r for r in read_gates(operator.gates, outputs, references, kind)}
