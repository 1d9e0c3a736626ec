"""Compiles one reproduction for a chip that is not there, with libtpu's simulator writing its dumps.

Run as ``python child.py SPEC.json`` in an empty folder with folders ``llo`` and ``prof``, LIBTPU_INIT_ARGS set by the
parent. ``SPEC``: ``source`` (a Python file), ``function`` and ``arguments`` (``function(**arguments)`` returns a
function and its inputs; without them the file has ``create_inputs()`` and ``workload(*inputs)``), ``config`` (changes
of the file's CONFIG), ``paths`` (to import from), ``topology``, ``kind``, ``root`` (of this repository), ``mode``:
nothing (the whole module is compiled), ``around`` (what XLA runs around the kernels is listed) or ``apart`` (the
kernels alone are compiled, with ``steps`` cut to so many points of their grids, and ``tables`` saying what integers
they are given: for the number of an operand among those of all kernels its values).
Inputs that are concrete arrays of int32 are known operands, and so are constants of the program.
"""

import json
import re
import sys
import types
from pathlib import Path
from typing import Any


def main(spec: dict[str, Any]) -> None:
    sys.path[:0] = [spec["root"], *spec["paths"]]
    import dataclasses

    import jax
    import numpy as np
    from jax.sharding import AbstractDevice, AbstractMesh

    from experiments.studies.tpu.truth.cut import cut_grids, emptied

    device = AbstractDevice(device_kind=spec["kind"], num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        function, inputs = reproduction(spec)
        leaves, tree = jax.tree.flatten(inputs)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        known = {
            number: leaf
            for number, leaf in enumerate(leaves)
            if not isinstance(leaf, jax.ShapeDtypeStruct) and leaf.dtype == np.int32
        }
        lowered = export(lambda *flat: function(*jax.tree.unflatten(tree, flat)), shapes)
        bound = bind(lowered.mlir_module_serialized, known)
        facts = {"dots": dots(bound)}
        if spec.get("mode") == "apart":
            lowered, bound, shapes = alone(lowered, bound, spec)
            if "steps" in spec:
                bound, facts["ratios"] = cut_grids(bound, spec["steps"])
                lowered = dataclasses.replace(lowered, mlir_module_serialized=bound)
        facts["products"] = products(bound)
        compiled = compile_for(
            spec, lowered, emptied(bound) if spec.get("mode") == "around" else bound, shapes
        )
    hlo = text_of(compiled)
    if spec.get("mode") == "around":
        from experiments.studies.tpu.truth.xla_operations import operations_around

        facts["around"] = [vars(operation) for operation in operations_around(hlo)]
    memory = compiled.memory_analysis()
    facts |= {"temporary_bytes": int(memory.temp_size_in_bytes), "kernels": kernels_of(hlo)}
    Path("compiled.json").write_text(json.dumps(facts))


def text_of(compiled: Any) -> str:
    """The optimised module; as libtpu dumped it where jax cannot read it (work that goes to the sparse cores)."""
    import jax

    try:
        return str(compiled.as_text())
    except jax.errors.JaxRuntimeError:
        (dumped,) = Path("llo").glob("*TLP-hlo.txt")
        return dumped.read_text(errors="replace")


def kernels_of(hlo: str) -> list[str]:
    """Names of the kernels of a compiled module, ordered by the first of the module's operands that they take."""
    entry = hlo[hlo.index("\nENTRY ") :]
    lines = re.findall(r"^  (?:ROOT )?%?([\w.-]+) = .+? ([a-z][\w-]*)\((.*)$", entry, re.MULTILINE)
    first: dict[str, int] = {}
    kernels = []
    for name, opcode, rest in lines:
        taken = re.findall(r"%([\w.-]+)", rest.split("), ", 1)[0])
        if opcode == "parameter":
            first[name] = int(rest.split(")")[0])
        else:
            first[name] = min((first[each] for each in taken if each in first), default=len(lines))
        if 'custom_call_target="tpu_custom_call"' in rest:
            kernels.append(name)
    return sorted(kernels, key=lambda name: first[name])


def products(module: bytes) -> int | None:
    """FLOP of the kernels' matrix products, by their own control flow; None where it cannot be followed."""
    from tilewright.workers.runners.mosaic.facts import module_facts

    counts = [kernel["matmul_flops"] for kernel in module_facts(module)["kernels"]]
    return None if None in counts else sum(counts)


def dots(module: bytes) -> int:
    """FLOP of XLA's own matrix products around the kernels."""
    import math

    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    from tilewright.workers.runners.mosaic import ir as read

    total = 0
    with mlir.make_ir_context(), ir.Location.unknown():
        whole = read.inlined_module(module)
        for op in read.walk(read.main_function(whole)):
            if read.name_of(op) == "stablehlo.dot_general":
                numbers: Any = stablehlo.DotDimensionNumbers(op.operation.attributes["dot_dimension_numbers"])
                lhs = ir.RankedTensorType(op.operation.operands[0].type).shape
                result = ir.RankedTensorType(op.operation.results[0].type).shape
                depth = math.prod(lhs[axis] for axis in numbers.lhs_contracting_dimensions)
                total += 2 * depth * math.prod(result)
    return total


def alone(exported: Any, module: bytes, spec: dict[str, Any]) -> tuple[Any, bytes, list[Any]]:
    """The module's kernels on operands of their own: how to call them, their module, their operands' shapes."""
    import dataclasses

    import jax
    import numpy as np

    from tilewright.workers.runners.mosaic.isolated_kernels import isolated_kernels

    kernels = isolated_kernels(module)
    if "tables" in spec:
        known = {int(number): np.array(values, np.int32) for number, values in spec["tables"].items()}
        kernels = dataclasses.replace(kernels, module=bind(kernels.module, known))
    inputs, outputs = (
        [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kinds]
        for kinds in (kernels.inputs, kernels.outputs)
    )
    replaced = dataclasses.replace(
        exported,
        mlir_module_serialized=kernels.module,
        in_tree=jax.tree.structure((tuple(inputs), {})),
        in_avals=tuple(jax.core.ShapedArray(s.shape, s.dtype) for s in inputs),
        out_tree=jax.tree.structure(tuple(outputs)),
        out_avals=tuple(jax.core.ShapedArray(s.shape, s.dtype) for s in outputs),
        _in_named_shardings=(None,) * len(inputs),
        _out_named_shardings=(None,) * len(outputs),
        in_shardings_hlo=(None,) * len(inputs),
        out_shardings_hlo=(None,) * len(outputs),
        module_kept_var_idx=tuple(range(len(inputs))),
    )
    return replaced, kernels.module, inputs


def reproduction(spec: dict[str, Any]) -> tuple[Any, Any]:
    """The function to compile and its inputs, as shapes or (integers that decide the work) values."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.pallas import tpu as pltpu

    from tilewright.workers.intake.pallas.original import add_old_names

    if not hasattr(pltpu, "repeat"):  # removed from jax; what it did
        pltpu.repeat = lambda x, repeats, axis: jnp.concatenate([x] * repeats, axis)
    add_old_names()
    module = types.ModuleType("reproduction")
    sys.modules["reproduction"] = module
    module.__file__ = spec["source"]
    exec(compile(Path(spec["source"]).read_text(), spec["source"], "exec"), module.__dict__)
    if "function" in spec:
        function, inputs = getattr(module, spec["function"])(**spec["arguments"])
        return function, list(inputs)
    module.CONFIG.update(spec.get("config", {}))
    inputs = jax.eval_shape(module.create_inputs)
    if any(leaf.dtype == jnp.int32 for leaf in jax.tree.leaves(inputs)):
        made = jax.device_get(module.create_inputs())
        inputs = jax.tree.map(
            lambda leaf, value: np.asarray(value) if leaf.dtype == jnp.int32 else leaf, inputs, made
        )
    return module.workload, list(inputs)


def export(function: Any, shapes: list[Any]) -> Any:
    import jax
    from jax import export as exporting

    unchecked = [exporting.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    jitted = jax.jit(function, keep_unused=True)
    return exporting.export(jitted, platforms=["tpu"], disabled_checks=unchecked)(*shapes)


def bind(module: bytes, known: dict[int, Any]) -> bytes:
    """The module with known tables written by its kernels."""
    from tilewright.workers.runners.mosaic.known_operands import bind as bound

    return bound(module, known).costed


def compile_for(spec: dict[str, Any], exported: Any, module: bytes, shapes: list[Any]) -> Any:
    import dataclasses

    import jax
    from jax.experimental import topologies
    from jax.experimental.layout import Format, Layout
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    device = topologies.get_topology_desc(platform="tpu", topology_name=spec["topology"]).devices[0]
    layout: Any = NamedSharding(Mesh([device], ("x",)), PartitionSpec())
    if spec.get("layout", "auto") == "auto":
        layout = Format(Layout.AUTO, layout)
    replaced = dataclasses.replace(exported, mlir_module_serialized=module)
    jitted = jax.jit(
        lambda *operands: replaced.call(*operands), in_shardings=(layout,) * len(shapes), out_shardings=layout
    )
    return jitted.trace(*shapes).lower(lowering_platforms=("tpu",)).compile()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
