"""Shapes by lot: what a finalist must be right on beside the listed shapes, for a library serves others, too.

A kernel may be right on every shape that a suite lists and wrong between and beyond them. So shapes are drawn of which
no candidate knows: sizes beside listed ones, multiples of primes, the smallest, any in between, and those that the
candidate's own comparisons name (``k == 192`` in its text), each in some dimensions, the others as listed or smaller,
so that the operator's answers cost little. A promotion serves nothing outside what was drawn (``evolve.promote``).

What does not compile there is not served there. Where a candidate is wrong and a seed of the operator is, too, the
shape lies outside of what the operator's kernels are for, and is left out. So is one at which a seed's own text is
wrong with other parameters, where only verified shapes are served: its blocks may not divide it.
"""

import ast
import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.fitness.targets import Target
from tilewright.library.dispatch_rule import REACH, Legality
from tilewright.seeds.operator import Operator, Workload, in_order
from tilewright.workers.cascade.named_sizes import LARGEST, named_sizes
from tilewright.workers.intake.operator import TakenOperator
from tilewright.workers.request import Failure, Findings, Request

Wanted = list[tuple[tuple[str, ...], tuple[int, ...]]]
"""(names of dimensions, a size for each) in the order of ``pop`` from the end."""

PREFIX = "drawn/"
"""Prefix of the ids of drawn workloads."""

UNITS = tuple(2**n for n in range(11))
"""A drawn size becomes a multiple of the first of these for which the shape is legal."""

TILES = UNITS[:9]
"""Sizes that a tile's width may have to be: a dimension that is listed with these alone is doubled or stays."""

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)

TURNS, ENOUGH = 2, 4
"""Lots that are drawn at most, a further one where fewer than ``ENOUGH`` shapes of the first were served."""

TRIES = 8
"""Tries for each shape of a lot."""

ELSEWHERE = 0.3
"""Probability that a dimension changes beside the one whose turn it is."""

NOT_SERVED = (Verdict.COMPILE_ERROR, Verdict.RESOURCE_ERROR)


@dataclass(frozen=True)
class Lot:
    """So many ``shapes``, each of at most so many elements and so much ``work``, the product of all dimensions, and
    together of at most ``whole`` times that. ``named`` of them have sizes that the candidate's comparisons name."""

    shapes: int
    named: int
    elements: int
    work: int
    whole: int = field(default=8, repr=False)


INTERPRETED = Lot(24, 6, 1 << 17, 1 << 22, whole=4)
"""As many shapes as cost little: a kernel that is wrong at every hundredth shape shows it seldom in a few."""

MODELLED = Lot(3, 1, 1 << 21, 1 << 30)
MEASURED = Lot(8, 4, 1 << 22, 1 << 29)
LARGE = Lot(2, 0, 1 << 26, 1 << 42)
"""Lot for operators whose answers can be sampled on a device, where the operands are made."""


def drawn(request: Request, lot: Lot, key: str = "") -> tuple[Workload, ...]:
    """Legal shapes of ``lot``, as the seed of the gates' inputs and ``key`` draw them; fewer where few are legal."""
    rng = random.Random(f"{request.seed} {request.genome} {key}")
    suites = request.operator.suites.values()
    listed = [w for suite in suites for w in (*suite.check, *suite.workloads, *suite.final)]
    dims = list(request.measured[0].dims)
    shapes = [dict(w.dims) for w in listed if list(w.dims) == dims]
    legal = _Legal(request, lot)
    named = named_sizes(request.source, request.params)

    def wanted(some: Iterable[tuple[int, ...]]) -> Wanted:
        every = [(names, sizes) for sizes in some for names in itertools.combinations(dims, len(sizes))]
        new = [one for one in every if all(tuple(shape[n] for n in one[0]) != one[1] for shape in shapes)]
        return rng.sample(new, len(new))

    singles, pairs = [*wanted(zip(named.turns)), *wanted(zip(named.few))], wanted(named.pairs)
    turns = rng.sample(dims, len(dims))
    found: dict[str, Workload] = {}
    for turn in range(TRIES * lot.shapes):
        some = pairs if pairs and (turn % 2 or not singles) else singles
        if turn == 0:
            made = _beyond(shapes, legal, rng)
        elif turn % 3 == 1:
            made = _corner(shapes, turns[turn // 3 % len(turns)], legal, rng)
        elif some and len(found) <= lot.shapes // 3 + lot.named and turn <= TRIES * lot.named:
            made = _named(shapes, some, legal, rng)
        else:
            made = _drawn(shapes, turns[2 * turn // 3 % len(turns)], legal, rng)
        if made is None or made in shapes:
            continue
        workload = Workload(drawn_id(made), made)
        found.setdefault(workload.id, workload)
        elements, work = map(sum, zip(*(legal.cost(w.dims) for w in found.values()), strict=True))
        if len(found) == lot.shapes or elements > lot.whole * lot.elements or work > lot.whole * lot.work:
            break
    return tuple(found.values())


def drawn_id(dims: Mapping[str, int]) -> str:
    """The id of a drawn workload, which holds its sizes."""
    return PREFIX + ",".join(f"{name}={size}" for name, size in dims.items())


def drawn_dims(name: str) -> dict[str, int]:
    """The sizes in a drawn workload's id."""
    parts = (part.partition("=") for part in name.removeprefix(PREFIX).split(","))
    return {name: int(size) for name, _, size in parts}


def _beyond(shapes: Sequence[Mapping[str, int]], legal: "_Legal", rng: random.Random) -> dict[str, int] | None:
    """The largest listed shape that is small, with each size up to twice as large, as far as the lot allows for it."""
    names = rng.sample(list(shapes[0]), len(shapes[0]))
    small = [shape for shape in shapes if legal.small(shape)]
    base = max(small or shapes, key=lambda shape: math.prod(shape.values()))
    if (dims := _shrunk(dict(base), names, legal, rng)) is None:
        return None
    for name in names:
        made = _with(dims, name, _ends([s[name] for s in shapes], rng, dims[name])[1], legal)
        dims = made if made is not None and legal.small(made) else dims
    return dims


def _corner(
    shapes: Sequence[Mapping[str, int]], turn: str, legal: "_Legal", rng: random.Random
) -> dict[str, int] | None:
    """A shape that is long in dimension ``turn`` and short in all others; None where none is legal and small enough."""
    dims = dict(rng.choice(shapes))
    for name in 2 * rng.sample(list(dims), len(dims)):  # twice, since sizes may have to fit each other
        size = _ends([shape[name] for shape in shapes], rng)[name == turn]
        dims = _with(dims, name, size, legal) or dims
    return _shrunk(dims, list(dims), legal, rng) if legal(dims) else None


def _ends(listed: Sequence[int], rng: random.Random, most: int = 0) -> tuple[int, int]:
    """(a size up to the least listed one, one up to twice ``most`` or the largest listed one) of a dimension; of one
    that is listed with tiles alone 1 or the least, and as large or twice as large."""
    tile, least = all(size in TILES for size in listed), min(listed)
    factor = rng.choice((1.0, 2.0)) if tile else rng.uniform(1.5, 2.0)
    return rng.choice((1, least, least if tile else rng.randint(1, least))), round(factor * (most or max(listed)))


def _drawn(
    shapes: Sequence[Mapping[str, int]], turn: str, legal: "_Legal", rng: random.Random
) -> dict[str, int] | None:
    """A shape with a drawn size of dimension ``turn``; None where none was legal and small enough."""
    base = rng.choice([shape for shape in shapes if legal.small(shape)] or shapes)
    sizes = {name: [shape[name] for shape in shapes] for name in shapes[0]}
    dims = _with(base, turn, _size(sizes[turn], rng), legal)
    order = [name for name in rng.sample(list(shapes[0]), len(shapes[0])) if name != turn]
    if dims is None or (dims := _shrunk(dims, order, legal, rng)) is None:
        return None
    for name in (n for n in order if rng.random() < ELSEWHERE):
        made = _with(dims, name, _size(sizes[name], rng), legal)
        if made is not None and legal.small(made):
            dims = made
    return dims


def _named(
    shapes: Sequence[Mapping[str, int]], wanted: Wanted, legal: "_Legal", rng: random.Random
) -> dict[str, int] | None:
    """A legal shape with the last of the ``wanted`` sizes that has one; these and later ones are popped."""
    base = rng.choice(shapes)
    while wanted:
        names, sizes = wanted.pop()
        others = [name for name in base if name not in names]
        for unit in UNITS if len(names) > 1 else (1,):  # sizes that are alike stay so
            dims = {**base, **{n: -(-size // unit) * unit for n, size in zip(names, sizes, strict=True)}}
            if legal(dims) and (made := _shrunk(dims, others, legal, rng)) is not None:
                return made
    return None


def _shrunk(dims: dict[str, int], names: Sequence[str], legal: "_Legal", rng: random.Random) -> dict[str, int] | None:
    """The shape with these dimensions made smaller until the lot allows it; None where it never does."""
    left = list(names)
    while left and not legal.small(dims):
        name = max(left, key=dims.__getitem__)
        least = int(dims[name] * rng.uniform(0.3, 0.7))
        smaller = ({**dims, name: -(-least // unit) * unit} for unit in UNITS)
        made = next((one for one in smaller if 0 < one[name] < dims[name] and legal(one)), None)
        left = left if made is not None else [n for n in left if n != name]
        dims = made or dims
    return dims if legal.small(dims) else None


def _with(dims: Mapping[str, int], name: str, size: int, legal: "_Legal") -> dict[str, int] | None:
    """The shape with this size of one dimension, rounded up to a legal one; None where none is."""
    return next(filter(legal, ({**dims, name: -(-size // unit) * unit} for unit in UNITS)), None)


def _size(listed: Sequence[int], rng: random.Random) -> int:
    """A drawn size of one dimension, before it is rounded up to a legal one."""
    low = rng.choice((max(1.0, min(listed) / REACH), float(min(listed))))
    high = max(low, min(float(LARGEST), 2.0 * max(listed)))
    way = rng.choice(("beside", "prime", "between", "least"))
    if way == "least":
        return 1
    if way == "beside":
        return max(1, rng.choice(listed) + rng.choice((-1, 1)) * rng.choice((1, 1, 2, 3, 5, 8, 16, 32)))
    between = max(1, round(math.exp(rng.uniform(math.log(low), math.log(high)))))
    if way == "prime":
        prime = rng.choice(PRIMES)
        return prime << max(0, round(math.log2(between / prime)))
    return between


class _Legal:
    """Test of a shape: the operator has it, and the kernel's constraints and the request's (``within``) allow it."""

    def __init__(self, request: Request, lot: Lot) -> None:
        self._request, self._lot = request, lot
        # counts of large shapes come from tables, which know no sizes
        self._room = str(getattr(request.operator, "room", "")) if lot is LARGE else ""
        self._least = min(w.dims[self._room] for w in request.measured) if self._room else 0
        constants = {**request.operator.constants, **request.target.constants}
        constraints = (*map(str, declared(request.source, "CONSTRAINTS")), *request.within)
        try:
            self._rules: Legality | None = Legality(constraints, {**constants, **request.params})
        except SyntaxError:
            self._rules = None

    def __call__(self, dims: Mapping[str, int]) -> bool:
        workload = Workload(drawn_id(dims), dims)
        try:
            held = self._rules is not None and self._rules.holds(dims) and dims.get(self._room, 0) >= self._least
            return held and all(size > 0 for spec in self._specs(workload) for size in spec)
        except (ValueError, ArithmeticError, LookupError, TypeError, NameError):
            return False  # the operator, or a constraint, has no such shape

    def small(self, dims: Mapping[str, int]) -> bool:
        """Whether the lot allows a shape's elements and work."""
        elements, work = self.cost(dims)
        return elements <= self._lot.elements and work <= self._lot.work

    def cost(self, dims: Mapping[str, int]) -> tuple[int, int]:
        """(elements of all operands and results, product of all dimensions)."""
        return sum(map(math.prod, self._specs(Workload(drawn_id(dims), dims)))), math.prod(dims.values())

    def _specs(self, workload: Workload) -> list[tuple[int, ...]]:
        operator = self._request.operator
        return [tuple(spec.shape) for spec in (*operator.inputs(workload), *operator.outputs(workload))]


@functools.lru_cache(maxsize=16)
def _declarations(source: str) -> Mapping[str, Mapping[str, Any]]:
    """Dict literals that a module assigns, by name."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(value, dict):
                found[node.targets[0].id] = value
    return found


def declared(source: str, name: str) -> Mapping[str, Any]:
    """A dict literal that a kernel module declares, such as DEFAULTS; empty without it."""
    return _declarations(source).get(name, {})


# -- the stage -------------------------------------------------------------------------------------------


Run = Callable[[Request, Findings], Failure | None]
"""Passes the gates on a request's checked shapes and times nothing."""


def verified_alone(operator: Operator, target: Target) -> bool:
    """Whether a kernel is served at the verified shapes alone: there its text may be right with some parameters and
    wrong with others, as blocks of a tuned Pallas function may not divide a shape."""
    return isinstance(operator, TakenOperator) and not target.measured


class DrawnStage:
    """Stage that passes the gates on drawn shapes; each lot has a function that runs its shapes."""

    stage = Stage.CHECK

    def __init__(self, *lots: tuple[Lot, Run], exact: bool = False) -> None:
        """``exact``: whether a winner is served at the verified shapes alone."""
        self._lots, self._exact = lots, exact
        self._right: dict[str, bool] = {}
        """By the name of a seed that is wrong on a drawn shape, whether it is right on a listed one."""

    def run(self, request: Request, found: Findings) -> Failure | None:
        """The first failure. A lot's shapes run together, since most kernels pass, and one by one after a failure."""
        for lot, run in self._lots:
            before = len(found.drawn)
            for turn in range(TURNS):
                shapes = in_order(_ends_first(drawn(request, lot, f"{lot} {turn}")), len(request.checked))
                shapes = tuple(w for w in shapes if lot is LARGE or _answered(request, w))
                ends = frozenset(w.id for w in shapes[: min(ENOUGH, lot.shapes // 2)])
                asked = dataclasses.replace(request, every_kind=ends)
                if shapes and (failure := self._on(asked, found, shapes, run)) is not None:
                    return failure
                if len(found.drawn) - before >= min(ENOUGH, lot.shapes // 2):
                    break
        return None

    def _on(self, request: Request, found: Findings, shapes: tuple[Workload, ...], run: Run) -> Failure | None:
        failure = _tried(request, found, shapes, run)
        if failure is None or len(shapes) > 1:
            for shape in shapes if failure is not None else ():
                if (failure := self._on(request, found, (shape,), run)) is not None:
                    return failure
            return None
        if failure.verdict is Verdict.INFRA_ERROR:
            return failure
        only_parameters = self._exact and any(
            kernel.source == request.source for kernel in request.operator.kernels.values()
        )
        aside = failure.verdict in NOT_SERVED or only_parameters
        if aside or self._own_fails(request, found, shapes, run, failure):
            found.outside.append(shapes[0].id)
            return None
        return dataclasses.replace(failure, reason=f"{shapes[0].id}: {failure.reason}")

    def _own_fails(
        self, request: Request, found: Findings, shapes: tuple[Workload, ...], run: Run, failure: Failure
    ) -> bool:
        """Whether a seed of the operator that is legal there is wrong there, too, and right on a listed shape: one that
        does not run on this target at all excuses nothing. ``failure``: the candidate's, which may be a seed itself."""

        def fails(own: Request, shapes: tuple[Workload, ...]) -> Failure | None:
            failure = _tried(own, aside := Findings(), shapes, run)
            found.spend(aside.device_seconds, aside.device_cpu_seconds)
            return failure

        for seed in request.operator.kernels.values():
            if seed.baseline or f"def {request.target.entry}(" not in seed.source:
                continue
            params = {**declared(seed.source, "DEFAULTS"), **seed.overrides}
            own = dataclasses.replace(request, source=seed.source, params=params)
            if not _Legal(own, MEASURED)(shapes[0].dims):
                continue
            same = (own.source, own.params) == (request.source, request.params)
            wrong = failure if same else fails(own, shapes)
            if wrong is None or wrong.verdict in (*NOT_SERVED, Verdict.INFRA_ERROR):
                continue
            if seed.name not in self._right:
                self._right[seed.name] = fails(own, request.checked[:1]) is None
            if self._right[seed.name]:
                return True
        return False


def _ends_first(shapes: Sequence[Workload]) -> list[Workload]:
    """The shapes in the order: most work, widest in each dimension, narrowest in each, others."""
    names = shapes[0].dims if shapes else ()
    ends = [end(shapes, key=lambda w: w.dims[name]) for end in (max, min) for name in names]
    most = [max(shapes, key=lambda w: math.prod(w.dims.values()))] if shapes else []
    return list(dict.fromkeys([*most, *ends, *shapes]))


def _tried(request: Request, found: Findings, shapes: tuple[Workload, ...], run: Run) -> Failure | None:
    """The failure of some shapes run together; those that passed are noted in ``found``."""
    part = dataclasses.replace(request, measured=(), checked=shapes, race=None, is_known=lambda artefact: None)
    own = Findings()
    failure = run(part, own)
    found.logs += own.logs
    found.spend(own.device_seconds, own.device_cpu_seconds)
    if failure is None:
        found.gates += own.gates
        found.drawn += [shape.id for shape in shapes]
    return failure


def _answered(request: Request, workload: Workload) -> bool:
    """Whether the operator has answers of the declared shapes there: its sizes may have to fit each other."""
    try:
        answers = request.truth.references(workload, request.seed, request.operator.input_kinds[0])
    except Exception:  # noqa: BLE001 - an operator, or a reference that somebody wrote, raises what it likes
        return False
    shapes = {output.name: output.shape for output in request.operator.outputs(workload)}
    arrays = [item for answer in answers.values() for item in answer.items() if item[0] in shapes]
    # bools, and what has no dimension, are no answers: they say which elements count, or how many
    return all(array.shape == shapes[name] for name, array in arrays if array.ndim and array.dtype != bool)
