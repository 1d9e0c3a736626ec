"""Times kernels on a measuring station: makes the job, reads the child's answer, decides the verdict.

A child reports times and sampled outputs. Verdicts are decided here, in the parent: it alone holds the references.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tilewright.fitness import gates, intervals, score
from tilewright.fitness.elements import INEXACT
from tilewright.fitness.evaluation import Stage, Verdict, WorkloadFigures
from tilewright.seeds.operator import Arrays, Operator, TensorSpec, Workload
from tilewright.seeds.sampled import (
    TABLE_KINDS,
    Heavy,
    Sample,
    Sampled,
    SentOperands,
    TableKinds,
    kind_tables,
    sampling,
)
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import JobLimits
from tilewright.workers.device.station import DeviceRatio, Entry, Station
from tilewright.workers.request import Failure, Findings, KernelRequest, Latest, TimingRequest, one_line

STALL_SECONDS = 10.0
"""A kernel counts as hung when its device child sends no frame for so long."""

WALL_FACTOR, WALL_SLACK_SECONDS = 3.0, 2e-3
"""A timing is implausible above ``WALL_FACTOR * max(device seconds, host seconds) + WALL_SLACK_SECONDS``."""

BURST_SECONDS = 2e-3
"""Device seconds that the calls of one burst take together: longer bursts average away no more noise."""

_RESOURCES = re.compile(
    r"out of (resource|memory)|too many resources|allocate memory|OutOfResources|OutOfMemory|MemoryError", re.I
)
_FOUND_OUT = {"ForeignWork": Verdict.IMPLAUSIBLE, "OutsideWrite": Verdict.INCORRECT}
"""Verdict by the type of exception that ``workers.runners.triton.launch_guard`` raises."""

_MEMORY_FAULT = re.compile(r"illegal memory access|misaligned address|illegal address|illegal instruction", re.I)


class Samples:
    """Reference outputs at sampled positions, cached for the latest ``most`` (workload id, seed, input kind).

    Several threads that ask for the same ones wait for one computation. ``station``: its device computes the references
    that are too much work for a CPU; those it cannot compute are computed here.
    """

    def __init__(self, operator: Operator, station: Station | None = None, most: int = 256) -> None:
        self._operator = operator
        self._sampled = operator if isinstance(operator, Sampled) else None
        self._tables = self._sampled.tables() if self._sampled else {}
        self._kinds = operator.input_kinds[1:]
        if self.sampled:
            self._kinds = tuple(operator.table_kinds if isinstance(operator, TableKinds) else TABLE_KINDS)
        self._made: Latest[tuple[str, int, str], Sample] = Latest(most)
        self._station = station

    @property
    def sampled(self) -> bool:
        """Whether a device makes the operands, and samples of its answers are compared."""
        return self._sampled is not None

    @property
    def tables(self) -> Mapping[str, np.ndarray]:
        """By operand, the values that its elements are drawn from; empty when operands are made on the host."""
        return self._tables

    def draw_kinds(self, workload: Workload, seed: int, most: int | None) -> list[str]:
        """``most`` input kinds (None: all) besides the first, dealt by ``seed`` and the workload's turn."""
        return workload.dealt(self._kinds, seed, len(self._kinds) if most is None else most)

    def of(self, workload: Workload, seed: int, kind: str = "") -> Sample:
        """The sample for one shape, for operators with ``tables``. ``kind``: see ``seeds.sampled.kind_tables``."""
        sampled = self._sampled
        assert sampled is not None

        def made() -> Sample:
            tables = kind_tables(self._tables, kind)
            return self.from_device(workload, seed, kind) or sampling(sampled, workload, seed, tables)

        return self._made.of((workload.id, seed, kind), made)

    def from_device(self, workload: Workload, seed: int, kind: str) -> Sample | None:
        """What the station's device computes; of operands that the host makes every element, None where it does not."""
        asked = self._operator.elsewhere(workload) if isinstance(self._operator, Heavy) else None
        if asked is None or self._station is None:
            return None
        return self._station.sample({**asked, "kind": kind}, seed)


@dataclass(frozen=True)
class Timing:
    """One workload as a station timed it. ``rounds``: seconds by entry, round and call; other lists are by entry."""

    workload: Workload
    rounds: list[list[list[float]]]
    host_seconds: list[float]
    wall_seconds: list[float]
    inputs_changed: bool
    arrays: Mapping[str, np.ndarray]
    scale: DeviceRatio
    seed: int
    """The seed that the operands were made from."""

    def with_later_rounds(self, later: Self) -> Self:
        """This timing with the rounds of a ``later`` job on the same entries appended."""
        rounds = [[*mine, *more] for mine, more in zip(self.rounds, later.rounds, strict=True)]
        return dataclasses.replace(later, rounds=rounds)

    def figures(self, request: TimingRequest, place: int = 0) -> WorkloadFigures:
        """The figures of entry number ``place``, with seconds scaled to the campaign's first device."""
        operator, device, workload = request.operator, request.target.hardware, self.workload
        seconds = intervals.median_seconds(self.rounds[place]) / self.scale.ratio
        calibrated = {"device": self.scale.device, "device_ratio": self.scale.ratio} if self.scale.device else {}
        flops, size = operator.flops(workload), operator.bytes(workload)
        kind = score.matrix_kind(operator, request.inputs(workload))
        roofline = score.roofline_seconds(flops, size, device, kind)
        return WorkloadFigures(
            workload=workload.id,
            seconds=seconds,
            tflops=score.tflops(flops, seconds),
            gbytes=score.gbytes(size, seconds) if score.bytes_rank(operator) else None,
            roofline_fraction=roofline / seconds,
            kind=request.target.kind,
            diagnosis={
                "host_seconds": self.host_seconds[place],
                "wall_seconds": self.wall_seconds[place],
                "calls": sum(map(len, self.rounds[place])),
                "relative_error": math.hypot(intervals.relative_error(self.rounds[place]), self.scale.error),
                "gbytes_per_second": score.gbytes(size, seconds),
                "copy_fraction": size / seconds / device.copy,
                **calibrated,
            },
        )


def measure(
    station: Station,
    request: TimingRequest,
    found: Findings,
    samples: Samples,
    entries: Sequence[Entry],
    effort: tuple[int, int],
    pace: Mapping[str, float],
    judged: int | None = None,
    known: Mapping[str, float] | None = None,
    kinds: int | None = 0,
) -> list[Timing] | Failure:
    """Time entries in interleaved rounds, and check the sampled outputs of one timed call of each against the gates.

    ``effort``: number of rounds, and most calls in a round (see ``calls_of``).
    ``pace``: seconds by workload id; an entry that is far slower on the first workloads is timed briefly on the rest.
    ``known``: expected seconds by workload id, from which calls per round follow; by default those of ``pace``.
    ``judged``: number of the candidate's entry: failures of other entries are infrastructure faults. None: an entry's
    failure is its own.
    ``kinds``: on this many further input kinds (None: all) each entry is called once, untimed, and checked, too.
    """
    workloads = sorted(request.measured, key=request.operator.flops)
    seed = station.operand_seed(request.seed)
    drawn = {w.id: samples.draw_kinds(w, request.seed, 0 if request.baseline else kinds) for w in workloads}
    # who makes the operands makes their kinds: tables of all kinds would be most of what a device waits for
    arrays: dict[str, np.ndarray] = {f"table/{name}": table for name, table in samples.tables.items()}
    for workload in workloads if samples.sampled else ():
        if isinstance(request.operator, SentOperands):
            sent = request.operator.sent(workload, seed)
            arrays.update({f"{workload.id}/{name}": array for name, array in sent.items()})
        for name, axes in samples.of(workload, seed).where.items():
            arrays.update({f"where/{workload.id}/{name}/{n}": axis for n, axis in enumerate(axes)})
    for workload, kind in ((w, kind) for w in workloads for kind in ("", *drawn[w.id]) if not samples.sampled):
        made = request.truth.inputs(workload, seed, kind or request.operator.input_kinds[0])
        arrays.update({f"{workload.id}/{_array_name(kind, name)}": array for name, array in made.items()})
    data = {
        "entries": [entry.data() for entry in entries],
        "workloads": [request.described(w) for w in workloads],
        "seed": seed,
        "kinds": drawn,
        "tables": list(samples.tables),
        "rounds": effort[0],
        "calls": effort[1],
        "calls_of": {w.id: calls_of(request, w, effort, known or pace) for w in workloads},
        "pace": dict(pace),
    }
    blobs = {name: plan for entry in entries for name, plan in entry.blobs(w.id for w in workloads).items()}
    scale = station.scale()
    outcome = run_job(station, request, found, Frame("time", data, arrays, blobs))
    if (failure := child_failure(outcome, "timing", Stage.MEASURE)) is not None:
        if judged is not None and failure.entry not in (None, entries[judged].id):
            return Failure(Verdict.INFRA_ERROR, f"{failure.entry} failed beside the candidate: {failure.reason}")
        return failure
    answers = [frame for frame in outcome.frames if frame.kind == "timed"]
    try:
        timings = [_timing(frame, workloads, len(entries), scale, seed) for frame in answers]
    except MALFORMED as error:
        return malformed_answer(error)
    if sorted(t.workload.id for t in timings) != sorted(w.id for w in workloads):
        return Failure(Verdict.CRASHED, "the child ended before it had timed everything")
    for timing in timings:
        for place in range(len(entries)) if judged is None else (judged,):
            failure = _timing_failure(request, found, samples, timing, place, drawn[timing.workload.id])
            if failure is not None:
                return dataclasses.replace(failure, entry=entries[place].id)
    return timings


def _array_name(kind: str, name: str) -> str:
    """An array's name in job and answer: ``name`` for the first input kind, ``kind/name`` for any other."""
    return f"{kind}/{name}" if kind else name


def calls_of(request: TimingRequest, workload: Workload, effort: tuple[int, int], known: Mapping[str, float]) -> int:
    """Calls per round: as many as fill ``BURST_SECONDS``, at most ``effort[1]``; at least two if there is one round.

    A workload that is not in ``known`` is taken to run as fast as the device's peaks allow.
    """
    rounds, calls = effort
    if request.target.interpreted:
        return calls
    operator = request.operator
    kind = score.matrix_kind(operator, request.inputs(workload))
    least = score.roofline_seconds(operator.flops(workload), operator.bytes(workload), request.target.hardware, kind)
    seconds = known.get(workload.id, least)
    return min(calls, max(2 if rounds == 1 else 1, math.ceil(BURST_SECONDS / seconds)))


MALFORMED = (KeyError, TypeError, ValueError)
"""Exceptions that reading a malformed answer raises."""


def malformed_answer(error: Exception) -> Failure:
    """The failure of a child whose answer cannot be read."""
    return Failure(Verdict.CRASHED, one_line(f"the child's answer is malformed: {type(error).__name__} {error}"))


def _timing(frame: Frame, workloads: Sequence[Workload], entries: int, scale: DeviceRatio, seed: int) -> Timing:
    """A ``timed`` frame as a Timing. Raises one of ``MALFORMED`` unless all ``entries`` have equally many rounds."""
    data = frame.data
    workload = {w.id: w for w in workloads}[data["workload"]]
    rounds = [[[_checked_seconds(call) for call in calls] for calls in entry] for entry in data["rounds"]]
    host, wall = ([_checked_seconds(n, or_none=True) for n in data[f"{clock}_seconds"]] for clock in ("host", "wall"))
    if not len(rounds) == len(host) == len(wall) == entries:
        raise ValueError(f"{len(rounds)} entries instead of {entries}")
    if len({len(entry) for entry in rounds}) != 1 or not all(entry and all(entry) for entry in rounds):
        raise ValueError("rounds without calls, or more of one entry than of another")
    changed = bool(data["inputs_changed"])
    return Timing(workload, rounds, host, wall, changed, frame.arrays, scale, seed)


def _checked_seconds(seconds: float, *, or_none: bool = False) -> float:
    """``seconds`` if it is finite and > 0 (or 0, with ``or_none``). Raises ValueError otherwise."""
    if not 0.0 < seconds < math.inf and not (or_none and seconds == 0.0):
        raise ValueError(f"{seconds} s is no time")
    return float(seconds)


def _timing_failure(
    request: TimingRequest, found: Findings, samples: Samples, timing: Timing, place: int, kinds: Sequence[str]
) -> Failure | None:
    """Why entry ``place`` of a timing fails: changed inputs, wrong outputs, implausible times. None if it does not."""
    workload = timing.workload
    if timing.inputs_changed:
        return Failure(Verdict.INCORRECT, f"the kernel changes its inputs ({workload.id})", stage=Stage.CHECK)
    wrong: Failure | None = None
    for kind in ("", *kinds):
        specs: Sequence[TensorSpec] = request.operator.outputs(workload)
        if samples.sampled:
            sample = samples.of(workload, timing.seed, kind)
            specs = [TensorSpec(s.name, tuple(len(i) for i in sample.where[s.name]), s.dtype) for s in specs]
            references = dict(sample.references)
        else:
            own = kind or request.operator.input_kinds[0]
            there = samples.from_device(workload, timing.seed, own)
            due = there.references if there else request.truth.references(workload, timing.seed, own)
            references = dict(due)
        prefix = f"{place}/{_array_name(kind, '')}"
        outputs = {n.removeprefix(prefix): a for n, a in timing.arrays.items() if n.startswith(prefix)}
        label = f"timed calls at {workload.id}" + (f" on {kind}" if kind else "")
        why = judge_outputs(request, found, outputs, specs, references, label)
        wrong = wrong or why  # all are read
    if wrong is not None:
        return wrong
    figures = timing.figures(request, place)
    if not figures.roofline_fraction < 1.0:
        reason = f"{workload.id}: {figures.seconds * 1e6:.1f} us is below what the device's peaks allow"
        return Failure(Verdict.IMPLAUSIBLE, reason)
    wall, known = timing.wall_seconds[place], max(figures.seconds, timing.host_seconds[place])
    if not request.target.interpreted and not wall <= WALL_FACTOR * known + WALL_SLACK_SECONDS:
        reason = f"{workload.id}: {wall * 1e6:.0f} us by the wall clock, {known * 1e6:.0f} us by device events"
        return Failure(Verdict.IMPLAUSIBLE, reason)
    return None


def judge_outputs(
    request: TimingRequest,
    found: Findings,
    outputs: Mapping[str, np.ndarray],
    specs: Sequence[TensorSpec],
    references: Mapping[str, Arrays],
    label: str,
) -> Failure | None:
    """Check outputs against the gates, note the readings in ``found``; the failure, or None. Baselines have no
    gates."""
    operator = request.operator
    if (fault := gates.ill_formed(outputs, specs)) is not None:
        return Failure(Verdict.INCORRECT, fault, stage=Stage.CHECK)
    if request.baseline is not None:
        return None
    readings = gates.read_gates(operator.gates, outputs, references, label, least=_element_error(request))
    found.gates.extend(readings)
    if (wrong := gates.failure(readings, operator.gates)) is not None:
        return Failure(Verdict.INCORRECT, wrong, stage=Stage.CHECK)
    return None


def _element_error(request: TimingRequest) -> float:
    """Relative error of one element that a real device's sums explain: matrix units keep 14 bits of fp8 products."""
    if request.target.interpreted:
        return 0.0
    judged = (*request.measured, *(request.checked if isinstance(request, KernelRequest) else ()))
    narrow = any(score.matrix_kind(request.operator, request.inputs(w)) == "f8" for w in judged)
    return INEXACT if narrow else 2.0**-11


def run_job(station: Station, request: TimingRequest, found: Findings, job: Frame) -> ChildOutcome:
    """Run one job on the device, within the request's limits; its log and seconds are added to ``found``."""
    wall = request.limits.trace.wall_seconds * request.time_factor
    outcome = station.run(job, JobLimits(wall, min(STALL_SECONDS, wall)))
    found.logs.append(outcome.log)
    found.spend(outcome.seconds, outcome.cpu_seconds)
    return outcome


def child_failure(outcome: ChildOutcome, doing: str, stage: Stage) -> Failure | None:
    """The failure of a child that answered ``error``, hung or died; None for one that is done."""
    error = outcome.first("error")
    if error is not None:
        return dataclasses.replace(_failure_of(error, stage), entry=error.data.get("entry"))
    if outcome.ending is Ending.DONE:
        return None
    reason = one_line(f"{doing}: {outcome.detail}")
    verdict = Verdict.TIMEOUT if outcome.ending is Ending.TIMEOUT else Verdict.CRASHED
    return Failure(verdict, reason, outcome.log, stage)


def _failure_of(frame: Frame, stage: Stage) -> Failure:
    kind, message, phase, trace = (str(frame.data.get(name, "")) for name in ("type", "message", "phase", "trace"))
    reason = one_line(f"{kind}: {message}" if message else kind)
    if kind in _FOUND_OUT:
        return Failure(_FOUND_OUT[kind], one_line(message), trace, Stage.CHECK)
    if _RESOURCES.search(f"{kind}: {message}"):
        return Failure(Verdict.RESOURCE_ERROR, reason, trace, stage)
    if phase in ("import", "compile") or kind in ("CompilationError", "CompileTimeAssertionFailure"):
        return Failure(Verdict.COMPILE_ERROR, reason, trace, Stage.COMPILE)
    if _MEMORY_FAULT.search(message):
        return Failure(Verdict.CRASHED, one_line(f"the device reports: {message.splitlines()[0]}"), trace, stage)
    if kind == "TypeError" and ("output" in message or "launch returns" in message):
        return Failure(Verdict.INCORRECT, reason, trace, Stage.CHECK)
    return Failure(Verdict.CRASHED, reason, trace, stage)
