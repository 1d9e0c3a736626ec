"""The cascade of a target that only compiles: dialect, code for the target, gates in Triton's interpreter. No time.

Nothing is ranked: every candidate that compiles for the target and answers rightly has fitness 1. What its code says
(registers, spills, matrix instructions, widths of stores) describes it and places it in the archive.

The child compiles and hands over the assembler's text; it is read here, in the parent. A compiler that dies takes the
child with it, which is a verdict on the kernel, and the next child takes its place.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.fitness.architectures import Architecture
from tilewright.fitness.dialect import is_cuda
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.fitness.gpus import GPUS
from tilewright.fitness.isa import KernelIsa, UnreadableCode, read_isa
from tilewright.fitness.targets import Target
from tilewright.seeds.operator import Operator, Suite
from tilewright.workers.cascade.base import Cascade
from tilewright.workers.cascade.common_stages import DialectStage, run_steps
from tilewright.workers.cascade.measured_stages import GateStage
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.launch import Spawn
from tilewright.workers.device.plan_compiler import adopt_plans, compile_all
from tilewright.workers.device.station import LocalStation
from tilewright.workers.device.timing import MALFORMED, malformed_answer
from tilewright.workers.request import Failure, Findings, Limits, Request, StageStep, duplicate, one_line
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
            return malformed_answer(error)
        found.compiled.update(read)
        text = json.dumps(launches, sort_keys=True)
        found.artefact = hashlib.sha256(text.encode()).hexdigest()[:16]
        return duplicate(request, found.artefact)


def _read(frame: Frame, architecture: Architecture) -> KernelIsa:
    data, text = frame.data, frame.arrays["text"].tobytes().decode(errors="replace")
    return read_isa(text, str(data["usage"]), architecture, str(data["name"]), int(data["warps"]), int(data["shared"]))


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


LEAST_YIELDS = 0.25
"""Share of FFMAs with a yield from which an archive tells kernels apart."""

FITNESS = 1.0
"""Of everything that passes: what only compiles is not ranked."""


class CompileOnlyCascade(Cascade):
    """Evaluates genomes of one operator for one target that only compiles, one at a time.

    Not safe for several threads; make one per worker. ``close`` ends its children. ``best`` and ``race`` are not used.
    """

    def __init__(
        self,
        operator: Operator,
        target: Target,
        suite: Suite,
        limits: Limits | None = None,
        *,
        scratch: Path | None = None,
        checked: bool = True,
        compiler: ForkedChildren | None = None,
    ) -> None:
        """``checked``: whether answers pass the gates; without, only the code is looked at.

        ``compiler``: those of ``describe_children`` to use, for cascades that share one.
        """
        super().__init__(operator, target, suite, limits, scratch, Spawn())
        self._compiler = compiler or describe_children(scratch)
        self._station = LocalStation(GPUS["interpreter"], scratch) if checked else None

    def close(self) -> None:
        """Kill the children."""
        self._compiler.close()
        if self._station is not None:
            self._station.close()

    def _judge(
        self, request: Request, found: Findings, on_stage: Callable[[Stage], None]
    ) -> tuple[Stage, Failure | None]:
        steps: list[StageStep] = [DialectStage("launch"), CrossCompileStage(self._compiler)]
        # no interpreter runs CUDA C++: it is compiled and read, and its answers are for a device to give
        if self._station is not None and request.checked and not is_cuda(request.source):
            steps.append(GateStage(self._station))
        return run_steps(steps, request, found, on_stage)

    def _worth(self, found: Findings) -> tuple[float, tuple[float, float], dict[str, str]]:
        return FITNESS, (FITNESS, FITNESS), descriptors(found.compiled)

    def _toolchain(self, failure: Failure | None) -> dict[str, str]:
        return triton_toolchain.toolchain()


def descriptors(compiled: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Where a kernel belongs in an archive: spills, matrix instruction, and by who read its code either the occupancy
    bound and the width of stores or, of CUDA C++, whether FFMAs yield.

    Of several kernels, the worst bound and the narrowest stores count.
    """
    kernels = list(compiled.values())
    if not kernels:
        return {}
    whole = "occupancy" in kernels[0]
    spilled = any((k["spilled"] or k["stack_bytes"]) if whole else k["spills"] for k in kernels)
    matrix = sorted({name for k in kernels for name in k["matrix"]})
    found = {"spills": "yes" if spilled else "no", "matrix": ",".join(matrix) or "none"}
    if not whole:
        return {**found, "yields": "yes" if any(k["yields"] >= LEAST_YIELDS for k in kernels) else "no"}
    bound, stores = min(k["occupancy"] for k in kernels), min(k["store_bytes"] for k in kernels)
    return {"occupancy": f"{100 * bound:g}%", **found, "stores": f"{stores:.0f}B"}
