"""The stages of the measured cascade after the dialect: compile ahead, gates on the device, screen, confirm.

Children say what they saw; the verdicts are made here, in the parent, which alone holds the oracle's answers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import statistics
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fitness import gates, paired, score
from fitness.evaluation import GateReading, Stage, Verdict, WorkloadFigures
from seeds.operator import Arrays, TensorSpec, Workload
from seeds.sampled import Elements, Sample, Sampled
from workers.attempt import Failure, Found, Request, one_line
from workers.frames import Frame
from workers.sandbox import Ending, Outcome
from workers.session import JobLimits, Keeper
from workers.station import Champion, Entry, Station

STALL_SECONDS = 10.0
"""Silence of a device child after which its kernel is taken for hung."""

SCREEN = (1, 5)
"""Rounds, and timed calls a round, of a first look."""

CONFIRM = (4, 3)
"""The same against the champion."""

CLEAR, CLEAR_CONFIRM = 1.1, (2, 1)
"""Screened faster than the champion by this factor, a contender needs fewer calls to prove it."""

NEAR = 0.995
"""A candidate that screens at this share of the champion's fitness or better is measured against it."""

WALL_FACTOR, WALL_SLACK_SECONDS = 3.0, 2e-3
"""How far the wall clock may be above what device events and host time say."""

_RESOURCES = re.compile(
    r"out of (resource|memory)|allocate memory|OutOfResources|OutOfMemory|MemoryError", re.I
)
_MEMORY_FAULT = re.compile(
    r"illegal memory access|misaligned address|illegal address|illegal instruction", re.I
)


class Samples:
    """What must be found at sampled places, for the latest (workload, seed) pairs. Not safe for several threads."""

    def __init__(self, request_operator: Any, most: int = 256) -> None:
        self._operator = request_operator
        self._tables = request_operator.tables() if isinstance(request_operator, Sampled) else {}
        self._made: OrderedDict[tuple[str, int], Sample] = OrderedDict()
        self._most = most

    @property
    def tables(self) -> Mapping[str, np.ndarray]:
        """Empty when the operator's operands are made on the host."""
        return self._tables

    def of(self, workload: Workload, seed: int) -> Sample:
        """Only for an operator with ``tables``."""
        key = (workload.id, seed)
        if key not in self._made:
            shapes = {spec.name: tuple(spec.shape) for spec in self._operator.inputs(workload)}
            elements = Elements(seed, workload.id, shapes, self._tables)
            rng = np.random.default_rng([seed, sum(workload.id.encode())])
            self._made[key] = self._operator.sample(workload, elements, rng)
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return self._made[key]


class CompileAheadStage:
    """Compiles for every shape on this CPU, so that the device only loads."""

    stage = Stage.COMPILE

    def __init__(self, compiler: Keeper) -> None:
        self._compiler = compiler

    def run(self, request: Request, found: Found) -> Failure | None:
        """Refuses what does not compile, does not fit, or was compiled before."""
        shapes = {w.id: w for w in (*request.measured, *request.checked)}
        job = Frame(
            "compile",
            {
                "source": request.source,
                "params": dict(request.params),
                "workloads": [request.described(w) for w in shapes.values()],
            },
        )
        wall = request.limits.compile.wall_seconds * request.time_factor
        outcome = self._compiler.run(job, JobLimits(wall, wall))
        found.logs.append(outcome.log)
        if (failure := _failure(outcome, "compiling", Stage.COMPILE)) is not None:
            return failure
        compiled = outcome.first("compiled")
        if compiled is None:
            return Failure(Verdict.CRASHED, "the compiling child ended without an answer")
        launches = compiled.data["launches"]
        text = json.dumps([launches[w.id] for w in request.measured], sort_keys=True)
        found.artefact = hashlib.sha256(text.encode()).hexdigest()[:16]
        found.claimed.update(
            shared=str(max((k["shared"] for k in compiled.data["kernels"].values()), default=0)),
        )
        if (earlier := request.is_known(found.artefact)) is not None:
            return Failure(Verdict.DUPLICATE, f"compiles to the same artefact {found.artefact} as {earlier}")
        return None


class GateStage:
    """Runs the gates' inputs on the device."""

    stage = Stage.CHECK

    def __init__(self, station: Station) -> None:
        self._station = station

    def run(self, request: Request, found: Found) -> Failure | None:
        """Every checked shape; each kind of inputs on one of them, or on all for a finalist."""
        plan = [(w, _kinds(request, place)) for place, w in enumerate(request.checked)]
        arrays = {
            f"{w.id}/{kind}/{name}": array
            for w, kinds in plan
            for kind in kinds
            for name, array in request.truth.inputs(w, request.seed, kind).items()
        }
        data = {
            "entries": [_entry(request).data()],
            "workloads": [request.described(w) for w, _ in plan],
            "check": [{"workload": w.id, "kinds": list(kinds)} for w, kinds in plan],
        }
        outcome = self._station.run(Frame("check", data, arrays), _limits(request))
        found.logs.append(outcome.log)
        if (failure := _failure(outcome, "checking", self.stage)) is not None:
            return failure
        answers = [frame for frame in outcome.frames if frame.kind == "checked"]
        if len(answers) != sum(len(kinds) for _, kinds in plan):
            return Failure(Verdict.CRASHED, "the child ended before it had answered everything")
        shapes = {w.id: w for w in request.checked}
        for frame in answers:
            workload, kind = shapes[frame.data["workload"]], str(frame.data["kind"])
            references = request.truth.references(workload, request.seed, kind)
            wrong = _judge(request, found, frame.arrays, request.operator.outputs(workload), references, kind)
            if frame.data["inputs_changed"]:
                wrong = Failure(Verdict.INCORRECT, f"the kernel changes its inputs ({kind})")
            if wrong is not None:
                return wrong
        return None


@dataclass
class Timing:
    """One workload as a station timed it: seconds by entry, round and call, and what was seen beside them."""

    workload: Workload
    rounds: list[list[list[float]]]
    host_seconds: list[float]
    wall_seconds: list[float]
    brief: bool
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def figures(self, request: Request, place: int = 0) -> WorkloadFigures:
        """The figures of entry ``place``."""
        operator, gpu, workload = request.operator, request.target.gpu, self.workload
        seconds = paired.median_seconds(self.rounds[place])
        flops, size = operator.flops(workload), operator.bytes(workload)
        roofline = score.roofline_seconds(flops, size, gpu, score.operand_kind(request.inputs(workload)))
        return WorkloadFigures(
            workload=workload.id,
            seconds=seconds,
            tflops=score.tflops(flops, seconds),
            roofline_fraction=roofline / seconds,
            kind=request.target.kind,
            diagnosis={
                "host_seconds": self.host_seconds[place],
                "wall_seconds": self.wall_seconds[place],
                "calls": sum(map(len, self.rounds[place])),
                "relative_error": paired.relative_error(self.rounds[place]),
                "gbytes_per_second": size / seconds * 1e-9,
            },
        )


class ScreenStage:
    """A few timed calls on each shape, least work first; far behind the best, one call each on the rest."""

    stage = Stage.MEASURE

    def __init__(self, station: Station, samples: Samples) -> None:
        self._station = station
        self._samples = samples

    def run(self, request: Request, found: Found) -> Failure | None:
        """Adds figures, unless the times cannot be true or the outputs of the timed calls are wrong."""
        champion = self._station.champion()
        pace = {f.workload: f.seconds for f in champion.figures} if champion else {}
        timings = measure(self._station, request, found, self._samples, [_entry(request)], SCREEN, pace)
        if isinstance(timings, Failure):
            return timings
        order = {w.id: n for n, w in enumerate(request.measured)}
        found.figures = sorted((t.figures(request) for t in timings), key=lambda f: order[f.workload])
        return None


@dataclass(frozen=True)
class Confirmation:
    """How a contender fared against the champion. ``ratio`` is champion's time over contender's: above 1 is faster."""

    champion: str
    ratio: paired.Ratio
    control: paired.Ratio
    """The champion against itself in the same rounds."""

    @property
    def accepted(self) -> bool:
        """Faster, by more than chance."""
        return self.ratio.low > 1.0

    def data(self) -> dict[str, Any]:
        """For a diagnosis."""
        return {
            "champion": self.champion,
            "ratio": self.ratio.value,
            "interval": [self.ratio.low, self.ratio.high],
            "control": self.control.value,
            "control_spread": self.control.spread,
            "accepted": self.accepted,
        }


def confirm(
    station: Station, request: Request, found: Found, samples: Samples, champion: Champion, fitness: float
) -> Confirmation | Failure:
    """The contender, of this fitness so far, between two entries of the champion, in rounds of reversed order.

    The figures become the champion's times multiplied by the paired ratio on each shape, so that figures taken at
    different moments of a campaign compare.
    """
    entries = [
        champion.entry,
        _entry(request),
        Entry(f"{champion.entry.id}/again", *_content(champion.entry)),
    ]
    effort = CLEAR_CONFIRM if fitness > CLEAR * champion.fitness else CONFIRM
    timings = measure(station, request, found, samples, entries, effort, {}, judged=1)
    if isinstance(timings, Failure):
        return timings
    first, contender, again = ({t.workload.id: t.rounds[n] for t in timings} for n in range(3))
    held = {name: [[*a, *b] for a, b in zip(first[name], again[name], strict=True)] for name in first}
    ratio, control = paired.paired_ratio(held, contender), paired.paired_ratio(first, again)
    known = {f.workload: f for f in champion.figures}
    rescaled = []
    for timing in timings:
        figures, name = timing.figures(request, 1), timing.workload.id
        factor = paired.paired_ratio({name: contender[name]}, {name: held[name]}).value
        seconds = known[name].seconds * factor
        rate = score.tflops(request.operator.flops(timing.workload), seconds)
        raw = {**figures.diagnosis, "raw_seconds": figures.seconds, "paired": factor}
        share = figures.roofline_fraction * figures.seconds / seconds
        rescaled.append(
            figures.model_copy(
                update={"seconds": seconds, "tflops": rate, "roofline_fraction": share, "diagnosis": raw}
            )
        )
    order = {w.id: n for n, w in enumerate(request.measured)}
    found.figures = sorted(rescaled, key=lambda f: order[f.workload])
    return Confirmation(champion.entry.id, ratio, control)


def measure(
    station: Station,
    request: Request,
    found: Found,
    samples: Samples,
    entries: Sequence[Entry],
    effort: tuple[int, int],
    pace: Mapping[str, float],
    judged: int | None = None,
) -> list[Timing] | Failure:
    """Time entries side by side; the outputs of one timed call of each pass the gates on a sample.

    ``effort``: rounds, calls a round. ``judged``: the entry whose failures are the candidate's; those of the
    others are infrastructure faults. None: every entry's.
    """
    workloads = sorted(request.measured, key=request.operator.flops)
    arrays: dict[str, np.ndarray] = {f"table/{name}": table for name, table in samples.tables.items()}
    for workload in workloads:
        if samples.tables:
            for name, axes in samples.of(workload, request.seed).where.items():
                arrays.update({f"where/{workload.id}/{name}/{n}": axis for n, axis in enumerate(axes)})
        else:
            kind = request.operator.input_kinds[0]
            made = request.truth.inputs(workload, request.seed, kind)
            arrays.update({f"{workload.id}/{name}": array for name, array in made.items()})
    data = {
        "entries": [entry.data() for entry in entries],
        "workloads": [request.described(w) for w in workloads],
        "seed": request.seed,
        "rounds": effort[0],
        "calls": effort[1],
        "pace": dict(pace),
    }
    outcome = station.run(Frame("time", data, arrays), _limits(request))
    found.logs.append(outcome.log)
    if (failure := _failure(outcome, "timing", Stage.MEASURE)) is not None:
        if judged is not None and failure.entry not in (None, entries[judged].id):
            return Failure(
                Verdict.INFRA_ERROR, f"{failure.entry} failed beside the candidate: {failure.reason}"
            )
        return failure
    timings = []
    by_id = {w.id: w for w in workloads}
    for frame in (f for f in outcome.frames if f.kind == "timed"):
        timing = _timing(frame, by_id[frame.data["workload"]])
        for place in range(len(entries)) if judged is None else (judged,):
            if (failure := _objection(request, found, samples, timing, frame, place)) is not None:
                return dataclasses.replace(failure, entry=entries[place].id)
        timings.append(timing)
    if len(timings) != len(workloads):
        return Failure(Verdict.CRASHED, "the child ended before it had timed everything")
    return timings


def _timing(frame: Frame, workload: Workload) -> Timing:
    data = frame.data
    return Timing(
        workload, data["rounds"], data["host_seconds"], data["wall_seconds"], data["brief"], frame.arrays
    )


def _objection(
    request: Request, found: Found, samples: Samples, timing: Timing, frame: Frame, place: int
) -> Failure | None:
    """Why a timing does not count."""
    workload = timing.workload
    if frame.data["inputs_changed"]:
        return Failure(Verdict.INCORRECT, f"the kernel changes its inputs ({workload.id})", stage=Stage.CHECK)
    prefix = f"{place}/"
    outputs = {n.removeprefix(prefix): a for n, a in timing.arrays.items() if n.startswith(prefix)}
    specs: Sequence[TensorSpec] = request.operator.outputs(workload)
    if samples.tables:
        sample = samples.of(workload, request.seed)
        specs = [TensorSpec(s.name, tuple(len(i) for i in sample.where[s.name]), s.dtype) for s in specs]
        references = dict(sample.references)
    else:
        references = request.truth.references(workload, request.seed, request.operator.input_kinds[0])
    label = f"timed calls at {workload.id}"
    if (wrong := _judge(request, found, outputs, specs, references, label)) is not None:
        return wrong
    figures = timing.figures(request, place)
    if not figures.roofline_fraction < 1.0:
        reason = f"{workload.id}: {figures.seconds * 1e6:.1f} us is below what the device's peaks allow"
        return Failure(Verdict.IMPLAUSIBLE, reason)
    wall, known = timing.wall_seconds[place], max(figures.seconds, timing.host_seconds[place])
    if not request.target.gpu.interpreted and not wall <= WALL_FACTOR * known + WALL_SLACK_SECONDS:
        reason = (
            f"{workload.id}: {wall * 1e6:.0f} us by the wall clock, {known * 1e6:.0f} us by device events"
        )
        return Failure(Verdict.IMPLAUSIBLE, reason)
    return None


def _judge(
    request: Request,
    found: Found,
    outputs: Mapping[str, np.ndarray],
    specs: Sequence[TensorSpec],
    references: Mapping[str, Arrays],
    label: str,
) -> Failure | None:
    operator = request.operator
    if (fault := gates.ill_formed(outputs, specs)) is not None:
        return Failure(Verdict.INCORRECT, fault, stage=Stage.CHECK)
    readings = gates.read_gates(operator.gates, outputs, references, label)
    found.gates.extend(readings)
    if (wrong := gates.failure(readings, operator.gates)) is not None:
        return Failure(Verdict.INCORRECT, wrong, stage=Stage.CHECK)
    return None


def interval(figures: Sequence[WorkloadFigures], fitness: float) -> tuple[float, float]:
    """95 % interval of a geometric mean from the errors of its parts."""
    errors = [float(f.diagnosis.get("relative_error", 0.05)) for f in figures]
    half = 1.96 * math.sqrt(sum(e * e for e in errors)) / len(errors)
    return fitness * math.exp(-half), fitness * math.exp(half)


def worst_gates(readings: Sequence[GateReading]) -> tuple[GateReading, ...]:
    """Per gate the lowest reading on timed calls, and every other reading."""
    timed = [r for r in readings if r.inputs.startswith("timed calls")]
    others = [r for r in readings if r not in timed]
    lowest: dict[str, GateReading] = {}
    for reading in timed:
        held = lowest.get(reading.gate)
        value = math.inf if reading.value is None else reading.value
        if held is None or not reading.passed or value < (math.inf if held.value is None else held.value):
            lowest[reading.gate] = reading
    return (*others, *lowest.values())


def host_seconds(figures: Sequence[WorkloadFigures]) -> float:
    """Median host time of one launch over the workloads, seconds."""
    return statistics.median(float(f.diagnosis.get("host_seconds", 0.0)) for f in figures)


def _entry(request: Request) -> Entry:
    key = request.source + json.dumps(dict(request.params), sort_keys=True)
    return Entry(hashlib.sha256(key.encode()).hexdigest()[:16], request.source, request.params)


def _content(entry: Entry) -> tuple[str, Mapping[str, Any]]:
    return entry.source, entry.params


def _limits(request: Request) -> JobLimits:
    wall = request.limits.trace.wall_seconds * request.time_factor
    return JobLimits(wall, min(STALL_SECONDS, wall))


def _kinds(request: Request, position: int) -> Sequence[str]:
    """Kinds of inputs are dealt out over the checked shapes, another way for every seed; a finalist gets all."""
    kinds = request.operator.input_kinds
    if request.final:
        return kinds
    count = len(request.checked)
    return [kind for turn, kind in enumerate(kinds) if (turn + request.seed) % count == position]


def _failure(outcome: Outcome, doing: str, stage: Stage) -> Failure | None:
    """A verdict for a child that said ``error``, hung or died."""
    error = outcome.first("error")
    if error is not None:
        return dataclasses.replace(_said(error, stage), entry=error.data.get("entry"))
    if outcome.ending is Ending.DONE:
        return None
    reason = one_line(f"{doing}: {outcome.detail}")
    verdict = Verdict.TIMEOUT if outcome.ending is Ending.TIMEOUT else Verdict.CRASHED
    return Failure(verdict, reason, outcome.log, stage)


def _said(frame: Frame, stage: Stage) -> Failure:
    kind, message = str(frame.data["type"]), str(frame.data["message"])
    phase, trace = str(frame.data["phase"]), str(frame.data.get("trace", ""))
    reason = one_line(f"{kind}: {message}" if message else kind)
    if _RESOURCES.search(f"{kind}: {message}"):
        return Failure(Verdict.RESOURCE_ERROR, reason, trace, stage)
    if phase in ("import", "compile") or kind in ("CompilationError", "CompileTimeAssertionFailure"):
        return Failure(Verdict.COMPILE_ERROR, reason, trace, Stage.COMPILE)
    if _MEMORY_FAULT.search(message):
        return Failure(
            Verdict.CRASHED, one_line(f"the device reports: {message.splitlines()[0]}"), trace, stage
        )
    if kind == "TypeError" and ("output" in message or "launch returns" in message):
        return Failure(Verdict.INCORRECT, reason, trace, Stage.CHECK)
    return Failure(Verdict.CRASHED, reason, trace, stage)
