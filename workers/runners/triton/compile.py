"""Compiles Triton, Gluon and CUDA C++ candidates on a CPU, ahead of the device that will measure them, into plans.

A candidate's Python runs here and nowhere else: in a process without device, operands or clock. What it would launch
on a workload's shapes becomes a plan (``library.plans``), which is all that the device's process ever sees of it.

Job ``compile``: ``source``, ``params``, ``workloads`` [{id, inputs, outputs}]. Answers: one ``compiled`` with a blob
for each workload, its plan's bytes, or one ``error``.
"""

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilewright.fitness.dialect import is_cuda
from tilewright.workers.child.frames import Frame
from tilewright.workers.runners import cuda
from tilewright.workers.runners.failures import error_frame
from tilewright.workers.runners.triton.recorder import Recorder
from tilewright.workers.runners.triton.tensors import Answer, load_module

_CACHE = "TRITON_CACHE_DIR"

NICENESS = 5


@triton.jit
def _nothing(out):  # type: ignore[no-untyped-def]
    tl.store(out, 0.0)


def prepare() -> None:
    """Compile a kernel that does nothing, in the process that children are forked from.

    Triton hashes all of its own files, asks its assembler for a version and imports its backend when it first compiles:
    that is more than most candidates take, and forked children need not do it again. Many of them run at once, and none
    is to hold up the process that holds the device.
    """
    os.nice(NICENESS)
    kept = os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[_CACHE] = folder
        try:
            with contextlib.suppress(Exception):  # a child that is not prepared compiles all the same
                triton.compile(ASTSource(_nothing, {"out": "*fp32"}, {}), target=GPUTarget("cuda", 90, 32))
        finally:
            del os.environ[_CACHE]
            if kept is not None:
                os.environ[_CACHE] = kept
            tempfile.tempdir = None  # a child has a place of its own


def _compile_beside(
    recorder: Recorder, launch: Any, params: Mapping[str, Any], workloads: Sequence[Mapping[str, Any]]
) -> None:
    """Compile what each shape is the first to need in a process of its own: this one finds it in the cache."""
    known = recorder.needed(launch, params, workloads[0]) if workloads[1:] else set()
    begun: list[int] = []
    for workload in workloads[1:] if known else ():
        more = recorder.needed(launch, params, workload) - known
        known |= more
        if more:
            begun.append(os.fork())
            if begun[-1] == 0:
                try:
                    recorder.record(launch, params, workload)
                finally:
                    os._exit(0)  # why it fails is seen again
    if begun:
        with contextlib.suppress(Exception):
            recorder.record(launch, params, workloads[0])
    for pid in begun:
        os.waitpid(pid, 0)


def run(job: Frame, answer: Answer) -> None:
    """Serve one job, in a process of its own; failures of the candidate become an ``error`` frame."""
    torch.set_default_device("meta")
    config = job.data["runner_config"]
    limits = int(config["capability"]), int(config["smem_bytes"])
    recorder, phase = Recorder(*limits), "import"
    source, params, workloads = (job.data[name] for name in ("source", "params", "workloads"))
    try:
        if is_cuda(source):
            phase = "compile"
            made, notes = cuda.plans_of(source, params, workloads, *limits)
            blobs = {name: plan.to_bytes() for name, plan in made.items()}
            answer(Frame("compiled", {"notes": notes}, blobs=blobs))
            return
        module = load_module(source)
        phase = "compile"
        _compile_beside(recorder, module.launch, params, workloads)
        plans = {w["id"]: recorder.record(module.launch, params, w).to_bytes() for w in workloads}
        answer(Frame("compiled", blobs=plans))
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its answer
        answer(error_frame(phase, error))
