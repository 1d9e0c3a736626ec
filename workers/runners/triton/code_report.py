"""Compiles Triton and Gluon candidates for an architecture this machine lacks, and hands over the code it came to.

``launch`` runs on tensors without memory (torch's meta device) under a driver that knows the target and no device, for
AMD and NVIDIA targets alike; each kernel it starts is compiled into the shared cache and not run.

Job ``compile``: ``source``, ``params``, ``workloads`` [{id, inputs, outputs}], ``target`` {backend, arch, lanes,
smem_bytes}. Answers: a ``code`` frame per kernel {key, name, shared, warps, usage} with the assembler's text as bytes
``text``, then one ``compiled`` {launches: {workload: [{kernel, grid, scalars}]}, kernels: {key: {name, shared,
warps}}}; or one ``error``. One child serves all targets.
"""

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver as runtime_driver
from triton.runtime.jit import JITFunction

from tilewright.fitness.dialect import is_cuda
from tilewright.library.torch_record import TargetDriver
from tilewright.workers.child.frames import Frame
from tilewright.workers.runners import cuda
from tilewright.workers.runners.failures import error_frame
from tilewright.workers.runners.triton.launch_guard import LaunchGuard
from tilewright.workers.runners.triton.tensors import Answer, checked_results, load_module, torch_dtype

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

FOREIGN: Mapping[str, frozenset[str]] = {
    "cuda": frozenset({"matrix_instr_nonkdim", "waves_per_eu", "kpack", "schedule_hint"}),
    "hip": frozenset({"maxnreg", "launch_pdl"}),
}
"""Options of a launch that mean something to the other vendor's compiler only, and are left out for this one."""

TOOL_SECONDS = 60.0


class Compiler:
    """Stands in for ``JITFunction.run``: compiles, notes launch and code, and runs nothing."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.kernels: dict[str, dict[str, Any]] = {}
        self.code: dict[str, Any] = {}
        self.foreign: frozenset[str] = frozenset()
        self._run = JITFunction.run

    def install(self) -> None:
        compiler = self

        def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            kept = {name: value for name, value in options.items() if name not in compiler.foreign}
            compiled = compiler._run(kernel, *args, grid=grid, warmup=True, **kept)
            named = {**dict(zip(kernel.arg_names, args, strict=False)), **kept}
            size = grid(named) if callable(grid) else grid
            compiler._note(compiled, size, [a for a in args if isinstance(a, bool | int | float)])
            return compiled

        JITFunction.run = run

    def clear(self) -> None:
        self.launches, self.kernels, self.code = [], {}, {}

    def _note(self, compiled: Any, grid: Any, scalars: list[Any]) -> None:
        text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
        key = fingerprint(text.replace(";", "//") if "amdgcn" in compiled.asm else text)
        metadata = compiled.metadata
        self.kernels[key] = {
            "name": str(metadata.name),
            "shared": int(metadata.shared),
            "warps": int(metadata.num_warps),
        }
        self.code[key] = compiled
        self.launches.append({"kernel": key, "grid": [int(n) for n in grid], "scalars": scalars})


class Runner:
    """Serves ``compile`` jobs."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._driver = TargetDriver(GPUTarget("cuda", 100, 32))
        runtime_driver.set_active(self._driver)
        torch.set_default_device("meta")
        self._compiler = Compiler()
        self._compiler.install()
        self.hello = {"torch": torch.__version__, "triton": triton.__version__}

    def run(self, job: Frame, answer: Answer) -> None:
        """Serve one job; failures of the candidate become an ``error`` frame."""
        target = job.data["target"]
        if is_cuda(job.data["source"]):
            self._cuda(job, answer)
            return
        self._driver.target = GPUTarget(target["backend"], target["arch"], int(target["lanes"]))
        self._compiler.foreign = FOREIGN[target["backend"]]
        self._compiler.clear()
        phase = "import"
        try:
            module = load_module(job.data["source"])
            phase = "compile"
            launches = {w["id"]: self._launches(module, job, w) for w in job.data["workloads"]}
            self._refuse_oversize(int(target["smem_bytes"]))
            last = Frame("compiled", {"launches": launches, "kernels": self._compiler.kernels})
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its answer
            last = error_frame(phase, error)
        # the code goes first, so that ``compiled`` or ``error`` ends the job
        for key, compiled in self._compiler.code.items():
            text, usage = code_of(compiled.asm, key)
            data = {"key": key, **self._compiler.kernels[key], "usage": usage}
            answer(Frame("code", data, arrays={"text": np.frombuffer(text.encode(), np.uint8)}))
        answer(last)

    def _cuda(self, job: Frame, answer: Answer) -> None:
        """A CUDA C++ candidate: its plans, whose code the parent reads by itself."""
        data, target = job.data, job.data["target"]
        try:
            if target["backend"] != "cuda":
                raise ValueError("CUDA C++ compiles for NVIDIA targets alone")
            limits = int(target["arch"]), int(target["smem_bytes"])
            plans, notes = cuda.plans_of(data["source"], data["params"], data["workloads"], *limits)
            blobs = {name: plan.to_bytes() for name, plan in plans.items()}
            answer(Frame("compiled", {"notes": notes}, blobs=blobs))
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its answer
            answer(error_frame("compile", error))

    def _launches(self, module: Any, job: Frame, workload: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._compiler.launches = []
        tensors = {
            spec["name"]: torch.empty(spec["shape"], dtype=torch_dtype(spec["dtype"])) for spec in workload["inputs"]
        }
        with LaunchGuard():
            made = module.launch(tensors, dict(job.data["params"]))
        checked_results(made, workload["outputs"])
        return self._compiler.launches

    def _refuse_oversize(self, smem_bytes: int) -> None:
        for kernel in self._compiler.kernels.values():
            if kernel["shared"] > smem_bytes:
                raise MemoryError(
                    f"out of resource: {kernel['name']} needs {kernel['shared']} bytes of shared memory, "
                    f"a program may use {smem_bytes}"
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


def code_of(asm: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Assembler's text and, for NVIDIA, what the binary uses. Raises OSError, CalledProcessError."""
    if "amdgcn" in asm:
        return asm["amdgcn"], ""
    path = Path(f"{key}.cubin").absolute()
    path.write_bytes(asm["cubin"])
    return _run_tool("nvdisasm", "-c", str(path)), _run_tool("cuobjdump", "--dump-resource-usage", str(path))


def _run_tool(tool: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(TOOLS / tool), *arguments], capture_output=True, text=True, check=True, timeout=TOOL_SECONDS
    )
    return done.stdout


def run(job: Frame, answer: Answer) -> None:
    """Serve one job, in a process of its own."""
    Runner(job.data["runner_config"]).run(job, answer)
