"""What a taken function is for the compiler of a modelled target: whether its time can be told, and what it computes
beside its kernels.

The seed is lowered here as every candidate is, so that what stands against it is said before a campaign begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.fitness import structure
from tilewright.workers.intake.operator import Operand, known_values
from tilewright.workers.runners.failures import describe


def beside_and_objections(
    chip: Any,
    build: Any,
    params: Mapping[str, Any],
    operands: Sequence[Operand],
    results: Sequence[Sequence[Any]],
    shapes: Sequence[Mapping[str, int]],
) -> tuple[frozenset[str], list[str]]:
    """Operations beside the kernels of the function at these shapes, and why its time cannot be told, if it cannot."""
    from tilewright.workers.runners.known import bind
    from tilewright.workers.runners.mosaic import module_facts
    from tilewright.workers.runners.pallas_check import exported
    from tilewright.workers.runners.pallas_trace import mesh_of, trace

    beside: frozenset[str] = frozenset()
    found = []
    for dims in shapes:
        names = [o.name for o in operands]
        specs = [{"name": o.name, "shape": list(o.sizes(dims)), "dtype": o.dtype} for o in operands]
        tensors = [jax.ShapeDtypeStruct(o.sizes(dims), jnp.dtype(o.dtype)) for o in operands]
        try:
            with mesh_of({"kind": chip.device_kind, "cores": chip.cores}):
                made = jax.tree.leaves(jax.eval_shape(build(dict(params)), *tensors))
                outputs = [
                    {"name": f"o{n}", "shape": list(m.shape), "dtype": m.dtype.name}
                    for n, m in enumerate(made)
                ]
                workload = {"id": "seed", "inputs": specs, "outputs": outputs}
                module = exported(workload, trace(build, params, workload), "seed").blobs["module"]
            known = {names.index(n): np.ravel(v) for n, v in known_values(operands, dims).items()}
            facts = structure.ModuleFacts.from_data(module_facts(module, bind(module, known)))
        except Exception as error:  # noqa: BLE001 - whatever lowering raises
            said = describe(error)
            found.append(f"it does not lower for {chip.name}: {said['type']}: {said['message']}"[:400])
            continue
        beside |= structure.work_beside(facts)
        reason = structure.objection(facts, names, [row[0] for row in results], structure.work_beside(facts))
        if reason is not None:
            found.append(f"no time can be modelled for {chip.name}: {reason}")
    return beside, list(dict.fromkeys(found))
