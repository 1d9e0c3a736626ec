"""The proof of replacements: answers on every recorded launch, losses, gradients, interleaved times of the step.

A loss that falls towards nothing differs from itself by more than itself, so both programs run from the same starts,
which differ in seed and last bits. The mean difference, with its interval, has to lie within what the starts deviate by
and what the gradients' noise explains: with a share p of their power, 1 / sqrt(1 + p) of a step goes where the original
goes, and the run is late on the original's own curve, by twice that at most.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilewright.fitness.intervals import Ratio, student_95
from tilewright.library.launch_replacement import Installation, Option, Replacement, Winner
from tilewright.workers.program.launches import tuner_of
from tilewright.workers.program.record import Recorded, host_bound
from tilewright.workers.program.replay import Replay, decibels
from tilewright.workers.program.step import BadStep, Program, parameters, reason, results, synchronise
from tilewright.workers.program.turns import ratio

STARTS = 3
FIXED_SHARE = 0.01
"""Most that results which no step improves may differ, as a share of the largest: they are outputs, not losses."""

Curve = Sequence[float]
"""A result by step."""


@dataclass(frozen=True)
class LossTest:
    """``difference``: of the means, changed less original, with ``half_width`` of its interval; ``spread``: of the
    starts; ``late``: what the noise of the gradients explains. All in units of the loss."""

    difference: float
    half_width: float
    spread: float
    late: float
    floor: float = 0.0
    bits: float = 0.0
    """What the last bit of every parameter explains."""

    @property
    def most(self) -> float:
        """The largest difference that is not seen."""
        return abs(self.difference) + self.half_width

    @property
    def allowed(self) -> float:
        return max(self.spread + self.late + self.bits, self.floor)

    @property
    def passes(self) -> bool:
        return self.most <= self.allowed

    def __str__(self) -> str:
        return (
            f"{self.difference:+.4g} +- {self.half_width:.2g} where the original's starts spread by {self.spread:.2g} "
            f"and the noise of the gradients explains {self.late:.2g}"
            + (f", the last bit of every parameter {self.bits:.2g}" if self.bits else "")
        )


LATE, BITS = 2.0, 3.0
"""Times a run is later than the noise explains, and times the most that the last bit of every parameter changes: two
draws from one lot differ by so much more in one of thirty."""


def loss_test(
    original: Sequence[Curve], changed: Sequence[Curve], trains: bool, db: float = math.inf,
    nudged: Sequence[Curve] = (),
) -> LossTest:  # fmt: skip
    """Of curves by start; the worse of the whole run and its last quarter. ``trains``: the results are of a training
    step, with gradients that are ``db`` from the original's; of others a share of the largest is allowed. ``nudged``:
    the original's where the last bit of every parameter changes, from the same starts."""
    steps = min(len(curve) for curve in (*original, *changed))
    found = []
    for begin in {0, steps - max(1, steps // 4)}:
        bits = _of_part(original, nudged, begin, trains, math.inf).most if nudged else 0.0
        bits = BITS * bits if math.isfinite(bits) else 0.0
        found.append(replace(_of_part(original, changed, begin, trains, db), bits=bits))
    return max(found, key=lambda test: test.most / max(test.allowed, 1e-300))


def _of_part(
    original: Sequence[Curve], changed: Sequence[Curve], begin: int, trains: bool, db: float
) -> LossTest:
    ours = [statistics.fmean(curve[begin:]) for curve in changed]
    own = [statistics.fmean(curve[begin:]) for curve in original]
    if not all(map(math.isfinite, (*ours, *own))):
        return LossTest(math.inf, 0.0, 0.0, 0.0)
    differences = [b - a for a, b in zip(own, ours, strict=True)]
    count, width = len(differences), 0.0
    if count > 1:
        width = student_95(count - 1) * statistics.stdev(differences) / count**0.5
    share = 1 / math.sqrt(1 + 10 ** (-db / 10))
    late = LATE * statistics.fmean(abs(_late(curve, begin, share)) for curve in original) if trains else 0.0
    floor = 0.0 if trains else FIXED_SHARE * max(abs(v) for curve in original for v in curve)
    spread = statistics.stdev(own) if count > 1 else 0.0
    return LossTest(statistics.fmean(differences), width, spread, late, floor)


def _late(curve: Curve, begin: int, share: float) -> float:
    """Mean difference, from step ``begin`` on, of a run that comes as far as this one at ``share`` of its steps."""
    places = [(min(int(share * n), len(curve) - 2), share * n, curve[n]) for n in range(begin, len(curve))]
    if len(curve) < 2:
        return 0.0
    return statistics.fmean(
        curve[n] + (at - n) * (curve[n + 1] - curve[n]) - value for n, at, value in places
    )


LOSS_STEPS, INTERPRETED_STEPS, SAMPLED = 20, 4, 1 << 24
OPTION_SHARE = 2.0**-8
"""Most that an option may change the first step's result: a sum in another order, in bfloat16."""

GRADIENT_DB, FP8_GRADIENT_DB = 20.0, 5.0
"""Least signal-to-noise ratio of all gradients of the first step."""

LOST_DB = 1.0
"""Of a gradient that was dropped, or is of something else, the difference is as large as itself: 0 dB or less."""


PINNED = "the launches of other kernels, straight to what was compiled"


class Proof:
    """Decides which replacements stay. ``layers``: FP8 linear layers, which are one replacement among them."""

    def __init__(
        self, program: Program, recorded: Recorded, replacements: Sequence[Replacement | Option | Winner],
        layers: Any = None,
    ) -> None:  # fmt: skip
        self.program, self.recorded = program, recorded
        self.kept = [r for r in replacements if not r.pinned]
        self.pins = [r for r in replacements if r.pinned]
        """Kernels as they are, installed beside the others: no tuner and no Triton looks at their launches again."""
        self.paid = bool(self.pins) and host_bound(recorded.data)
        """Whether that is a part of the gain (``PINNED``), and not for the sake of the first step."""
        self.layers = layers
        self.left_out: list[dict[str, str]] = []
        self.notes: list[str] = []

    def run(self, seconds: float, worth: Mapping[str, float]) -> dict[str, Any]:
        """The outcome as data. ``seconds``: the budget of wall time for the interleaved rounds. ``worth``: what the
        search says that each function's launches save of the step, by label."""
        self.check_answers()
        if self.kept or self.layers is not None or self.paid:
            self._check_program()
        alone = self._alone(worth)
        result: dict[str, Any] = {"gain": None, "kept": []}
        while self.kept or self.layers is not None or self.paid:
            parts, whole, before, after = self._measured(seconds)
            losing = [label for label, gained in parts.items() if not gained.low > 1.0]
            if not losing and whole.low > 1.0:
                calls = self._installation(self.kept, self.layers).counts()
                calls[PINNED] = sum(r.calls for r in self.pins)
                result = {
                    "gain": whole.value, "interval": (whole.low, whole.high), "before": before, "seconds": after,
                    "kept": [{
                        "label": label, "gain": gained.value, "interval": (gained.low, gained.high),
                        "alone": 1 / (1 - alone.get(label, 0.0)), "calls": calls[label],
                    } for label, gained in parts.items()],
                    "predicted": 1 / (1 - sum(alone.get(label, 0.0) for label in parts)),
                }  # fmt: skip
                break
            if not losing:
                losing = list(parts)
            # those that the interval cannot tell from nothing leave one by one where others hide their part
            worst = sorted(losing, key=lambda label: parts[label].low)[: max(1, (len(losing) + 1) // 2)]
            for label in worst:
                self._pin(label)
                self._leave_out(label, f"gives {_range(parts[label])} to the step")
        if result["gain"] is None:
            self.pins = []
        elif self.pins:
            names = ", ".join(r.name for r in self.pins)
            self.notes.append(f"launched as they are, without their tuners, which need not run: {names}")
        return {**result, "left_out": self.left_out, "notes": self.notes}

    # -- answers ---------------------------------------------------------------------------------

    def check_answers(self) -> None:
        """Every replacement against the original on the recorded values of every launch it lists, and derived ones; an
        option and a function's winner by the first step's gradients and result."""
        for r in [*self.kept, *self.pins]:
            try:
                why = self._wrong(r) if isinstance(r, Replacement) else self._wrong_option(r)
            except Exception as error:  # noqa: BLE001 - no memory, or a launch or a step that fails with it
                synchronise()  # raises for a device that no longer answers
                why = reason(error)
            if why:
                self._leave_out(r.label, why)
                self.pins = [pin for pin in self.pins if pin is not r]

    def _wrong(self, replacement: Replacement) -> str:
        known = {
            launch.key: launch for launch in self.recorded.launches
            if (launch.module, launch.name) == (replacement.module, replacement.name)
        }  # fmt: skip
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
        before, after = (self._trajectory(i, steps=1) for i in (None, Installation([option])))
        first = [run["losses"][0] for run in (before, after)]
        if len(first[0]) != len(first[1]) or any(
            not abs(a - b) <= OPTION_SHARE * max(abs(a), abs(b)) for a, b in zip(*first, strict=True)
        ):
            return f"the first result is {first[1]}, the original's {first[0]}"
        db = _first_db(before["first"], after["first"])
        return "" if db >= GRADIENT_DB else f"results and gradients are {db:.1f} dB from the original's"

    def _refuse(self, why: str) -> None:
        """FP8 layers are the first to go; without them nothing stays."""
        if self.layers is not None:
            self._leave_out(self.layers.label, why)
            return self._check_program()
        if not self.kept:
            self.pins, self.paid = [], False
        for label in [r.label for r in self.kept]:
            self._leave_out(label, why)
        if self.paid:
            self._check_program()

    def _check_program(self) -> None:
        """Losses, gradients and memory from the same starts, as it was and with everything installed."""
        everything = self._installation(self.kept, self.layers)
        before = self._trajectory(None)
        try:
            after = self._trajectory(everything)
        except BadStep as error:  # a fullgraph of torch.compile takes nothing that stands in for a kernel
            return self._refuse(str(error))
        again = self._trajectory(None, steps=1, nudged=True) if before["first"] else before
        for label, calls in everything.counts().items():
            if not calls:
                self._leave_out(label, "it never runs in the step")
        fp8, trains, ours = self.layers is not None, before["trains"], math.inf
        if before["first"]:
            own, ours = (_first_db(before["first"], other["first"]) for other in (again, after))
            self.notes.append(f"first results and gradients: {ours:.1f} dB (the original's own {own:.1f} dB)")
            if not ours >= min(FP8_GRADIENT_DB if fp8 else GRADIENT_DB, own - 6.0):
                return self._refuse(f"results and gradients are {ours:.1f} dB from the original's")
            if why := lost_gradient(before["first"], again["first"], after["first"]):
                return self._refuse(why)
        starts = STARTS if self.program.setup is not None else 1
        pairs = [(before, after)] + [
            (self._trajectory(None, start=n), self._trajectory(everything, start=n)) for n in range(1, starts)
        ]
        nudged: list[dict[str, Any]] = []
        for column in range(len(before["losses"][0])):
            curves = [_column(runs, column) for runs in zip(*pairs, strict=True)]
            found = loss_test(curves[0], curves[1], trains, ours)
            if trains and not found.passes:  # some steps are thrown as far by a last bit
                nudged = nudged or [self._trajectory(None, start=n, nudged=True) for n in range(starts)]
                found = loss_test(curves[0], curves[1], trains, ours, _column(nudged, column))
            self.notes.append(f"results of {len(before['losses'])} steps from {starts} start(s): {found}")
            if not found.passes:
                return self._refuse(f"the step's results differ by {found}")
        if before["peak"]:
            self.notes.append(
                f"peak memory {before['peak'] / 2**30:.2f} GiB -> {after['peak'] / 2**30:.2f} GiB"
            )

    def _trajectory(
        self, under: Installation | None, steps: int = 0, start: int = 0, nudged: bool = False
    ) -> dict[str, Any]:
        """Results by step, gradients and results of the first one, whether it trains, and the most memory (bytes)."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        steps = steps or (LOSS_STEPS if torch.cuda.is_available() else INTERPRETED_STEPS)
        if self.program.setup is None:
            steps = 1
        with (under or Installation([])).installed():
            step, losses, first, trains = self.program.started(start, nudged), [], {}, False
            for number in range(steps):
                found = list(results(step()))
                losses.append([float(t.float().norm() if t.numel() != 1 else t) for t in found])
                if not (number or start):
                    first = {name: p.grad for name, p in parameters(self.program.state) if p.grad is not None}
                    trains = bool(first)
                    tensors = [t for t in found if t.numel() > 1 and t.is_floating_point()]
                    first |= {f"result {n}": t for n, t in enumerate(tensors)}
                    first = {
                        name: t.detach().reshape(-1)[:: -(-t.numel() // SAMPLED) or 1].to("cpu", copy=True)
                        for name, t in first.items()
                    }
            synchronise()
        self.program.state = None  # its memory is the next one's
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        return {"losses": losses, "first": first, "trains": trains, "peak": peak}

    # -- times -----------------------------------------------------------------------------------

    def _alone(self, worth: Mapping[str, float]) -> dict[str, float]:
        """Share of the step that each part saves alone, by label: the prediction adds them. Kernels are too little to
        be seen one by one; they share what they save together as the search says."""
        kernels = [r for r in self.kept if isinstance(r, Replacement)]
        arms: dict[str, Installation | None] = {"": None}
        if kernels:
            arms["*"] = Installation(kernels)
        if self.paid:
            arms[PINNED] = Installation(self.pins)
        arms |= {r.label: Installation([r]) for r in self.kept if not isinstance(r, Replacement)}
        if self.layers is not None:
            arms[self.layers.label] = Installation([], layers=self.layers)
        if len(arms) == 1:
            return {}
        rounds = self.recorded.turns.beside("", arms)
        saved = {name: 1 - 1 / ratio(found, "", name).value for name, found in rounds.items()}
        together, whole = saved.pop("*", 0.0), sum(worth.get(r.label, 0.0) for r in kernels)
        for r in kernels:
            saved[r.label] = together * (worth.get(r.label, 0.0) / whole if whole else 1 / len(kernels))
        return saved

    def _measured(self, seconds: float) -> tuple[dict[str, Ratio], Ratio, float, float]:
        """By label what it gives to the step beside all others; what all give; seconds before and after."""
        everything, turns = self._installation(self.kept, self.layers), self.recorded.turns
        arms: dict[str, Installation | None] = {"": None, "*": everything}
        # a program in a graph holds its kernels: each set of them is captured again
        single = {r.label: r for r in self.kept if isinstance(r, Replacement) and not turns.graph}
        for r in self.kept:
            if r.label not in single:
                arms[r.label] = self._installation([o for o in self.kept if o is not r], self.layers)
        if self.layers is not None:
            arms[self.layers.label] = self._installation(self.kept, None)
        if self.paid:
            arms[PINNED] = Installation(self.kept, layers=self.layers)
        share = len(arms) / (len(arms) + len(single))
        rounds = turns.beside("*", arms, seconds * share)
        parts = {name: ratio(found, name, "*") for name, found in rounds.items()}
        whole = parts.pop("")
        before, after = (statistics.median(t for r in rounds[""][name] for t in r) for name in ("", "*"))
        if single:
            found = turns.without(everything, single, seconds * (1 - share))
            parts |= {name: ratio(found, name, "") for name in single}
        return parts, whole, before, after

    # -- what stays ------------------------------------------------------------------------------

    def _installation(
        self, replacements: Sequence[Replacement | Option | Winner], layers: Any
    ) -> Installation:
        return Installation([*replacements, *self.pins], layers=layers)

    def _leave_out(self, label: str, why: str) -> None:
        self.left_out.append({"label": label, "why": why})
        self.kept = [r for r in self.kept if r.label != label]
        if self.layers is not None and self.layers.label == label:
            self.layers = None
        if label == PINNED:
            tuned = {f"{of.module}.{of.name}" for of in self.recorded.launches if tuner_of(of.outer)}
            self.paid, self.pins = False, [pin for pin in self.pins if pin.label in tuned]

    def _pin(self, label: str) -> None:
        """What a kernel's own tuner had chosen instead of what did not pay."""
        chosen = {
            launch.key: launch.chosen for launch in self.recorded.launches
            if f"{launch.module}.{launch.name}" == label and (self.paid or tuner_of(launch.outer) is not None)
        }  # fmt: skip
        found = next((r for r in self.kept if r.label == label), None)
        if chosen and isinstance(found, Replacement):
            self.pins.append(Replacement(found.module, found.name, chosen, pinned=True))


def _column(runs: Sequence[Mapping[str, Any]], column: int) -> list[list[float]]:
    return [[row[column] for row in run["losses"]] for run in runs]


def _range(found: Ratio) -> str:
    return f"{found.value:.4f} x ({found.low:.4f} to {found.high:.4f})"


def lost_gradient(
    original: dict[str, torch.Tensor], nudged: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]
) -> str:
    """Which parameter has not its gradient any more, however small beside others; empty where all have."""
    for name in (name for name in original if not name.startswith("result ")):
        own, db = (_first_db({name: original[name]}, {name: other[name]}) for other in (nudged, ours))
        if not db >= min(LOST_DB, own - 6.0):
            return (
                f"the gradient of {name} is {db:.1f} dB from the original's (the original's own {own:.1f} dB)"
            )
    return ""


def _first_db(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> float:
    """Signal over noise of all gradients together, or of a result where that is less, dB."""
    if expected.keys() != found.keys():
        return -math.inf
    device, groups = "cuda" if torch.cuda.is_available() else "cpu", dict[str, list[str]]()
    for name in expected:
        groups.setdefault(name if name.startswith("result ") else "", []).append(name)
    pairs = ([(expected[n].to(device), found[n].to(device)) for n in names] for names in groups.values())
    return min(map(decibels, pairs), default=math.inf)
