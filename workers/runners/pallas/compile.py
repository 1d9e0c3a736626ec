"""Compile child: trusted code only. Turns exported modules into libtpu's dumps for the parent to read.

Job data: ``topology`` (such as ``tpu7x:1x1x1``), ``workloads`` [{id, inputs, outputs, calling_convention, known}],
where ``known`` are values of operands by number (see ``workers.runners.mosaic.known_operands``),
``facts_only`` ids that are described but not compiled, ``alone`` (whether kernels are compiled without what is around
them), ``delays`` (whether conditional blocks get them, see ``workers.runners.mosaic.branch_delays``); blobs: module by
workload id. The dump flags are in LIBTPU_INIT_ARGS and name folders ``llo`` and ``prof`` of the working directory.
Answers: one ``facts`` per workload (see ``workers.runners.mosaic.facts``), then one ``compiled`` per workload with
the folder that holds its dumps, or one ``error``.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.experimental import topologies
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tilewright.workers.child.frames import Frame, dtype_named
from tilewright.workers.runners.failures import describe
from tilewright.workers.runners.mosaic.branch_delays import with_delays
from tilewright.workers.runners.mosaic.facts import module_facts
from tilewright.workers.runners.mosaic.isolated_kernels import IsolatedKernels, isolated_kernels, restated
from tilewright.workers.runners.mosaic.known_operands import bind

Answer = Callable[[Frame], None]


def run(job: Frame, answer: Answer) -> None:
    """Serve one compile job; failures of the compiler become an ``error`` frame."""
    phase = "read"
    modules: dict[str, bytes] = {}
    try:
        for workload in job.data["workloads"]:
            module = job.blobs[workload["id"]]
            known = {int(number): values for number, values in workload.get("known", {}).items()}
            bound = bind(module, known)
            modules[workload["id"]] = bound.costed
            facts = module_facts(module, bound)
            answer(Frame("facts", {"workload": workload["id"], **facts}))
        if all(workload["id"] in job.data["facts_only"] for workload in job.data["workloads"]):
            return
        phase = "topology"
        description = topologies.get_topology_desc(platform="tpu", topology_name=job.data["topology"])
        phase = "compile"
        for number, workload in enumerate(job.data["workloads"]):
            if workload["id"] in job.data["facts_only"]:
                continue
            module = modules[workload["id"]]
            if job.data["delays"]:
                module = with_delays(module)
            alone = isolated_kernels(module) if job.data["alone"] else restated(module)
            compiled = _compile(workload, module, alone, description.devices[0])
            memory = compiled.memory_analysis()
            # the next kernel of the same name would overwrite the dumps
            kept = Path(f"workload{number}")
            for name in ("llo", "prof"):
                (kept / name).mkdir(parents=True)
                for path in Path(name).iterdir():
                    os.rename(path, kept / name / path.name)
            data = {"workload": workload["id"], "folder": str(kept), "temporary_bytes": int(memory.temp_size_in_bytes)}
            answer(Frame("compiled", data))
    except Exception as error:  # noqa: BLE001 - compiler errors come in many classes
        answer(Frame("error", {"phase": phase, **describe(error)}))


def _compile(workload: Mapping[str, Any], module: bytes, alone: IsolatedKernels | None, device: Any) -> Any:
    """AOT-compile for a device that is not there.

    AUTO layouts: with fixed ones XLA may insert relayout copies, which cost time and which libtpu's
    simulator cannot model. Kernels whose blocks stride twice are compiled alone
    (see ``workers.runners.mosaic.isolated_kernels``).
    """
    described = workload
    if alone is not None:
        module, kinds = alone.module, {"inputs": alone.inputs, "outputs": alone.outputs}
        tensors = {name: [{"shape": s, "dtype": d} for s, d in each] for name, each in kinds.items()}
        described = {**workload, **tensors}
    inputs = [jax.ShapeDtypeStruct(tuple(t["shape"]), dtype_named(t["dtype"])) for t in described["inputs"]]
    sharding = NamedSharding(Mesh([device], ("x",)), PartitionSpec())
    layout = Format(Layout.AUTO, sharding)
    exported = _as_exported(described, module, inputs)
    jitted = jax.jit(
        lambda *operands: exported.call(*operands), in_shardings=(layout,) * len(inputs), out_shardings=layout
    )
    return jitted.trace(*inputs).lower(lowering_platforms=("tpu",)).compile()


def _as_exported(workload: Mapping[str, Any], module: bytes, inputs: list[Any]) -> export.Exported:
    """Wrap the trace child's bytes; every type and shape comes from the job, none from the bytes."""
    outputs = [jax.ShapeDtypeStruct(tuple(t["shape"]), dtype_named(t["dtype"])) for t in workload["outputs"]]
    in_avals = tuple(jax.core.ShapedArray(s.shape, s.dtype) for s in inputs)
    out_avals = tuple(jax.core.ShapedArray(s.shape, s.dtype) for s in outputs)
    return export.Exported(
        fun_name="candidate",
        in_tree=jax.tree.structure((tuple(inputs), {})),
        in_avals=in_avals,
        out_tree=jax.tree.structure(tuple(outputs)),
        out_avals=out_avals,
        _has_named_shardings=False,
        _in_named_shardings=(None,) * len(inputs),
        _out_named_shardings=(None,) * len(outputs),
        in_shardings_hlo=(None,) * len(inputs),
        out_shardings_hlo=(None,) * len(outputs),
        nr_devices=1,
        platforms=("tpu",),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(),
        mlir_module_serialized=module,
        calling_convention_version=int(workload["calling_convention"]),
        module_kept_var_idx=tuple(range(len(inputs))),
        uses_global_constants=False,
        _get_vjp=None,
    )
