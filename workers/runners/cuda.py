"""CUDA C++ candidates in a compiling child: ``launch`` is asked what to launch, and NVRTC compiles the device code.

The module's Python is plain arithmetic on shapes; it meets no torch, no device and no compiler.
"""

from collections.abc import Mapping
from typing import Any

from tilewright.library.cuda_record import recorded
from tilewright.library.plans.format import Launch, NotRecorded, Plan, Tensor
from tilewright.workers.runners import bare_module


def plans_of(
    source: str, params: Mapping[str, Any], workloads: list[dict[str, Any]], capability: int, smem_bytes: int
) -> tuple[dict[str, Plan], list[str]]:
    """Plans by workload {id, inputs, outputs}, and the compiler's warnings.

    Raises NotRecorded, PlanError, CompileError, NoCompiler, MemoryError, and what ``launch`` raises.
    """
    module = bare_module.execute(source, "candidate", "candidate.py").__dict__
    found: dict[str, Plan] = {}
    notes: dict[str, None] = {}
    for workload in workloads:
        inputs, outputs = (_tensors(workload[part]) for part in ("inputs", "outputs"))
        plan, noted = recorded(module, params, inputs, outputs, capability)
        again, _ = recorded(module, params, inputs, outputs, capability)
        if plan.digest != again.digest:
            raise NotRecorded("launch says something else when it is called again with the same shapes")
        for step in plan.steps:
            if isinstance(step, Launch) and step.shared > smem_bytes:
                raise MemoryError(
                    f"out of resource: {step.symbol} needs {step.shared} bytes of shared memory, "
                    f"a block may use {smem_bytes}"
                )
        found[workload["id"]] = plan
        notes.update(dict.fromkeys(noted))
    return found, list(notes)


def _tensors(specs: list[dict[str, Any]]) -> list[Tensor]:
    return [Tensor(s["name"], s["dtype"], tuple(s["shape"])) for s in specs]
