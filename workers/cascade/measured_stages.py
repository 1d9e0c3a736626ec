"""The stages of the measured cascade after the dialect: compile ahead, gates on the device, screen, confirm.

Children say what they saw; the verdicts are made here, in the parent, which alone holds the oracle's answers.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.fitness import intervals
from tilewright.fitness.evaluation import GateReading, Stage, Verdict, WorkloadFigures
from tilewright.seeds.operator import Workload
from tilewright.workers.cascade.common_stages import dealt_kinds
from tilewright.workers.child.frames import Frame
from tilewright.workers.device.kernel_traces import plans_of
from tilewright.workers.device.station import Champion, Entry, Station, entry_id
from tilewright.workers.device.timing import (
    MALFORMED,
    Samples,
    Timing,
    child_failure,
    judge_outputs,
    malformed_answer,
    measure,
    run_job,
)
from tilewright.workers.request import Failure, Findings, Request

SCREEN = (1, 5)
"""Rounds, and timed calls a round, of a first look."""

CONFIRM = (4, 3)
"""The same against the champion."""

LIGHT_SHARE, LIGHT_LEAST = 0.25, 4
"""Shapes of least work that make up this share of a suite's are met first, where so many do and as many are left."""

SURELY = 1.003
"""A contender whose interval lies above this when all shapes have met once needs no further rounds."""

CLEAR, CLEAR_CONFIRM = 1.1, (2, 1)
"""Screened faster than the champion by this factor, a contender needs fewer calls to prove it."""

FORESEEN_CLEAR, FORESEEN_ERROR = 1.01, 0.003
"""One whose interval lies above this, where the shapes that are left are taken as screened, need not meet on them; and
the least error of a logarithm that a screen is credited with."""

INTERPRETED_CALLS = 2
"""Most calls a round of an interpreter, whose times mean nothing: some to choose one from that passes the gates."""

SCREENS_OFF = 0.015
"""Most that screens are taken to be off by, as a logarithm."""

SCREEN_KINDS, KINDS = 1, 2
"""Kinds of inputs that a candidate meets on every timed shape beside those it is timed on; and kinds for new champions
and most drawn shapes. Each costs a call between canaries. A finalist meets all on timed shapes."""

NEAR = 0.995
"""A candidate that screens at this share of the champion's fitness or better is measured against it."""


class GateStage:
    """Stage that runs the gates' inputs on the device and judges the outputs."""

    stage = Stage.CHECK

    def __init__(self, station: Station, kinds: Callable[[Request, int], Sequence[str]] | None = None) -> None:
        """``kinds``: of inputs on the checked shape at a position; None: as a campaign deals them."""
        self._station = station
        self._kinds = kinds or _kinds
        self.due: Callable[[], object] = lambda: None

    def prepare(self, request: Request) -> None:
        """Compute the oracle's answers ahead, perhaps in another thread, for which ``run`` then waits with ``due``."""
        asked = [(w, kind) for place, w in enumerate(request.checked) for kind in self._kinds(request, place)]
        request.truth.prepare([(w, request.seed, kind) for w, kind in asked])

    def run(self, request: Request, found: Findings) -> Failure | None:
        """The first failure on checked shapes, or None. Each kind of inputs meets one shape, for a finalist all."""
        self.due()
        plan = [(w, self._kinds(request, place)) for place, w in enumerate(request.checked)]
        entry = _entry(request, found)
        arrays = {
            f"{w.id}/{kind}/{name}": array
            for w, kinds in plan
            for kind in kinds
            for name, array in request.truth.inputs(w, request.seed, kind).items()
        }
        data = {
            "entries": [entry.data()],
            "workloads": [request.described(w) for w, _ in plan],
            "check": [{"workload": w.id, "kinds": list(kinds)} for w, kinds in plan],
        }
        job = Frame("check", data, arrays, entry.blobs(w.id for w, _ in plan))
        outcome = run_job(self._station, request, found, job)
        if (failure := child_failure(outcome, "checking", self.stage)) is not None:
            return failure
        answers = [frame for frame in outcome.frames if frame.kind == "checked"]
        asked = {(w.id, kind): w for w, kinds in plan for kind in kinds}
        try:
            answered = [(f.data["workload"], f.data["kind"], bool(f.data["inputs_changed"])) for f in answers]
            missing = len(answers) != len(asked) or {(name, kind) for name, kind, _ in answered} != set(asked)
        except MALFORMED as error:
            return malformed_answer(error)
        if missing:
            return Failure(Verdict.CRASHED, "the child ended before it had answered everything")
        first: Failure | None = None  # all are read: what fails on one kind of inputs may fail on others
        for frame, (name, kind, changed) in zip(answers, answered, strict=True):
            workload = asked[name, kind]
            references = request.truth.references(workload, request.seed, kind)
            wrong = judge_outputs(request, found, frame.arrays, request.operator.outputs(workload), references, kind)
            if changed:
                wrong = Failure(Verdict.INCORRECT, f"the kernel changes its inputs ({kind})")
            first = first or wrong
        return first


class HandOverStage:
    """Stage that turns traces of a candidate's Python into plans, the only part of it that a TPU's process gets."""

    stage = Stage.COMPILE

    def run(self, request: Request, found: Findings) -> Failure | None:
        """Never fails."""
        found.plans = plans_of(found.traced)
        return None


class ScreenStage:
    """Stage of a few timed calls on each shape, least work first; of single calls once far behind the best."""

    stage = Stage.MEASURE

    def __init__(self, station: Station, samples: Samples) -> None:
        self._station = station
        self._samples = samples
        self.due: Callable[[], object] = lambda: None

    def prepare(self, request: Request) -> None:
        """Draw samples of the oracle's answers ahead, for which ``run`` then waits with ``due``."""
        seed, most = self._station.operand_seed(request.seed, ahead=True), self._most(request)
        asked = [(w, kind) for w in request.measured for kind in ("", *self._samples.draw_kinds(w, request.seed, most))]
        if not self._samples.sampled:
            first = request.operator.input_kinds[0]
            whole = [(w, seed, kind or first) for w, kind in asked]
            return request.truth.prepare([one for one in whole if self._samples.from_device(*one) is None])
        for workload, kind in asked:
            self._samples.of(workload, seed, kind)

    def run(self, request: Request, found: Findings) -> Failure | None:
        """Add figures to ``found``; a failure where times cannot be true or outputs of timed calls are wrong."""
        self.due()
        champion = self._station.champion()
        pace = {f.workload: f.seconds for f in champion.figures} if champion else {}
        timings = measure(
            self._station,
            request,
            found,
            self._samples,
            [_entry(request, found)],
            _effort(request, SCREEN),
            pace,
            kinds=self._most(request),
        )
        if isinstance(timings, Failure):
            return timings
        found.figures += [t.figures(request) for t in timings]
        return None

    @staticmethod
    def _most(request: Request) -> int | None:
        return None if request.final else SCREEN_KINDS


@dataclass(frozen=True)
class Confirmation:
    """A contender against the champion. ``ratio``: the champion's time over the contender's, above 1 if faster."""

    champion: str
    ratio: intervals.Ratio
    control: intervals.Ratio
    """The champion against itself in the same rounds."""

    whole: bool = True
    """Whether they met on every shape."""

    foreseen: bool = False
    """Whether the ratio takes shapes on which they did not meet as screened."""

    screens: float = 1.0
    """The new value of ``Champion.screens``."""

    @property
    def accepted(self) -> bool:
        """Whether the contender is faster by more than chance."""
        return (self.whole or self.foreseen) and self.ratio.low > 1.0

    def data(self) -> dict[str, Any]:
        """Facts for a diagnosis, by name."""
        return {
            "champion": self.champion,
            "ratio": self.ratio.value,
            "interval": [self.ratio.low, self.ratio.high],
            "control": self.control.value,
            "control_spread": self.control.spread,
            "accepted": self.accepted,
            **({} if self.whole else {"whole": False}),
            **({"foreseen": True} if self.foreseen else {}),
        }


def confirm(
    station: Station, request: Request, found: Findings, samples: Samples, champion: Champion, fitness: float
) -> Confirmation | Failure:
    """Time the contender, of this fitness so far, between two entries of the champion, in rounds of reversed order.

    The figures become the champion's times multiplied by the paired ratio on each shape, so that figures taken at
    different moments of a campaign compare.
    """
    entries = [
        champion.entry,
        _entry(request, found),
        dataclasses.replace(champion.entry, id=f"{champion.entry.id}/again"),
    ]
    effort = _effort(request, CLEAR_CONFIRM if fitness > CLEAR * champion.fitness else CONFIRM)
    known = {f.workload: f for f in champion.figures}
    pace = {name: f.seconds for name, f in known.items()}
    screened = {f.workload: math.log(pace[f.workload] / f.seconds) for f in found.figures}
    timings: dict[str, Timing] = {}
    for workloads, part in _parts(request, effort):
        asked = dataclasses.replace(request, measured=workloads)
        more = measure(station, asked, found, samples, entries, part, {}, judged=1, known=pace)
        if isinstance(more, Failure):
            return more
        for timing in more:
            name = timing.workload.id
            timings[name] = timings[name].with_later_rounds(timing) if name in timings else timing
        first, contender, again = ({name: t.rounds[n] for name, t in timings.items()} for n in range(3))
        held = {name: [[*a, *b] for a, b in zip(first[name], again[name], strict=True)] for name in first}
        ratio, control = intervals.paired_ratio(held, contender), intervals.paired_ratio(first, again)
        foreseen, off = _foreseen(ratio, held, contender, screened)
        whole = len(timings) == len(request.measured)
        clear = not whole and ratio.low > 1.0 and foreseen.low > FORESEEN_CLEAR
        if foreseen.value <= 1.0 or clear or (whole and ratio.low > SURELY):
            break  # the other rounds are not likely to show that it is the faster one, or that it is not
    if not whole and not clear:
        return Confirmation(champion.entry.id, ratio, control, whole=False, screens=_screens(champion, off))
    left = [_rescaled(f, math.exp(-off), {"foreseen": True}) for f in found.figures if f.workload not in timings]
    for name, timing in timings.items():
        figures = timing.figures(request, 1)
        factor = intervals.paired_ratio({name: contender[name]}, {name: held[name]}).value
        scale = known[name].seconds * factor / figures.seconds
        left.append(_rescaled(figures, scale, {"raw_seconds": figures.seconds, "paired": factor}))
    order = {w.id: n for n, w in enumerate(request.measured)}
    found.figures, found.paired = sorted(left, key=lambda f: order[f.workload]), True
    screens = _screens(champion, off)
    if whole:
        return Confirmation(champion.entry.id, ratio, control, screens=screens)
    return Confirmation(champion.entry.id, foreseen, control, whole=False, foreseen=True, screens=screens)


def _screens(champion: Champion, off: float) -> float:
    """Half of what was known and half of what this meeting says, within bounds: a wrong one keeps contenders out."""
    known = math.log(champion.screens)
    mean = (known + off) / 2 if known else off
    return math.exp(max(-SCREENS_OFF, min(SCREENS_OFF, mean)))


def _rescaled(figures: WorkloadFigures, scale: float, noted: Mapping[str, Any]) -> WorkloadFigures:
    """The figures with times multiplied by ``scale``, and ``noted`` in the diagnosis."""
    changes = {
        "seconds": figures.seconds * scale,
        "tflops": figures.tflops / scale,
        "gbytes": None if figures.gbytes is None else figures.gbytes / scale,
        "roofline_fraction": figures.roofline_fraction / scale,
        "diagnosis": {**figures.diagnosis, **noted},
    }
    return figures.model_copy(update=changes)


def _parts(request: Request, effort: tuple[int, int]) -> list[tuple[tuple[Workload, ...], tuple[int, int]]]:
    """Parts of a comparison: shapes with (rounds, calls). Rounds come in pairs, as their order is reversed each time.

    The first pair of many shapes begins with those of least work.
    """
    rounds, calls = effort
    ordered = sorted(request.measured, key=request.operator.flops)
    most = LIGHT_SHARE * sum(map(request.operator.flops, ordered))
    done = itertools.accumulate(map(request.operator.flops, ordered))
    light = tuple(w for w, work in zip(ordered, done, strict=True) if work <= most)
    heavy = tuple(ordered[len(light) :])
    begin = [light, heavy] if len(light) >= LIGHT_LEAST and len(heavy) >= LIGHT_LEAST else [request.measured]
    more = [(request.measured, (rounds - 2, calls))] if rounds > 2 else []
    return [*((shapes, (2, calls)) for shapes in begin), *more]


def _foreseen(
    paired: intervals.Ratio,
    held: Mapping[str, intervals.Rounds],
    contender: Mapping[str, intervals.Rounds],
    screened: Mapping[str, float],
) -> tuple[intervals.Ratio, float]:
    """The ratio on all shapes, and what screens are off by, as a logarithm: the mean of shapes where they met.

    Shapes count as met where they met, else as screened, less what screens are off by. ``paired``: the ratio where they
    met. ``screened``: logarithms of the champion's time over the contender's. The interval holds the scatter of screens
    around what was met.
    """
    met = {name: math.log(intervals.paired_ratio({name: held[name]}, {name: contender[name]}).value) for name in held}
    left = [value for name, value in screened.items() if name not in met]
    both = [met[name] - screened[name] for name in met if name in screened]
    off = statistics.fmean(both) if both else 0.0
    value = statistics.fmean([*met.values(), *(value + off for value in left)])
    if not left:
        return paired, off
    if len(both) < LIGHT_LEAST:
        return intervals.Ratio(math.exp(value), 0.0, math.inf), off
    spread, share = max(statistics.stdev(both), FORESEEN_ERROR), len(left) / (len(met) + len(left))
    screens = intervals.student_95(len(both) - 1) * spread * share * math.sqrt(1 / len(left) + 1 / len(both))
    half = math.hypot(screens, (1.0 - share) * math.log(paired.high / paired.value))
    return intervals.Ratio(math.exp(value), math.exp(value - half), math.exp(value + half)), off


def interval(figures: Sequence[WorkloadFigures], fitness: float) -> tuple[float, float]:
    """The 95 % interval (low, high) of ``fitness``, a geometric mean, from the relative errors of its figures."""
    errors = [float(f.diagnosis.get("relative_error", 0.05)) for f in figures]
    half = intervals.NORMAL_95 * math.sqrt(sum(e * e for e in errors)) / len(errors)
    return fitness * math.exp(-half), fitness * math.exp(half)


def worst_gates(readings: Sequence[GateReading]) -> tuple[GateReading, ...]:
    """Readings without those on timed calls that passed, of which the lowest of each gate stays."""
    timed = [r for r in readings if r.inputs.startswith("timed calls") and r.passed]
    others = [r for r in readings if r not in timed]
    by_gate = {r.gate: [other for other in timed if other.gate == r.gate] for r in timed}
    low = (min(some, key=lambda r: math.inf if r.value is None else r.value) for some in by_gate.values())
    return (*others, *low)


def host_seconds(figures: Sequence[WorkloadFigures]) -> float:
    """Median host time of one launch over the workloads, seconds."""
    return statistics.median(float(f.diagnosis.get("host_seconds", 0.0)) for f in figures)


def _effort(request: Request, usual: tuple[int, int]) -> tuple[int, int]:
    rounds, calls = usual
    return (rounds, min(calls, INTERPRETED_CALLS)) if request.target.interpreted else usual


def _entry(request: Request, found: Findings) -> Entry:
    name = entry_id(request.source, request.params)
    return Entry(name, request.source, request.params, plans=found.plans)


def _kinds(request: Request, position: int) -> Sequence[str]:
    """Kinds of inputs for the checked shape at a position: some while searching, all for a finalist."""
    return request.operator.input_kinds if request.final else dealt_kinds(request, request.checked[position])
