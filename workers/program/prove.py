"""The proof of replacements: answers on every recorded launch, losses, gradients, interleaved times of the step.

A loss that falls towards nothing differs from itself by more than itself, so both programs run from the same starts,
which differ in seed and last bits. The mean difference, with its interval, has to lie within what the starts deviate by
and what the gradients' noise explains: with a share p of their power, 1 / sqrt(1 + p) of a step goes where the original
goes, and the run is late on the original's own curve, by twice that at most.

Some steps are thrown elsewhere by any rounding. There the original also runs with the last bit of every parameter
changed: how far that throws it, start by start, says by how much a mean differs by chance.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy
import torch

from tilewright.fitness.intervals import Ratio, student_95
from tilewright.library.launch_replacement import Installation, Option, Replacement, Winner
from tilewright.workers.program.calls import MOST_CALLS, Watch, answers, numbers
from tilewright.workers.program.launches import is_wrapped, short
from tilewright.workers.program.record import Recorded, host_bound
from tilewright.workers.program.replay import Replay, decibels
from tilewright.workers.program.step import BadStep, Program, parameters, real, reason, results, synchronise
from tilewright.workers.program.turns import Rounds, ratio

STARTS = 3
FIXED_SHARE = 0.01
"""Most that results which no step improves may differ, as a share of the largest: they are outputs, not losses."""

Curve = Sequence[float]
"""A result by step."""


@dataclass(frozen=True)
class LossTest:
    """``difference``: of the means, changed less original, with ``half_width`` of its interval; ``spread``: of the
    starts, of outputs that nothing trains a share of the largest; ``late``: what the noise of the gradients explains.
    ``error``: of the difference by what last bits change; ``spread`` is what chance explains then."""

    difference: float
    half_width: float
    spread: float
    late: float
    error: float = 0.0

    @property
    def used(self) -> float:
        """The largest difference that is not seen, as a share of what is allowed."""
        return (abs(self.difference) + self.half_width) / max(self.spread + self.late, 1e-300)

    @property
    def passes(self) -> bool:
        return self.used <= 1.0

    @property
    def shown(self) -> bool:
        """Whether more starts would hardly show more."""
        return not self.passes or abs(self.difference) <= self.late + self.error

    def __str__(self) -> str:
        what = "chance, as last bits tell, explains" if self.error else "the original's starts explain"
        return (
            f"{self.difference:+.4g} +- {self.half_width or self.error:.2g} where {what} {self.spread:.2g} "
            f"and the noise of the gradients explains {self.late:.2g}"
        )


LATE = 2.0
"""Times a run is later than the noise explains."""

LOOKS = {6: 7.0, 16: 3.9}
"""Starts of a step that last bits throw elsewhere, and standard errors that are no chance: of honest programs 0.5 % lie
beyond one of them (1 % where some starts are noisier than others), of those that lean by a deviation of what last bits
change 55 to 73 %, by two all (simulated)."""


def loss_test(
    original: Sequence[Curve],
    changed: Sequence[Curve],
    trains: bool,
    db: float = math.inf,
    nudged: Sequence[Curve] = (),
) -> LossTest:
    """Of curves by start; the worse of the whole run and its last quarter. ``trains``: the results are of a training
    step, with gradients that are ``db`` from the original's; of others a share of the largest is allowed. ``nudged``:
    the original's where the last bit of every parameter changes, from the same starts, as many as ``LOOKS`` has."""
    steps = min(len(curve) for curve in (*original, *changed))
    found = [_of_part(original, changed, begin, trains, db, nudged) for begin in {0, steps - max(1, steps // 4)}]
    return max(found, key=lambda test: test.used)


def _of_part(
    original: Sequence[Curve], changed: Sequence[Curve], begin: int, trains: bool, db: float, nudged: Sequence[Curve]
) -> LossTest:
    own, ours, other = (
        [statistics.fmean(curve[begin:]) for curve in of] for of in (original, changed, nudged or original)
    )
    if not all(map(math.isfinite, (*ours, *own, *other))):
        return LossTest(math.inf, 0.0, 0.0, 0.0)
    differences = [b - a for a, b in zip(own, ours, strict=True)]
    count, width = len(differences), 0.0
    share = 1 / math.sqrt(1 + 10 ** (-db / 10))
    late = LATE * statistics.fmean(abs(_late(curve, begin, share)) for curve in original) if trains else 0.0
    if nudged:
        error = statistics.stdev(b - a for a, b in zip(own, other, strict=True)) / count**0.5
        return LossTest(statistics.fmean(differences), 0.0, LOOKS[count] * error, late, error=error)
    if count > 1:
        width = student_95(count - 1) * statistics.stdev(differences) / count**0.5
    spread = statistics.stdev(own) if count > 1 else 0.0
    if not trains:
        spread = max(spread, FIXED_SHARE * max(abs(v) for curve in original for v in curve))
    return LossTest(statistics.fmean(differences), width, spread, late)


def _late(curve: Curve, begin: int, share: float) -> float:
    """Mean difference, from step ``begin`` on, of a run that comes as far as this one at ``share`` of its steps."""
    places = numpy.arange(len(curve))
    return float((numpy.interp(share * places, places, curve) - curve)[begin:].mean())


MOST_LOOKS = 16
"""Steps in which new kinds of a function's calls are looked for."""

LOSS_STEPS, INTERPRETED_STEPS, SAMPLED = 20, 4, 1 << 22
GRADIENT_DB, FP8_GRADIENT_DB = 30.0, 5.0
"""Least signal-to-noise ratio of a step's gradients, where its own last bits leave as much."""

LOST_DB = 1.0
"""With FP8, that of each parameter's. Of a gradient that was dropped, or is of something else, the difference is as
large as itself: 0 dB or less."""

ROOM_DB = 6.0
"""Where the last bits leave less, other kernels may be off by so much more."""

LEAN = 2.0**-8
"""Most that a parameter's gradient may be longer or shorter as a whole: rounding leans neither way."""


PINNED = "the launches of other kernels, straight to what was compiled"


class Fault(NamedTuple):
    """A change of a step's results. ``with_layers``: whether FP8 layers, if any, were installed when it was seen."""

    why: str
    with_layers: bool = True


class Proof:
    """Decides which replacements stay. ``layers``: FP8 linear layers, which are one replacement among them."""

    def __init__(
        self,
        program: Program,
        recorded: Recorded,
        replacements: Sequence[Replacement | Option | Winner],
        layers: Any = None,
        say: Callable[[str], object] = str,
    ) -> None:
        self.program, self.recorded, self._say = program, recorded, say
        self.parts: dict[str, list[Any]] = {r.label: [r] for r in replacements if not r.pinned}
        """What is proved as one, by its label."""
        self.pins = [r for r in replacements if r.pinned]
        """Kernels as they are, installed beside the others for the sake of the first step: no tuner and no Triton looks
        at their launches again. Where the host bounds the step, that is a part of the gain."""
        if self.pins and host_bound(recorded.data):
            self.parts[PINNED], self.pins = self.pins, []
        self.fp8 = "" if layers is None else str(layers.label)
        if layers is not None:
            self.parts[self.fp8] = [layers]
        self.rounds: dict[str, Rounds] = {}
        """Seconds of a step in the ``look`` that chose the parts, and in the ``proof``."""
        self.left_out: list[dict[str, str]] = []
        self.notes: list[str] = []

    @property
    def kept(self) -> list[Replacement | Option | Winner]:
        """What is installed, but for FP8 layers."""
        return [r for label, of in self.parts.items() if label != self.fp8 for r in of] + self.pins

    def run(self, seconds: float) -> dict[str, Any]:
        """The outcome as data. ``seconds``: the budget of wall time for all of it. A look, of a third of what the
        comparison leaves, says what loses, and predicts what the rounds of the proof say, which take the rest; neither
        has fewer than ``LEAST_ROUNDS``."""
        deadline = time.monotonic() + seconds
        self._say("  comparing answers of kernels and functions")
        self.check_answers()
        self._say("  comparing gradients and results of the step")
        self._check_program()
        result: dict[str, Any] = {"gain": None, "kept": []}
        while self.parts:
            name = "proof" if "look" in self.rounds else "look"
            left = deadline - time.monotonic()
            rounds = self.rounds.get(name) or self._rounds(left if name == "proof" else left / 3)
            if not self.parts:
                break
            whole = ratio(rounds, "", "*")
            parts = {n: ratio(rounds, n, "*") if n in rounds else whole for n in self.parts}
            losing = [n for n, of in parts.items() if not (of.low if name == "proof" else of.value) > 1.0]
            self._say(f"  {name}: {len(rounds[''])} rounds of {len(parts)} part(s), {_range(whole)}")
            if losing or (name == "proof" and whole.low <= 1.0):
                self.notes.append(f"the step with {len(parts)} part(s): {_range(whole)}")
                self._lose(name, rounds, sorted(losing or parts, key=lambda n: parts[n].value), parts)
            elif name == "look":
                self.rounds["look"] = rounds
            else:
                self.rounds["proof"] = rounds
                before = statistics.median(t for r in rounds[""] for t in r)
                predicted = ratio(self.rounds["look"], "", "*")
                result = {
                    "gain": whole.value,
                    "interval": (whole.low, whole.high),
                    "before": before,
                    "seconds": before / whole.value,  # medians of both apart hold what drifts, too
                    "kept": [
                        {
                            "label": label,
                            "gain": gained.value,
                            "interval": (gained.low, gained.high),
                            "calls": sum(r.calls for r in self.parts[label]),
                        }
                        for label, gained in parts.items()
                    ],
                    "predicted": predicted.value,
                    "predicted_interval": (predicted.low, predicted.high),
                }
                break
        if result["gain"] is None:
            self.pins = []
        elif self.pins:
            names = ", ".join(r.name for r in self.pins)
            self.notes.append(f"launched as they are, without their tuners, which need not run: {names}")
        return {**result, "left_out": self.left_out, "notes": self.notes, "rounds": self.rounds}

    def _lose(self, name: str, rounds: Rounds, losing: Sequence[str], parts: Mapping[str, Ratio]) -> None:
        """Leave out half of what loses at once, the least first: others hide their part, and what is left is measured
        more often. What was timed without one part alone is a look at the others, and the proof of a single other."""
        slower = sum(parts[label].value <= 1.0 for label in losing)
        out = losing[: max(slower, (len(losing) + 1) // 2)]
        for label in out:
            self._pin(label)
            self._leave_out(label, f"gives {_range(parts[label])} to the step")
        known = {**self.rounds, name: rounds}
        known = {n: {"": of[""], "*": of[out[0]]} for n, of in known.items() if len(out) == 1 and out[0] in of}
        self.rounds = known if len(self.parts) == 1 or not known else {"look": known[name]}

    def _rounds(self, seconds: float) -> Rounds:
        """Seconds of the step as it was, with all parts, and without each. Where it fails, nothing stays."""
        without = {n: self._installation(n) for n in self.parts if len(self.parts) > 1}
        try:
            return self.recorded.turns.rounds({"": None, "*": self._installation(), **without}, seconds)
        except BadStep as error:
            for label in [*self.parts]:
                self._leave_out(label, str(error))
            return {}

    # -- answers ---------------------------------------------------------------------------------

    def check_answers(self) -> None:
        """Every replacement against the original on the recorded values of every launch it lists, and derived ones; an
        option and a function's winner on the calls of a step."""
        for r in self.kept:
            try:
                why = self._wrong(r) if isinstance(r, Replacement) else self._wrong_option(r)
            except Exception as error:  # noqa: BLE001 - no memory, or a launch or a step that fails with it
                synchronise()  # raises for a device that no longer answers
                why = reason(error)
            if why:
                self._leave_out(r.label, why)
        if not self.parts.get(PINNED, True):
            del self.parts[PINNED]

    def _wrong(self, replacement: Replacement) -> str:
        known = {
            launch.key: launch
            for launch in self.recorded.launches
            if (launch.module, launch.name) == (replacement.module, replacement.name)
        }
        if not known:
            return "the step never launches it"
        for key, configuration in replacement.launches.items():
            launch = known.get(key)
            if launch is None or launch.values is None:
                return "no values of one of its launches were kept"
            for derived in (False, True):
                replay = Replay(launch, derived, replacement.winner)
                if why := replay.learn() or replay.wrong(configuration):
                    return f"wrong at {launch.text[:80]}: {why}"
        return ""

    def _wrong_option(self, option: Option | Winner) -> str:
        known: set[Any] = set()
        served, calls = 0, []
        for _ in range(MOST_LOOKS):
            watch = Watch(option.module, option.name, known=known)
            with Installation([watch]).installed():
                self.program.started()()
            if watch.unkept:
                return "the step calls it with tensors that are too large to keep, or lie in no memory"
            for call in watch.kept.values():
                original, nudged = (answers(call, call.function, bits) for bits in (False, True))
                changed, option.installed = option.stand_in(call.function), True
                try:
                    why = gradient_fault(original, nudged, answers(call, changed))
                finally:
                    served += option.calls
                    option.installed, option.calls, option.others = False, 0, 0
                if why:
                    return why
            known |= watch.kept.keys()
            calls += [f'--args "{call}"' for call in watch.kept.values()]
            if len(watch.kept) < MOST_CALLS:
                break
        else:
            return f"the step calls it in more than {len(known)} ways"
        if not served:
            many = f"it serves none of the step's calls, which tilewright tune takes as {' '.join(calls)}"
            return many if calls else "the step never calls it"
        return ""

    def _check_program(self) -> None:
        """Leave out what changes losses, gradients or results, or with which the step fails: FP8 layers first, where
        they were installed; without them nothing stays."""
        while self.parts:
            before = self._trajectory(None)
            try:
                fault = self._fault(before)
            except BadStep as error:  # a fullgraph of torch.compile takes nothing that stands in for a kernel
                fault = Fault(str(error))
            if fault is None:
                break
            others = [label for label in self.parts if label != self.fp8]
            fp8 = [self.fp8] if fault.with_layers and self.fp8 in self.parts else []
            for label in fp8 or [label for label in others if label != PINNED] or others:
                self._leave_out(label, fault.why)

    def _fault(self, before: dict[str, Any]) -> Fault | None:
        """The change of losses or gradients from the same starts by what is installed; None where they are as they
        were. Notes the memory, too. ``before``: a run of the step as it was."""
        everything = self._installation()
        after = self._trajectory(everything)
        others = {r.label: r.others for r in everything.replacements}
        for label, calls in everything.counts().items():
            if not calls:
                self._leave_out(label, f"it never runs in the step, which makes {others.get(label, 0)} other calls")
        fp8, trains, ours = self.fp8 in self.parts, before["trains"], math.inf
        if before["noted"]:
            again = self._trajectory(None, steps=1, nudged=True)
            own, ours = (_decibels(before["noted"], other["noted"]) for other in (again, after))
            self.notes.append(f"first results and gradients: {ours:.1f} dB (the original's own {own:.1f} dB)")
            if why := gradient_fault(before["noted"], again["noted"], after["noted"], fp8):
                return Fault(why)
        late = len(before["losses"]) - 1
        while late and trains and self.parts.keys() - {self.fp8} and not self.recorded.turns.graph:
            runs = (self._trajectory(None, late + 1, nudged=n, since=late) for n in (False, True))
            first, bits = (run["noted"] for run in runs)
            if _decibels(first, bits) > ROOM_DB:
                last = self._trajectory(self._installation(self.fp8), late + 1, since=late)["noted"]
                if why := gradient_fault(first, bits, last):
                    return Fault(f"in step {late + 1} {why}", with_layers=False)
                break
            late //= 2  # what a last bit throws elsewhere is nearer to itself in an earlier step
        arms: Any = ((None, False, [before]), (everything, False, [after]), (None, True, []))

        def tested(column: int, starts: int, count: int = 2) -> LossTest:
            for under, nudged, runs in arms[:count]:
                runs += [self._trajectory(under, start=n, nudged=nudged) for n in range(len(runs), starts)]
            original, changed, *bits = (
                [[row[column] for row in run["losses"]] for run in runs[:starts]] for *_, runs in arms[:count]
            )
            return loss_test(original, changed, trains, ours, *bits)

        for column in range(len(before["losses"][0])):
            starts = STARTS if self.program.setup is not None else 1
            found = tested(column, starts)
            if trains and not found.passes:  # some steps are thrown as far by a last bit
                for starts in LOOKS:
                    if (found := tested(column, starts, 3)).shown:
                        break
            self.notes.append(f"results of {len(before['losses'])} steps from {starts} start(s): {found}")
            if not found.passes:
                return Fault(f"the step's results differ by {found}")
        if before["peak"]:
            peaks = (f"{run['peak'] / 2**30:.2f} GiB" for run in (before, after))
            self.notes.append("peak memory " + " -> ".join(peaks))
        return None

    def _trajectory(
        self, under: Installation | None, steps: int = 0, start: int = 0, nudged: bool = False, since: int = 0
    ) -> dict[str, Any]:
        """Results by step, gradients and results of the step ``since`` (``noted``), at which what is changed begins,
        whether it trains, and the most memory (bytes)."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        steps = steps or (LOSS_STEPS if torch.cuda.is_available() else INTERPRETED_STEPS)
        if self.program.setup is None:
            steps = 1
        change = under or Installation([])
        with contextlib.ExitStack() as stack:
            if not since:  # the setup may launch, too
                stack.enter_context(change.installed())
            step, losses, noted, trains = self.program.started(start), [], {}, False
            for number in range(steps):
                if number == since:
                    stack.enter_context(change.installed())
                    if nudged:
                        self.program.nudge()
                found = list(results(step()))
                losses.append([float(t.float().norm() if t.numel() != 1 else t) for t in found])
                if number == since and not start:
                    noted = {name: p.grad for name, p in parameters(self.program.state) if p.grad is not None}
                    trains = bool(noted)
                    many = ((n, t) for n, t in enumerate(found) if t.numel() > 1)
                    noted |= {f"result {n} {short(t)}": numbers(t) for n, t in many}
                    noted = {
                        name: real(t.detach()).reshape(-1)[:: t.numel() // SAMPLED | 1].to("cpu", copy=True)
                        for name, t in noted.items()
                    }
            synchronise()
        self.program.state = None  # its memory is the next one's
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return {"losses": losses, "noted": noted, "trains": trains, "peak": peak}

    # -- what stays ------------------------------------------------------------------------------

    def _installation(self, *but: str) -> Installation:
        """Of all parts ``but`` these."""
        layers = self.parts[self.fp8][0] if self.fp8 in self.parts and self.fp8 not in but else None
        out = {id(r) for label in but for r in self.parts.get(label, ())}
        return Installation([r for r in self.kept if id(r) not in out], layers=layers)

    def _leave_out(self, label: str, why: str) -> None:
        self.left_out.append({"label": label, "why": why})
        if self.parts.pop(label, None) is None:
            for pins in (self.pins, self.parts.get(PINNED, [])):
                pins[:] = [pin for pin in pins if pin.label != label]

    def _pin(self, label: str) -> None:
        """What a kernel's own tuner had chosen instead of what did not pay."""
        chosen = {
            launch.key: launch.chosen
            for launch in self.recorded.launches
            if f"{launch.module}.{launch.name}" == label and is_wrapped(launch.outer)
        }
        found = self.parts[label][0]
        if chosen and isinstance(found, Replacement) and label != PINNED:
            pins = self.parts.get(PINNED, self.pins)
            pins.append(replace(found, launches=chosen, winner=None, pinned=True))


def _range(found: Ratio) -> str:
    return f"{found.value:.4f} x ({found.low:.4f} to {found.high:.4f})"


Tensors = Mapping[str, torch.Tensor]
"""Gradients by parameter or argument, and results."""


def gradient_fault(original: Tensors, nudged: Tensors, ours: Tensors, fp8: bool = False) -> str:
    """Why gradients and results are not the original's; empty where they are. ``nudged``: the original's with the last
    bit of every number that it begins with changed: other kernels change less, FP8 layers more."""
    if original.keys() != ours.keys():
        found, lost = (", ".join(sorted(a.keys() - b.keys())) for a, b in ((ours, original), (original, ours)))
        return f"of results and gradients it gives {found or 'nothing'} where the original gives {lost or 'nothing'}"
    own, db = (_decibels(original, other) for other in (nudged, ours))
    if not db >= max(0.0, min(FP8_GRADIENT_DB if fp8 else GRADIENT_DB, own - ROOM_DB)):
        return f"results and gradients are {db:.1f} dB from the original's (the original's own {own:.1f} dB)"
    for name, expected in original.items():
        own, db = (_decibels({name: expected}, {name: other.get(name, expected)}) for other in (nudged, ours))
        result = name.startswith("result ")
        if not (result or db >= min(LOST_DB if fp8 else GRADIENT_DB, own - ROOM_DB)):
            return f"the gradient of {name} is {db:.1f} dB from the original's (the original's own {own:.1f} dB)"
        share = 10 ** (-db / 10)  # of noise: twice as much in length at most, and what it is by chance
        chance = 0.0 if result and expected.numel() == 1 else 3 * math.sqrt(share / max(1, expected.numel()))
        if not (lean := _lean(expected, ours[name])) <= (allowed := LEAN + 2 * share + chance):
            what = name if result else f"the gradient of {name}"
            return f"{what} is as a whole {lean:.2%} off in size, beyond {allowed:.2%}"
    return ""


def _lean(expected: torch.Tensor, found: torch.Tensor) -> float:
    """By how much the part of a tensor that lies along the expected one is longer or shorter, as a share."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.nan_to_num(t.to(device).float(), 0.0, 0.0, 0.0) for t in (expected, found))
    along, size = (float(t.sum(dtype=torch.float64)) for t in (a * (b - a), a * a))
    return abs(along) / size if size else 0.0


def _decibels(expected: Tensors, found: Tensors) -> float:
    """Signal over noise of all gradients together, or of a result where that is less, dB."""
    if expected.keys() != found.keys():
        return -math.inf
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = [[name] for name in expected if name.startswith("result ")]
    gradients = [name for name in expected if [name] not in results]
    groups = [*results, gradients] if gradients else results
    pairs = ([(expected[n].to(device), found[n].to(device)) for n in names] for names in groups)
    return min(map(decibels, pairs), default=math.inf)
