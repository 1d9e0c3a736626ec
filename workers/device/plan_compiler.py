"""Compiles candidates in a child process without a device, and checks the launch plans that come back.

The child runs the candidate's Python, and sees neither device nor operands. Its plans (``library.plans``) are parsed
and checked here, in the parent, before a device loads them.
"""

import dataclasses
import hashlib
import json
import re
import statistics
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.library.plans.cubin import CubinError
from tilewright.library.plans.format import Plan, PlanError
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import JobLimits
from tilewright.workers.device import machine_code
from tilewright.workers.device.timing import MALFORMED, child_failure, malformed_answer
from tilewright.workers.request import Failure, Findings, KernelRequest, Latest, duplicate, one_line

TIMES_USUAL, LEAST_SECONDS = 6.0, 10.0
"""Compile time limit as a multiple of the median so far, and the least limit in seconds."""

SLOWEST = 3.0
"""The limit is at least this multiple of the longest compile time so far."""

MOST_NOTES = 8
"""Most compiler warnings that are kept."""

LEAST_PACED, PACED_BY = 6, 32
"""Compilations before a limit applies, and the number of latest ones that it is derived from."""

_COMPLAINTS = (
    re.compile(r"^\S*: error: (?!Failures have been detected)(.+)$", re.M),
    re.compile(r"(failed while executing \[`\w+`)"),
)
"""Patterns of MLIR's first error, or of the name of the pass that failed."""


Outcomes = Latest[str, ChildOutcome]

KEPT = 4
"""Outcomes kept by job: a seed kernel is compiled for its intake's checks and again for its campaign."""


class CompilePace:
    """The limit of compile time, derived from the campaign's earlier candidates. Safe for several threads.

    Candidates with tiles far too large for their threads take minutes to compile, and never win; those of another
    structure take several times the median, and often win. ``outcomes``: results of the latest compilations.
    """

    def __init__(self, times: float = TIMES_USUAL, outcomes: Outcomes | None = None) -> None:
        self._times = times
        self._seconds: deque[float] = deque(maxlen=PACED_BY)
        self.outcomes = outcomes or Outcomes(KEPT)

    def add(self, seconds: float) -> None:
        """Note the seconds of a compilation that succeeded."""
        self._seconds.append(seconds)

    def limit(self, most: float) -> float:
        """Seconds allowed to the next candidate, at most ``most``; ``most`` before ``LEAST_PACED`` have compiled."""
        known = list(self._seconds)
        if len(known) < LEAST_PACED:
            return most
        return min(most, max(LEAST_SECONDS, self._times * statistics.median(known), SLOWEST * max(known)))


class PlanStage:
    """Compiles a candidate for every shape on the CPU, so that the device only has to load code."""

    stage = Stage.COMPILE

    def __init__(self, compiler: ForkedChildren, pace: CompilePace | None = None) -> None:
        """``pace``: None if every candidate may take the whole limit of the request."""
        self._compiler = compiler
        self._pace = pace

    def run(self, request: KernelRequest, found: Findings) -> Failure | None:
        """Fails a candidate that does not compile, does not fit the device, or compiles to a known artefact."""
        answer = compile_all(self._compiler, request, found, "compiling", pace=self._pace)
        if isinstance(answer, Failure):
            return answer
        return adopt_plans(answer[0], request, found)


def adopt_plans(compiled: Frame, request: KernelRequest, found: Findings) -> Failure | None:
    """Note the plans that a child sent, and what their code says; refuse what reads a clock or was compiled before."""
    plans = read_plans(compiled, request)
    if isinstance(plans, Failure):
        return plans
    if (failure := read_code(plans, compiled, found)) is not None:
        return failure
    found.plans = {name: compiled.blobs[name] for name in plans}
    launches = [launch for plan in plans.values() for launch in plan.launches]
    found.claimed["shared"] = str(max((launch.shared for launch in launches), default=0))
    text = "".join(plans[w.id].digest for w in request.measured)
    found.artefact = hashlib.sha256(text.encode()).hexdigest()[:16]
    return duplicate(request, found.artefact)


def compile_all(
    compiler: ForkedChildren,
    request: KernelRequest,
    found: Findings,
    doing: str,
    target: Mapping[str, Any] | None = None,
    pace: CompilePace | None = None,
) -> list[Frame] | Failure:
    """Compile every shape in a child: its ``compiled`` frame, then all others.

    ``target``: what to compile for, where the child serves several.
    """
    shapes = {w.id: w for w in (*request.measured, *request.checked)}
    data = {
        "source": request.source,
        "params": dict(request.params),
        "workloads": [request.described(w) for w in shapes.values()],
    }
    wall = request.limits.compile.wall_seconds * request.time_factor
    if pace is not None and not request.final:
        wall = pace.limit(wall)
    job = Frame("compile", {**data, "target": dict(target)} if target else data)

    def compiled_now() -> ChildOutcome:
        began = time.monotonic()
        outcome = compiler.run(job, JobLimits(wall, wall))
        if pace is not None and outcome.first("compiled") is not None:
            pace.add(time.monotonic() - began)
        return outcome

    outcome = pace.outcomes.of(json.dumps(job.data), compiled_now) if pace is not None else compiled_now()
    found.logs.append(outcome.log)
    if target and outcome.ending is Ending.CRASHED:  # a compiler may abort on what it cannot compile
        reason = one_line(f"{doing}: the compiler's process was {outcome.detail}")
        return Failure(Verdict.COMPILE_ERROR, reason, outcome.log)
    if (failure := child_failure(outcome, doing, Stage.COMPILE)) is not None:
        return _with_complaint(failure, outcome.log)
    compiled = outcome.first("compiled")
    if compiled is None:
        return Failure(Verdict.CRASHED, "the compiling child ended without an answer")
    return [compiled, *(frame for frame in outcome.frames if frame is not compiled)]


def read_plans(compiled: Frame, request: KernelRequest) -> dict[str, Plan] | Failure:
    """Plans by workload, as the child that ran the candidate sent them: checked, and for the tensors of the request."""
    plans: dict[str, Plan] = {}
    for workload in {w.id: w for w in (*request.measured, *request.checked)}.values():
        try:
            plan = Plan.from_bytes(compiled.blobs.get(workload.id, b""))
        except PlanError as error:
            return Failure(Verdict.CRASHED, one_line(f"the compiling child's plan for {workload.id}: {error}"))
        wanted = request.described(workload)
        brought = [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in plan.inputs]
        made = [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in plan.outputs]
        if (brought, made) != (wanted["inputs"], wanted["outputs"]):
            reason = f"the compiling child's plan for {workload.id} is for other tensors"
            return Failure(Verdict.CRASHED, reason)
        plans[workload.id] = plan
    return plans


def read_code(plans: Mapping[str, Plan], compiled: Frame, found: Findings) -> Failure | None:
    """Note what the code of a CUDA C++ candidate says, with the compiler's warnings; refuse what reads a clock.

    Triton's and Gluon's dialect names no clock, and their code is looked at on targets that only compile.
    """
    if "notes" not in compiled.data:
        return None
    try:
        notes = [one_line(str(note)) for note in list(compiled.data["notes"])[:MOST_NOTES]]
        for code in dict.fromkeys(code for plan in plans.values() for code in plan.codes):
            for name, facts in machine_code.facts(code).items():
                key = name if name not in found.compiled else f"{name} {len(found.compiled)}"
                found.compiled[key] = {"name": name, **facts, "notes": notes}
    except machine_code.ReadsClock as error:
        return Failure(Verdict.IMPLAUSIBLE, one_line(f"{error}: a kernel may not know when it is timed"))
    except (CubinError, *MALFORMED) as error:
        return malformed_answer(error)
    return None


def _with_complaint(failure: Failure, log: str) -> Failure:
    """The failure with the compiler's first printed error added, if its exception does not say the cause."""
    complaint = next(filter(None, (pattern.search(log) for pattern in _COMPLAINTS)), None)
    if complaint is None or not failure.reason.startswith("RuntimeError"):
        return failure
    return dataclasses.replace(failure, reason=one_line(f"{failure.reason}: {complaint[1].replace('[', '')}"))
