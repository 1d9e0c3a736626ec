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
from jax._src.core import jaxprs_in_params
from jax._src.pallas.mosaic import lowering
from jax._src.pallas.mosaic.core import CoreType

from tilewright.fitness.tpu import structure
from tilewright.workers.intake.operator import Operand, known_values
from tilewright.workers.runners.failures import describe


def check_blocks(jaxpr: Any) -> None:
    """Raises ValueError where a kernel's blocks are none that the compiler takes."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            mapping, told = equation.params["grid_mapping"], equation.params["jaxpr"].debug_info
            lowering._check_block_mappings(mapping.block_mappings, None, told, CoreType.TC)  # type: ignore[arg-type]
        else:
            for inner in jaxprs_in_params(equation.params):
                check_blocks(inner)


def lowered(
    chip: Any,
    build: Any,
    params: Mapping[str, Any],
    operands: Sequence[Operand],
    results: Sequence[str],
    work: Mapping[str, int],
    shapes: Mapping[str, Mapping[str, int]],
) -> tuple[frozenset[str], dict[str, int], list[str]]:
    """Operations beside the kernels of the function at these shapes; FLOP of the products that any candidate must do,
    by shape; and why its time cannot be told, if it cannot.

    ``work``: FLOP of the products in the reference, which may do more than it must: all of a masked square, every
    matrix for every row. What the function itself does is enough.
    """
    from tilewright.workers.runners.mosaic.facts import module_facts
    from tilewright.workers.runners.mosaic.known_operands import bind
    from tilewright.workers.runners.pallas.check import exported
    from tilewright.workers.runners.pallas.jaxpr_codec import decode, encode
    from tilewright.workers.runners.pallas.trace import mesh_of, trace

    beside: frozenset[str] = frozenset()
    found, needed = [], {}
    for label, dims in shapes.items():
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
                traced = decode(encode(trace(build, params, workload)))  # as a candidate goes to the compiler
                module = exported(workload, traced, "seed").blobs["module"]
            known = {names.index(n): np.ravel(v) for n, v in known_values(operands, dims).items()}
            facts = structure.ModuleFacts.from_data(module_facts(module, bind(module, known)))
        except Exception as error:  # noqa: BLE001 - whatever lowering raises
            said = describe(error)
            found.append(f"it does not lower for {chip.name}: {said['type']}: {said['message']}"[:400])
            continue
        beside |= structure.work_beside(facts)
        done, asked = facts.matmul_flops, work.get(label, 0)
        needed[label] = asked if done is None else min(asked, done)
        reason = structure.objection(
            facts, names, results, structure.work_beside(facts)
        ) or structure.missing_work(facts, needed[label])
        if reason is not None:
            found.append(f"no time can be modelled for {chip.name}: {reason}")
    return beside, needed, list(dict.fromkeys(found))
