"""The kinds of inputs that a kernel is judged on: those that the original kernel and its reference bear."""

import inspect
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.fitness.elements import ROUNDED, turned_one_way
from tilewright.fitness.gates import agreement
from tilewright.workers.intake.calls.call_text import GIVEN
from tilewright.workers.intake.calls.dtypes import is_float, is_narrow
from tilewright.workers.intake.child_program import show_step
from tilewright.workers.intake.judge.ahead import Ahead
from tilewright.workers.intake.judge.bounds import Bar, Reading, bar_of_text, divisor_apart, read, wrong
from tilewright.workers.intake.judge.inputs import (
    ALIKE,
    EXTREME,
    FEW_VALUES,
    MOST_ANSWER,
    PADDED,
    ROWS,
    SET_APART,
    SIGNED,
    SPECIAL,
    TIES,
    USUAL_SPREAD,
    draws,
    family,
    likest,
)
from tilewright.workers.intake.judge.reference import as_float64
from tilewright.workers.intake.operator import Operand, Result, as_result, is_code

Arrays = Mapping[str, np.ndarray]
Dims = Mapping[str, int]


@dataclass(frozen=True)
class Pair:
    """A kernel's outputs, and the answers to the same inputs."""

    outputs: list[np.ndarray]
    answers: list[np.ndarray]
    readings: dict[int, Reading] = field(default_factory=dict)

    def reading(self, number: int) -> Reading:
        """That of one output, read once."""
        if number not in self.readings:
            answer = self.answers[number].astype(np.float64)
            self.readings[number] = read(self.outputs[number], answer)
        return self.readings[number]


EDGE_DRAWS = 8
"""Draws on which the reference must stay finite with an edge: a label that meets minus infinity is rare."""

SEVERAL_DRAWS = dict.fromkeys((*SPECIAL, PADDED, SIGNED, ALIKE, "lone"), 8)
"""Draws that the kernel runs of kinds that have several forms, or are about one operand: all of them in turn."""

SEED = 17

AT_ONCE = 8
"""Draws that are answered before the next are looked at."""

STEADY_DRAWS, RARE, LAST_PLACE = 12, 16.0, 2.0**-23
"""Draws in which inputs are changed by so much; a largest change of answers so many times the median is a rare one."""

LARGEST = 3e38
"""Largest answer to inputs at the edge of a type."""

QUIET = ("far", "usual", "shifted", "sided")
"""Kinds whose absence gets no note: the next kind of the family says nearly as much."""


@dataclass(frozen=True)
class CheckedShape:
    """A small shape with normal inputs, the reference's answers and the kernel's outputs.

    ``looped``: the kernel takes several tiles along an axis there. ``seconds``: of a processor, that a run took.
    """

    dims: dict[str, int]
    inputs: dict[str, np.ndarray]
    answers: list[np.ndarray]
    outputs: list[np.ndarray]
    looped: bool = False
    seconds: float = 0.0

    @property
    def elements(self) -> int:
        return sum(array.size for array in self.inputs.values())


@dataclass(frozen=True)
class Effort:
    """How much is run to decide on one kind.

    ``draws``: further draws, twice as far apart, on which the reference must stay finite; ``kernel_draws``: those of
    them that the kernel runs, too; ``on_largest``: whether they have the largest checked shape, else the smallest.
    ``blamed_spread``: at this spread an error that the dtypes do not explain is the kernel's own, at larger ones the
    inputs'. ``seconds``: after these of ``clock`` no other kind is tried. ``special``: whether what is no number is
    tried.
    """

    draws: int
    kernel_draws: Collection[int]
    on_largest: bool
    blamed_spread: int
    seconds: float = math.inf
    special: bool = True
    clock: Callable[[], float] = time.process_time
    """In seconds of a processor: which kinds there are does not depend on how busy a machine is."""

    ahead: bool = False
    """Whether forked processes may run kinds before they are asked for; what holds a device or threads cannot."""


def inputs_of(
    operands: Sequence[Operand], dims: Dims, kind: str, spread: int, seed: int = SEED
) -> dict[str, np.ndarray]:
    """Inputs of one kind at one shape."""
    return draws(operands, dims, kind, spread, np.random.default_rng([seed, len(kind), spread]), seed)


class InputKinds:
    """Finds the kinds that a kernel bears. ``names``: those kinds; ``spread``: see ``draws``; ``operands``: the
    operands with their edges.

    ``answers``: the reference, or OwnAnswers; ``run_all``: the kernel's outputs at each shape, None where it fails.
    ``factors`` and ``source``: see ``bounds.bar_of_text``. ``numbers``: negative integers that may be labels to ignore.
    """

    def __init__(
        self,
        operands: Sequence[Operand],
        shapes: Sequence[CheckedShape],
        answers: Callable[[Arrays], list[np.ndarray]],
        run_all: Callable[[Sequence[tuple[Dims, Arrays]]], Sequence[list[np.ndarray] | None]],
        effort: Effort,
        factors: str,
        source: str,
        numbers: Sequence[int],
    ) -> None:
        show_step("trying inputs")
        self._shapes, self._run_all, self._effort = shapes, run_all, effort
        self._answers_to: Callable[[Sequence[Arrays]], list[list[np.ndarray]]] = getattr(
            answers, "to_all", lambda every: [answers(given) for given in every]
        )
        self._factors, self._source = factors, source
        self._until = effort.clock() + effort.seconds
        self._tried = Ahead(self._outcomes_and_others)
        self._ordered = sorted(shapes, key=lambda shape: shape.elements)
        self._probe = self._ordered[-1 if effort.on_largest else 0].dims
        self._dtypes = [output.dtype.name for output, _ in zip(shapes[0].outputs, shapes[0].answers, strict=False)]
        self._pairs = {"randn": [Pair(shape.outputs, shape.answers) for shape in shapes]}
        self.spread = 4
        self.notes: list[str] = []
        more = self._bears(operands, [(self._ordered[-1].dims, 1)], "randn", 4, MOST_ANSWER, [0])
        self._pairs["randn"] += more or []
        self.operands = list(operands)
        if None in self._bars(self._pairs):
            return  # other kinds cannot make it right, and hundreds of runs find them
        if not hasattr(answers, "to_all"):  # a kernel that answers itself says nothing of what it reads outside
            self.operands = with_bounds(operands, self._probe, self._bears_edges)
        if small := [o.name for o in self.operands if _unbounded(o)]:
            self.notes.append(f"integers of {', '.join(small)} are drawn below 2: the call names no bound")
        self.operands = with_edges(self.operands, numbers, self._bears_edges)
        own = ((GIVEN,),) if any(o.values for o in self.operands) else ()
        floats = sum(is_float(operand.dtype) for operand in operands)
        apart = (SET_APART,) if floats else ()  # integers are the same of every such kind
        if effort.ahead:
            later: list[str] = []
            if floats:  # further kinds are for kernels that fail on these; products bear 54 and 60
                later = [SET_APART[1], *(kind for kinds in ROWS.values() for kind in kinds)]
                later += [f"{n}-{p}" for n, some in EXTREME.items() for p in some if p in (some[0], 54, 60)]
            firsts = [kinds[0] for kinds in (*own, *apart, tuple(FEW_VALUES))]
            self._tried.begin((kind, USUAL_SPREAD) for kind in dict.fromkeys([*firsts, *later]))
        for kinds in (*own, *apart, tuple(FEW_VALUES)):
            for kind in kinds:
                spreads = (4,) if kind in ("far", GIVEN, *FEW_VALUES) else (4, 2, 1)
                if any(self._added(kind, spread) for spread in spreads):
                    break
                if kind not in QUIET:
                    why = "no time was left to try them" if self._late else "the original kernel fails on them"
                    self.notes.append(f"inputs of kind {kind} are not used: {why}")
        if None in self._bars(self._pairs):
            return
        self._one_of(ROWS[SIGNED] if floats else ())
        if any(is_float(o.dtype) and likest(o, self.operands) != o.name for o in self.operands):
            self._one_of((ALIKE,))
        self._one_of(ROWS[PADDED])
        if any(is_narrow(dtype) or is_code(dtype, self.operands) for dtype in self._dtypes):
            self._one_of((TIES,))
        for name, powers in EXTREME.items():
            if floats > (name == "lone"):  # alone it is as huge
                self._one_of([f"{name}-{power}" for power in powers])
        for kind in SPECIAL if floats else ():
            if not (effort.special and self._one_of(ROWS[kind])):
                self.notes.append(f"what it returns for inputs that are {kind} is unspecified")
        if not set(FEW_VALUES) & set(self._pairs) and self._late:
            self._until = math.inf  # these are few runs, and hardly any kernel fails on them
            if self._added("repeated", USUAL_SPREAD):
                self.notes = [note for note in self.notes if not note.startswith("inputs of kind repeated")]

    @property
    def _late(self) -> bool:
        return self._effort.clock() > self._until

    @property
    def names(self) -> list[str]:
        return list(self._pairs)

    def add(self, kind: str, outputs: list[np.ndarray], answers: list[np.ndarray]) -> None:
        """Add what the kernel and the reference say of further inputs of a kind, such as those of a timed shape."""
        self._pairs[kind].append(Pair(outputs, answers))

    def bound(self, number: int, kinds: Collection[str] = ()) -> tuple[Bar | None, str, str]:
        """``bar_of_text`` of a result on these kinds (default: all); a bar of 0 dB for integers and 8-bit floats."""
        dtype = self._dtypes[number]
        if not is_float(dtype) or is_narrow(dtype):
            return Bar(0.0, None), "", ""
        readings = [pair.reading(number) for kind in kinds or self._pairs for pair in self._pairs[kind]]
        known = [operand.dtype for operand in self.operands]
        return bar_of_text(readings, known, dtype, self._factors, self._source)

    def results(self, shapes: Sequence[tuple[int | str, ...]]) -> tuple[list[Result], str]:
        """The results with their bounds, and why the kernel itself is outside them. ``shapes``: by dimensions."""
        found = []
        for number, shape in enumerate(shapes):
            bound, why, narrow = self.bound(number)
            if narrow:
                self.notes.append(
                    f"result {number} is judged with the tolerances of {narrow}: the kernel converts to it"
                )
            floats = is_float(self._dtypes[number]) and not is_narrow(self._dtypes[number])
            usual = [(s.dims, s.outputs[number], s.answers[number]) for s in self._shapes if floats]
            if why := why or divisor_apart(usual):
                return [], f"result {number}: {why}"
            assert bound is not None
            if bound.own_db < math.inf:
                self.notes.append(
                    f"result {number} of the kernel is down to {bound.own_db:.1f} dB from the reference, less than its "
                    "types leave: see that both compute the same, for candidates may be as far off"
                )
            name, dtype = f"o{number}", self._dtypes[number]
            leans = self._leans(number) if is_narrow(dtype) or is_code(dtype, self.operands) else 0.0
            found.append(Result(name, dtype, shape, bound.min_db, bound.worst, number, leans))
        return found, ""

    def _leans(self, number: int) -> float:
        """Twice the largest share of the kernel's own codes that differ, if mostly too large or too small; else 0."""
        codes = [pair.outputs[number] for some in self._pairs.values() for pair in some]
        wanted = [pair.answers[number] for some in self._pairs.values() for pair in some]
        pairs = [(one, as_result(due, one.dtype.name)) for one, due in zip(codes, wanted, strict=True)]
        turned = any(turned_one_way(*pair) for pair in pairs)
        return 2 * max(1 - agreement(*pair) for pair in pairs) if turned else 0.0

    # -- one kind ----------------------------------------------------------------------------------

    def _one_of(self, kinds: Iterable[str]) -> bool:
        """Add the first of these that is borne."""
        return any(self._added(kind, USUAL_SPREAD) for kind in kinds)

    def _added(self, kind: str, spread: int) -> bool:
        """Add a kind, unless reference or kernel fails on it, or the dtypes do not explain the kernel's errors."""
        if self._late:
            return False
        found, others, steady = self._tried(kind, spread)
        if found is None:
            return False
        before = self._bars(self._pairs) if kind not in SET_APART and kind != "repeated" else []
        self._pairs[kind] = found
        unexplained = spread > self._effort.blamed_spread or kind == "far"
        self._pairs[kind] += others or []
        fits = steady and (kind not in SET_APART or not unexplained or None not in self._bars((kind,)))
        fits = fits and (not before or self._bars(self._pairs) == before)
        if not fits:
            del self._pairs[kind]
        elif kind in SET_APART:
            self.spread = spread
        return fits

    def _steady(self, kind: str, spread: int) -> bool:
        """Whether what float32 does not hold of inputs changes answers by little, or alike in every draw. Where an
        attention's best keys are nearly as good, their last place decides between them: then what the kernel is off by
        in some draws does not say what a kernel that computes the same is off by in others."""
        changes: list[float] = []
        for seed in range(STEADY_DRAWS if self._effort.draws >= STEADY_DRAWS else 0):
            given = {n: as_float64(a) for n, a in inputs_of(self.operands, self._probe, kind, spread, seed).items()}
            rng, floats = np.random.default_rng(seed), {n: a for n, a in given.items() if a.dtype.kind == "f"}
            near = {n: a * (1 + LAST_PLACE * rng.standard_normal(a.shape)) for n, a in floats.items()}
            try:
                answers = zip(*self._answers_to([given, {**given, **near}]), strict=True)
            except Exception:  # noqa: BLE001 - a reference that does not take float64
                return True
            changes.append(max([0.0, *(read(b, a).needed for a, b in answers if a.dtype.kind == "f")]))
        most = max(changes, default=0.0)
        return not (most > ROUNDED and most > RARE * float(np.median(changes)))

    def _bars(self, kinds: Collection[str]) -> list[Bar | None]:
        return [self.bound(number, kinds)[0] for number in range(len(self._dtypes))]

    def _outcomes_and_others(self, kind: str, spread: int) -> tuple[list[Pair] | None, list[Pair] | None, bool]:
        """The kernel's outputs and the answers at every checked shape, ``_others`` of kinds that have any, and whether
        all are borne and ``_steady``."""
        every = [(shape.dims, SEED) for shape in self._ordered]
        found = self._bears(self.operands, every, kind, spread, math.inf, range(len(every)))
        others = [] if found and kind in ("repeated", GIVEN) else found and self._others(kind, spread + 1)
        steady = others is not None and (kind not in SET_APART or self._steady(kind, spread + 1))
        return found, others, steady

    def _others(self, kind: str, spread: int) -> list[Pair] | None:
        """Further draws, None where reference or kernel does not bear them: some overflow. The more draws, the nearer
        is the largest error to what a campaign sees."""
        most = LARGEST if family(kind) in EXTREME else MOST_ANSWER
        several = SEVERAL_DRAWS.get(family(kind), 0)
        asked = [(self._probe, seed) for seed in range(max(several, self._effort.draws))]
        runs = range(several) if several else self._effort.kernel_draws
        own = [place for place, (_, seed) in enumerate(asked) if seed in runs]
        return self._bears(self.operands, asked, kind, spread, most, own)

    def _bears_edges(self, operands: Sequence[Operand]) -> bool:
        """Whether the reference bears the operands' edges on every shape, and the kernel on the smallest."""
        count = min(EDGE_DRAWS, self._effort.draws)
        every = [(shape.dims, seed) for shape in self._ordered for seed in range(count)]
        return self._bears(operands, every, "repeated", 4, math.inf, [0]) is not None

    def _bears(
        self,
        operands: Sequence[Operand],
        asked: Sequence[tuple[Dims, int]],
        kind: str,
        spread: int,
        most: float,
        own: Collection[int],
    ) -> list[Pair] | None:
        """Of draws at some shapes, with their seeds: the first alone, since most that fail fail on it. The kernel runs
        those at the places ``own``: its outputs and the answers to them, None where one is not borne."""
        pairs: list[Pair] = []
        for begin, end in itertools.pairwise((0, *range(1, len(asked), AT_ONCE), len(asked))):
            if self._late:
                return None
            try:
                drawn = [(dims, inputs_of(operands, dims, kind, spread, seed)) for dims, seed in asked[begin:end]]
                answers = self._answers_to([given for _, given in drawn])
            except Exception:  # noqa: BLE001 - inputs that the reference does not take
                return None
            floats = [a for answer in answers for a in answer if a.dtype.kind == "f"]
            if family(kind) not in SPECIAL and not all(np.abs(a).max(initial=0.0) < most for a in floats):
                return None
            mine = [n - begin for n in own if begin <= n < end]
            for outputs, n in zip(self._run_all([drawn[n] for n in mine]), mine, strict=True):
                if outputs is None or wrong(outputs, answers[n], operands):
                    return None
                pairs.append(Pair(outputs, answers[n]))
        return pairs


# -- edges -----------------------------------------------------------------------------------------------


def with_bounds(operands: Sequence[Operand], dims: Dims, bears: Callable[[Sequence[Operand]], bool]) -> list[Operand]:
    """Integers whose call names no bound below the largest dimension that is borne where larger numbers are not: an
    index meets more than the first two rows. Where any number is borne, below the smallest."""
    found = list(operands)
    for place in (n for n, operand in enumerate(operands) if _unbounded(operand)):
        own, index = operands[place].shape, not bears(_below(found, place, 4 * max(dims.values())))
        sizes = {(dims[n], n not in own): n for n in dims if dims[n] > 2}
        tried = (_below(found, place, sizes[size]) for size in sorted(sizes, reverse=index))
        found = next(filter(bears, tried), found)
    return found


def _below(operands: Sequence[Operand], place: int, bound: int | str) -> list[Operand]:
    return [*operands[:place], replace(operands[place], below=bound), *operands[place + 1 :]]


def _unbounded(operand: Operand) -> bool:
    known = operand.below or operand.total or operand.form or operand.values or operand.least is not None
    return operand.dtype in ("int32", "int64") and not known


def with_edges(
    operands: Sequence[Operand], numbers: Iterable[int], bears: Callable[[Sequence[Operand]], bool]
) -> list[Operand]:
    """Each operand with the first edge that it bears, alone and beside those of the operands before it."""
    found = list(operands)
    labels = tuple(numbers)
    for place, operand in enumerate(operands):
        for edge in _edges(operand, labels):
            tried = [*found[:place], replace(operand, edge=edge), *found[place + 1 :]]
            if bears(tried):
                found = tried
                break
    return found


def _edges(operand: Operand, labels: Sequence[int]) -> Iterator[str]:
    if operand.form:
        return  # offsets and distinct numbers leave no room for another value
    if operand.dtype == "bool":
        yield from ["rows"] if len(operand.shape) > 1 else []
    elif is_float(operand.dtype):
        yield from ([] if operand.least is not None or is_narrow(operand.dtype) or not operand.shape else ["-inf"])
    elif operand.total:
        yield "none"
    elif operand.below:
        yield from map(str, labels)


def negative_numbers(functions: Iterable[Callable[..., object]], values: Iterable[object]) -> list[int]:
    """Integers below zero among a call's values and its functions' defaults: a label to ignore is one."""
    given = list(values)
    for function in functions:
        try:
            given += [p.default for p in inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):
            continue
    return list(dict.fromkeys(v for v in given if type(v) is int and v < 0))
