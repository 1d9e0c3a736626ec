"""Tracing ahead of a TPU or a model of one: a child that runs a candidate's Python, once, and hands back data.

What it traced to (see ``workers.runners.pallas.jaxpr_codec``) is all that other children are given of a candidate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.fitness.original import is_original
from tilewright.seeds.operator import Workload
from tilewright.workers.child.ending import ChildOutcome
from tilewright.workers.child.frames import Frame, encode
from tilewright.workers.child.launch import Launcher
from tilewright.workers.child.run_once import run_child, temporary_folder
from tilewright.workers.request import KernelRequest, TimingRequest
from tilewright.workers.toolchains import libtpu_simulator


@dataclass
class TraceAnswers:
    """What a trace child answered: frames by workload, its first error, and how it ended."""

    frames: dict[str, Frame] = field(default_factory=dict)
    error: Frame | None = None
    outcome: ChildOutcome | None = None

    def plans(self) -> dict[str, bytes]:
        """For a device that runs no candidate's Python."""
        return plans_of(self.frames)


def plans_of(frames: dict[str, Frame]) -> dict[str, bytes]:
    """Traces as bytes, by workload."""
    return {name: encode(frame) for name, frame in frames.items()}


def chip_of(request: TimingRequest) -> dict[str, object]:
    """The chip that code is traced for, for a job."""
    chip = request.target.chip
    return {"kind": chip.device_kind, "cores": chip.cores}


def trace_kernels(
    request: KernelRequest, workloads: Sequence[Workload], launcher: Launcher, scratch: Path | None
) -> TraceAnswers:
    """Run the candidate's Python for these workloads. The child sees no array. Raises OSError."""
    found = TraceAnswers()
    wanted = {w.id for w in workloads}

    def hear(frame: Frame) -> bool:
        name = frame.data.get("workload")
        if frame.kind == "artefact" and isinstance(name, str) and name in wanted and "text" in frame.blobs:
            found.frames[name] = frame
        elif frame.kind == "error":
            found.error = frame
        return found.error is None

    data = {
        "source": request.source,
        "params": dict(request.params),
        "chip": chip_of(request),
        "workloads": [request.described(w) for w in workloads],
    }
    kind = "pallas.original" if is_original(request.source) else "pallas.trace"
    found.outcome = run_pallas_child(Frame(kind, data), request, launcher, scratch, hear)
    return found


def run_pallas_child(
    job: Frame, request: TimingRequest, launcher: Launcher, scratch: Path | None, hear: Callable[[Frame], bool]
) -> ChildOutcome:
    """A child without a compiler, in a folder of its own."""
    limits = request.limits.trace
    with temporary_folder(scratch) as folder:
        return run_child(
            job,
            replace(limits, wall_seconds=limits.wall_seconds * request.time_factor),
            folder,
            extra_environment=libtpu_simulator.trace_environment(),
            on_frame=hear,
            launcher=launcher,
        )
