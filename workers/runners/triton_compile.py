"""Compiles Triton and Gluon candidates on a CPU, ahead of the device that will measure them.

``launch`` runs on tensors without memory (torch's meta device) under a driver that knows the target and no device;
each kernel it starts is compiled into the shared cache and not run. The device's child, which calls ``launch`` with
real tensors, then finds every kernel compiled.

Job ``compile``: ``source``, ``params``, ``workloads`` [{id, inputs, outputs}]. Answers: one ``compiled``
{launches: {workload: [{kernel, grid, scalars}]}, kernels: {key: {name, shared, warps}}} or one ``error``.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver as runtime_driver
from triton.runtime.jit import JITFunction

from tilewright.workers.child.frames import Frame
from tilewright.workers.runners.failures import error_frame
from tilewright.workers.runners.triton_common import Answer, checked_results, load_module, torch_dtype
from tilewright.workers.runners.triton_guard import LaunchGuard


class AheadDriver:
    """As much of a Triton driver as compiling asks for. ``capability`` is 90 for compute capability 9.0."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def map_python_to_cpp_type(self, kind: str) -> str:
        return nvidia.ty_to_cpp(kind)


class Recorder:
    """Stands in for ``JITFunction.run``: compiles, notes the launch, and runs nothing."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.kernels: dict[str, dict[str, Any]] = {}
        self._run = JITFunction.run

    def install(self) -> None:
        recorder = self

        def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            compiled = recorder._run(kernel, *args, grid=grid, warmup=True, **kwargs)
            named = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
            size = grid(named) if callable(grid) else grid
            recorder._note(compiled, size, [a for a in args if isinstance(a, bool | int | float)])
            return compiled

        JITFunction.run = run

    def clear(self) -> None:
        self.launches, self.kernels = [], {}

    def _note(self, compiled: Any, grid: Any, scalars: list[Any]) -> None:
        key = fingerprint(compiled.asm["ptx"])
        metadata = compiled.metadata
        self.kernels[key] = {
            "name": str(metadata.name),
            "shared": int(metadata.shared),
            "warps": int(metadata.num_warps),
        }
        self.launches.append({"kernel": key, "grid": [int(n) for n in grid], "scalars": scalars})
        _prepare_launcher(compiled)


class Runner:
    """Serves ``compile`` jobs. ``config``: ``capability``, ``smem_bytes``."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._smem_bytes = int(config["smem_bytes"])
        runtime_driver.set_active(AheadDriver(int(config["capability"])))
        torch.set_default_device("meta")
        self._recorder = Recorder()
        self._recorder.install()
        self.hello = {"torch": torch.__version__, "triton": triton.__version__}

    def run(self, job: Frame, answer: Answer) -> None:
        """Serve one job; failures of the candidate become an ``error`` frame."""
        phase = "import"
        self._recorder.clear()
        try:
            module = load_module(job.data["source"])
            phase = "compile"
            launches = {}
            for workload in job.data["workloads"]:
                self._recorder.launches = []
                tensors = {
                    spec["name"]: torch.empty(spec["shape"], dtype=torch_dtype(spec["dtype"]))
                    for spec in workload["inputs"]
                }
                with LaunchGuard():
                    made = module.launch(tensors, dict(job.data["params"]))
                checked_results(made, workload["outputs"])
                launches[workload["id"]] = self._recorder.launches
            self._refuse_oversize()
            answer(Frame("compiled", {"launches": launches, "kernels": self._recorder.kernels}))
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its answer
            answer(error_frame(phase, error))

    def _refuse_oversize(self) -> None:
        for kernel in self._recorder.kernels.values():
            if kernel["shared"] > self._smem_bytes:
                raise MemoryError(
                    f"out of resource: {kernel['name']} needs {kernel['shared']} bytes of shared memory, "
                    f"a program may use {self._smem_bytes}"
                )


def fingerprint(ptx: str) -> str:
    """Identity of compiled code: 16 hex digits over its text without comments and debug sections."""
    lines = []
    for line in ptx.splitlines():
        if line.lstrip().startswith(".section") and ".debug" in line:
            break
        bare = line.split("//")[0].strip()
        if bare and not bare.startswith((".loc", ".file")):
            lines.append(bare)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _prepare_launcher(compiled: Any) -> None:
    """Build the host stub as well, where the driver's library is there to link it with."""
    try:
        nvidia.library_dirs()
    except (AssertionError, OSError, subprocess.SubprocessError):
        return
    try:
        nvidia.CudaLauncher(compiled.src, compiled.metadata)
    except (AttributeError, OSError, RuntimeError, subprocess.SubprocessError):
        return  # the device's child builds it again and says what is wrong
