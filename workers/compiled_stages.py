"""The compiling stage of targets that only compile: code for an architecture that this machine lacks, and what it says.

The child compiles and hands over the assembler's text; it is read here, in the parent. A compiler that dies takes the
child with it, which is a verdict on the kernel, and the next child takes its place.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fitness.architectures import Architecture
from fitness.evaluation import Stage, Verdict
from fitness.isa import KernelIsa, UnreadableCode, read_isa
from workers import gpu_recipe
from workers.attempt import Failure, Found, Request, one_line
from workers.frames import Frame
from workers.sandbox import Ending
from workers.session import JobLimits, Keeper, SessionConfig
from workers.timing import failed

MOST_CODE_BYTES = 64 << 20


class CrossCompileStage:
    """Compiles for every shape and reads the code of every kernel."""

    stage = Stage.COMPILE

    def __init__(self, compiler: Keeper) -> None:
        self._compiler = compiler
        self.code: dict[str, dict[str, Any]] = {}
        """Per kernel, what its code says: see ``KernelIsa.data``."""

    def run(self, request: Request, found: Found) -> Failure | None:
        """Refuses what does not compile, does not fit, or was compiled before; notes what the code says."""
        shapes = {w.id: w for w in (*request.measured, *request.checked)}
        job = Frame(
            "compile",
            {
                "target": {
                    name: getattr(request.target.architecture, name)
                    for name in ("backend", "arch", "lanes", "smem_bytes")
                },
                "source": request.source,
                "params": dict(request.params),
                "workloads": [request.described(w) for w in shapes.values()],
            },
        )
        wall = request.limits.compile.wall_seconds * request.time_factor
        outcome = self._compiler.run(job, JobLimits(wall, wall))
        found.logs.append(outcome.log)
        name = request.target.name
        if outcome.ending is Ending.CRASHED:
            reason = one_line(f"compiling for {name}: the compiler's process was {outcome.detail}")
            return Failure(Verdict.COMPILE_ERROR, reason, outcome.log)
        if (failure := failed(outcome, f"compiling for {name}", Stage.COMPILE)) is not None:
            return failure
        compiled = outcome.first("compiled")
        if compiled is None:
            return Failure(Verdict.CRASHED, "the compiling child ended without an answer")
        launches = compiled.data["launches"]
        for frame in outcome.frames:
            if frame.kind == "code":
                try:
                    isa = _read(frame, request.target.architecture)
                except UnreadableCode as error:
                    return Failure(Verdict.COMPILE_ERROR, one_line(str(error)))
                self.code[str(frame.data["key"])] = isa.data()
        text = json.dumps([launches[w.id] for w in request.measured], sort_keys=True)
        found.artefact = hashlib.sha256(text.encode()).hexdigest()[:16]
        if (earlier := request.is_known(found.artefact)) is not None:
            return Failure(Verdict.DUPLICATE, f"compiles to the same artefact {found.artefact} as {earlier}")
        return None


def _read(frame: Frame, architecture: Architecture) -> KernelIsa:
    data, text = frame.data, frame.arrays["text"].tobytes()[:MOST_CODE_BYTES].decode(errors="replace")
    return read_isa(
        text, str(data["usage"]), architecture, str(data["name"]), int(data["warps"]), int(data["shared"])
    )


def describe_config() -> SessionConfig:
    """How the compiling child is started; it serves every target. Raises OSError when its cache cannot be made."""
    return SessionConfig(
        runner="triton.describe",
        runner_config={},
        environment=gpu_recipe.compile_environment(),
        shared=(gpu_recipe.cache_folder(),),
    )
