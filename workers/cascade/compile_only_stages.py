"""The compiling stage of targets that only compile: code for an architecture that this machine lacks, and what it says.

The child compiles and hands over the assembler's text; it is read here, in the parent. A compiler that dies takes the
child with it, which is a verdict on the kernel, and the next child takes its place.
"""

import hashlib
import json
from pathlib import Path

from tilewright.fitness.architectures import Architecture
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.fitness.isa import KernelIsa, UnreadableCode, read_isa
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.frames import Frame
from tilewright.workers.device.plan_compiler import adopt_plans, compile_all
from tilewright.workers.device.timing import MALFORMED, malformed
from tilewright.workers.request import Failure, Findings, Request, duplicate, one_line
from tilewright.workers.toolchains import triton as triton_toolchain


class CrossCompileStage:
    """Compiles for every shape and reads the code of every kernel."""

    stage = Stage.COMPILE

    def __init__(self, compiler: ForkedChildren) -> None:
        self._compiler = compiler

    def run(self, request: Request, found: Findings) -> Failure | None:
        """Refuses what does not compile, does not fit, or was compiled before; notes what the code says."""
        names = ("backend", "arch", "lanes", "smem_bytes")
        target = {name: getattr(request.target.architecture, name) for name in names}
        doing = f"compiling for {request.target.name}"
        answer = compile_all(self._compiler, request, found, doing, target)
        if isinstance(answer, Failure):
            return answer
        if "notes" in answer[0].data:  # of a CUDA C++ candidate, whose code comes within plans
            return adopt_plans(answer[0], request, found)
        codes = [frame for frame in answer if frame.kind == "code"]
        try:
            read = {str(f.data["key"]): _read(f, request.target.architecture).data() for f in codes}
            # of every shape: none has a time here, and one that a suite would time may be left to another kernel
            shapes = dict.fromkeys(w.id for w in (*request.measured, *request.checked))
            launches = [answer[0].data["launches"][name] for name in shapes]
        except UnreadableCode as error:
            return Failure(Verdict.COMPILE_ERROR, one_line(str(error)))
        except MALFORMED as error:
            return malformed(error)
        found.compiled.update(read)
        text = json.dumps(launches, sort_keys=True)
        found.artefact = hashlib.sha256(text.encode()).hexdigest()[:16]
        return duplicate(request, found.artefact)


def _read(frame: Frame, architecture: Architecture) -> KernelIsa:
    data, text = frame.data, frame.arrays["text"].tobytes().decode(errors="replace")
    return read_isa(
        text, str(data["usage"]), architecture, str(data["name"]), int(data["warps"]), int(data["shared"])
    )


def describe_children(scratch: Path | None = None) -> ForkedChildren:
    """Children that compile and describe, one for each candidate, for every target."""
    return ForkedChildren(
        "describe.",
        ("tilewright.workers.runners.triton.code_report",),
        {},
        triton_toolchain.compile_environment(),
        scratch,
        triton_toolchain.CACHES,
    )
