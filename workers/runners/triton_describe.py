"""Compiles Triton and Gluon candidates for an architecture this machine lacks, and hands over the code it came to.

As ``triton_compile``, for AMD and NVIDIA targets alike: ``launch`` runs on tensors without memory, every kernel it
starts is compiled and not run. Job ``compile``: as there, with ``target`` {backend, arch, lanes, smem_bytes}, and with
one more answer before ``compiled``: a ``code`` frame per kernel {key, name, shared, warps, usage} with the assembler's
text as bytes ``text``. One child serves all targets.
"""

from __future__ import annotations

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

from tilewright.workers.child.frames import Frame
from tilewright.workers.runners import triton_compile
from tilewright.workers.runners.triton_common import Answer

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

FOREIGN: Mapping[str, frozenset[str]] = {
    "cuda": frozenset({"matrix_instr_nonkdim", "waves_per_eu", "kpack", "schedule_hint"}),
    "hip": frozenset({"maxnreg", "launch_pdl"}),
}
"""Options of a launch that mean something to the other vendor's compiler only, and are left out for this one."""

TOOL_SECONDS = 60.0


class CrossDriver(triton_compile.AheadDriver):
    """The same driver without a device, for the target of the job at hand."""

    def __init__(self) -> None:
        self.aim(GPUTarget("cuda", 90, 32))

    def aim(self, target: GPUTarget) -> None:
        self._target = target


class CodeRecorder(triton_compile.Recorder):
    """Keeps the code of every kernel that a launch compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: frozenset[str] = frozenset()
        self.code: dict[str, Any] = {}

    def install(self) -> None:
        super().install()
        record = JITFunction.run

        def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            kept = {name: value for name, value in options.items() if name not in self.foreign}
            return record(kernel, *args, grid=grid, warmup=warmup, **kept)

        JITFunction.run = run

    def clear(self) -> None:
        super().clear()
        self.code = {}

    def _note(self, compiled: Any, grid: Any, scalars: list[Any]) -> None:
        text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
        key = triton_compile.fingerprint(text.replace(";", "//") if "amdgcn" in compiled.asm else text)
        metadata = compiled.metadata
        self.kernels[key] = {
            "name": str(metadata.name),
            "shared": int(metadata.shared),
            "warps": int(metadata.num_warps),
        }
        self.code[key] = compiled
        self.launches.append({"kernel": key, "grid": [int(n) for n in grid], "scalars": scalars})


class Runner(triton_compile.Runner):
    """Serves ``compile`` jobs."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._driver = CrossDriver()
        runtime_driver.set_active(self._driver)
        torch.set_default_device("meta")
        self._codes = CodeRecorder()
        self._recorder = self._codes
        self._recorder.install()
        self.hello = {"torch": torch.__version__, "triton": triton.__version__}

    def run(self, job: Frame, answer: Answer) -> None:
        """Serve one job; the code goes first, so that ``compiled`` or ``error`` ends it."""
        target = job.data["target"]
        self._driver.aim(GPUTarget(target["backend"], target["arch"], int(target["lanes"])))
        self._codes.foreign = FOREIGN[target["backend"]]
        self._smem_bytes = int(target["smem_bytes"])
        answers: list[Frame] = []
        super().run(job, answers.append)
        for key, compiled in self._codes.code.items():
            text, usage = code_of(compiled.asm, key)
            data = {"key": key, **self._codes.kernels[key], "usage": usage}
            answer(Frame("code", data, arrays={"text": np.frombuffer(text.encode(), np.uint8)}))
        for frame in answers:
            answer(frame)


def code_of(asm: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Assembler's text and, for NVIDIA, what the binary uses. Raises OSError, CalledProcessError."""
    if "amdgcn" in asm:
        return asm["amdgcn"], ""
    path = Path(f"{key}.cubin").absolute()
    path.write_bytes(asm["cubin"])
    return _said("nvdisasm", "-c", str(path)), _said("cuobjdump", "--dump-resource-usage", str(path))


def _said(tool: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(TOOLS / tool), *arguments], capture_output=True, text=True, check=True, timeout=TOOL_SECONDS
    )
    return done.stdout
