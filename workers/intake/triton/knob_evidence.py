"""Evidence from runs: which numbers only tile, and along which dimensions the reference treats elements alone."""

import math
import os
import re
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from tilewright.workers.intake.calls.sizes import label_of
from tilewright.workers.intake.judge.ahead import Ahead
from tilewright.workers.intake.judge.bounds import ResultGates
from tilewright.workers.intake.judge.input_kinds import CheckedShape
from tilewright.workers.intake.judge.reference import reference_results
from tilewright.workers.intake.operator import MOST_SENT, Result, drawn_integers
from tilewright.workers.intake.source.knobs import IDLE, MEANING, Knob
from tilewright.workers.intake.triton.call_site import Seed

EVIDENCE_SECONDS, MOST_SECONDS = 3.0, 10.0
"""Of a processor. After the first, values are tried on the smallest shape alone; after the second, nothing is."""

QUICK_SECONDS = 1.0
"""Seconds of a processor up to which runs on all shapes are made before it is known which are needed."""

NO_TIME = "no time was left to try other values"

SEVERAL_TILES = "other values fail where there are several tiles: it is part of the meaning, or repeated elsewhere"

LEAST_TILE = 16
"""Side of the smallest tile that a matrix unit takes: below it a tile of a product does not compile."""

MOST_REPEATED = 4
"""Repetitions of a number up to which each is tried alone."""


class OutOfTime(Exception):
    """Runs were left when ``MOST_SECONDS`` had gone."""


Space = dict[str, tuple[Any, ...]]
Tensors = Mapping[str, torch.Tensor]
Given = tuple[Mapping[str, Any], CheckedShape]
"""A point and a shape of a run."""


class Trials:
    """Runs of a module with other values of its parameters, and whether their answers pass gates: on ``small`` shapes,
    and on ``wide`` ones of several tiles. What a knob needs if all goes well is run ahead."""

    def __init__(self, seed: Seed, small: Sequence[CheckedShape], wide: Sequence[CheckedShape]) -> None:
        self.seed, self.small, self.wide = seed, small, wide
        self.made: dict[Hashable, list[np.ndarray] | None] = {}
        self.until = math.inf
        """By the seed's clock, when no further run begins."""
        self.ahead = Ahead(self._presumed)
        quick = sum(shape.seconds for shape in (*small, *wide)) < QUICK_SECONDS
        tried = [knob.name for knob in seed.text.knobs if not (knob.certain or knob.echo)]
        self.ahead.begin((name,) for name in tried if quick)

    def _presumed(self, name: str) -> dict[Hashable, list[np.ndarray] | None]:
        knob = next(k for k in self.seed.text.knobs if k.name == name)
        tried = [(value, shape) for value in _nearest(knob) for shape in self.wide]
        tried += [(v, shape) for v in _values_to_try(self, knob) for shape in self.small]
        for way in _ways(self.seed, knob)[:2]:
            self._run([(dict.fromkeys((name, *way), value), shape) for value, shape in tried])
        return self.made

    def _run(self, runs: Sequence[Given]) -> None:
        """All that are not known, as many at once as there are processors. Raises OutOfTime."""
        left, at_once = {_key(*run): run for run in runs}, len(os.sched_getaffinity(0))
        left = {key: run for key, run in left.items() if key not in self.made}
        while left:
            if self.seed.interpreter.clock() > self.until:
                raise OutOfTime
            some = list(left)[:at_once]
            given = [({**self.seed.defaults, **point}, shape.inputs) for point, shape in map(left.pop, some)]
            self.made.update(zip(some, self.seed.interpreter.all(given), strict=True))

    def passed_at(
        self, gates: ResultGates, points: Sequence[Mapping[str, Any]], shapes: Sequence[Sequence[CheckedShape]]
    ) -> list[list[bool]]:
        """By point and by each of its shapes."""
        self._run([(point, shape) for point, some in zip(points, shapes, strict=True) for shape in some])

        def passed(point: Mapping[str, Any], shape: CheckedShape) -> bool:
            outputs = self.made[_key(point, shape)]
            try:
                return outputs is not None and gates.passed(outputs, shape.answers)
            except (ValueError, IndexError, KeyError):  # results of another shape
                return False

        return [[passed(p, shape) for shape in some] for p, some in zip(points, shapes, strict=True)]


def _key(point: Mapping[str, Any], shape: CheckedShape) -> Hashable:
    return tuple(sorted(point.items())), label_of(shape.dims)


def tiling_knobs(trials: Trials, results: Sequence[Result]) -> tuple[Space, list[dict[str, Any]]]:
    """The knobs that only tile, with the values whose answers pass; the others, with why they keep their value.

    On shapes of several tiles the values next to the default must pass, too; numbers that must change with a knob there
    become its ties, and knobs that change nothing on small shapes are tried there.
    """
    seed, shapes, clock = trials.seed, trials.small, trials.seed.interpreter.clock
    began = clock()
    trials.until = began + MOST_SECONDS
    text, gates = seed.text, ResultGates(seed.site.operands, results)
    at_once = max(1, len(os.sched_getaffinity(0)) // len(shapes))
    space: Space = {}
    fixed: list[dict[str, Any]] = []
    smallest = min(shapes, key=lambda shape: shape.elements)
    for knob in text.knobs:
        if knob.certain:
            most = 8 if "num_stages" in knob.name else max(knob.values)
            space[knob.name] = tuple(v for v in knob.values if v <= most) or (knob.default,)
        if knob.certain or knob.echo or knob.name in text.ties:
            continue
        trials.made |= trials.ahead(knob.name) if trials.ahead.has(knob.name) else {}
        try:
            sides, why = _moved_together(trials, gates, knob), SEVERAL_TILES
        except OutOfTime:
            sides, why = None, NO_TIME
        if sides is None:
            fixed.append({"name": knob.name, "value": knob.default, "why": why})
            continue
        ties, fitting = sides
        others = [v for v in _values_to_try(trials, knob) if v in fitting]
        kept, refused, unseen = [knob.default], False, []
        while others:
            some, others = others[:at_once], others[at_once:]
            late = clock() - began > EVIDENCE_SECONDS
            tried = [_telling_shapes(trials, knob, v, [smallest] if late else shapes) for v in some]
            points = [dict.fromkeys((knob.name, *ties), value) for value in some]
            try:
                judged = trials.passed_at(gates, points, tried)
            except OutOfTime:
                break
            for value, passed in zip(some, judged, strict=True):
                kept += [value] if passed and all(passed) else []
                unseen += [] if passed else [value]
                refused = refused or not all(passed)
        if len(kept) > 1 and not refused:
            kept += unseen  # like those that passed, and only larger shapes would show a difference
        if len(kept) > 1:
            space[knob.name] = tuple(sorted(kept))
            text.ties.update(dict.fromkeys(ties, knob.name))
        else:
            fixed.append({"name": knob.name, "value": knob.default, "why": MEANING if refused else IDLE})
    return space, fixed


def _moved_together(trials: Trials, gates: ResultGates, knob: Knob) -> tuple[tuple[str, ...], list[int]] | None:
    """Which numbers of a knob's value must change with it for the values next to its default to pass at several tiles,
    and the values on those sides of the default where they do; None where they never do."""
    seed, wide = trials.seed, trials.wide
    echoes = [k.name for k in _alike(seed, knob) if k.echo]
    sides = [[v for v in knob.values if v < knob.default], [v for v in knob.values if v > knob.default]]
    nearest = [*_nearest(knob), *([] if knob.tiles else [1])]
    found: tuple[tuple[str, ...], list[int]] | None = None

    def tells(shape: CheckedShape) -> bool:
        """Whether another number in place of an echo would show."""
        tensors = blanks(seed, shape.dims, "meta")
        plain = launch_arguments(seed, {}, tensors)
        return any(launch_arguments(seed, dict.fromkeys(echoes, v), tensors) != plain for v in nearest)

    if echoes and not any(map(tells, wide)):
        return None
    for way in _ways(seed, knob):
        points = [dict.fromkeys((knob.name, *way), value) for value in nearest]
        passed = [all(some) for some in trials.passed_at(gates, points, [wide] * len(points))]
        kept = [
            v
            for side in sides
            for v in side
            if any(fine and near in side for fine, near in zip(passed, nearest, strict=True))
        ]
        if kept and all(passed):
            return way, kept
        found = found or ((way, kept) if kept and knob.tiles else None)
    return found


def _alike(seed: Seed, knob: Knob) -> list[Knob]:
    """Other numbers of a knob's value that may have to change with it."""
    numbers = [k for k in seed.text.knobs if k.default == knob.default and k is not knob and not k.certain]
    return [k for k in numbers if k.name not in seed.text.ties]


def _ways(seed: Seed, knob: Knob) -> list[tuple[str, ...]]:
    """What changes with a knob: nothing, one repetition of its number or all, and other parameters of its value, which
    then are no knobs of their own."""
    free = _alike(seed, knob)
    echoes = [k.name for k in free if k.echo]
    ones = [(name,) for name in echoes if len(echoes) <= MOST_REPEATED]
    return list(dict.fromkeys([(), *ones, tuple(echoes), tuple(k.name for k in free)]))


def _nearest(knob: Knob) -> list[Any]:
    """The values next to a knob's default, the one below it first."""
    below, above = [v for v in knob.values if v < knob.default], [v for v in knob.values if v > knob.default]
    return [*below[-1:], *above[:1]]


def _values_to_try(trials: Trials, knob: Knob) -> list[Any]:
    """The knob's values other than its default that make a difference to each other at some shape: where a block is
    ``min(BLOCK, next_power_of_2(n))``, all that are above ``n`` are one. No tile that is too small for a product."""
    seed, shapes = trials.seed, trials.small
    tensors = [blanks(seed, dims, "meta") for dims in (*seed.site.dims, *(shape.dims for shape in shapes))]

    def launches(value: Any) -> list[Any]:
        return [launch_arguments(seed, {knob.name: value}, given) for given in tensors]

    known, kept = [launches(knob.default)], []
    for value in sorted(knob.values, key=lambda v: abs(v - knob.default)):
        made = launches(value)
        if value != knob.default and made not in known:
            known.append(made)
            kept.append(value)
    products = any("tl.dot(" in kernel.text for kernel in seed.text.kernels.functions.values())
    least = LEAST_TILE if products and knob.default >= LEAST_TILE else 0
    return sorted(v for v in kept if v >= least)


def _telling_shapes(trials: Trials, knob: Knob, value: Any, shapes: Sequence[CheckedShape]) -> list[CheckedShape]:
    """Shapes on which a value can show what it does: these if it changes a launch on any, else a wide one."""
    seed = trials.seed

    def differs(shape: CheckedShape) -> bool:
        tensors = blanks(seed, shape.dims, "meta")
        return launch_arguments(seed, {knob.name: value}, tensors) != launch_arguments(seed, {}, tensors)

    return list(shapes) if any(map(differs, shapes)) else [*filter(differs, trials.wide)][:1]


def blanks(seed: Seed, dims: Mapping[str, int], device: str) -> dict[str, torch.Tensor]:
    return {
        o.name: torch.empty(o.sizes(dims), dtype=getattr(torch, o.dtype), device=device) for o in seed.site.operands
    }


def launch_arguments(seed: Seed, params: Mapping[str, Any], tensors: Tensors) -> list[Any]:
    """The grids and numbers that kernels would be given, without running them."""
    found: list[Any] = []
    run = GridExecutor.__call__

    def note(executor: Any, *args: Any, **kwargs: Any) -> None:
        grid = executor.grid(kwargs) if callable(executor.grid) else executor.grid
        found.append((tuple(grid), [a for a in args if isinstance(a, bool | int | float | str)]))

    GridExecutor.__call__ = note
    device = next((t.device for t in tensors.values()), torch.device("cpu"))
    try:
        with device:
            seed.module.launch(tensors, {**seed.defaults, **params})
    except Exception as error:  # noqa: BLE001 - no arguments either
        found.append(repr(error))
    finally:
        GridExecutor.__call__ = run
    return found


# -- the reference ---------------------------------------------------------------------------------------


def independent_dimensions(seed: Seed, shape: CheckedShape, results: Sequence[Result]) -> list[str]:
    """Dimensions along which the reference treats elements by themselves, found by asking for half of them, an odd
    number: few of what is random by place differ, and what writes whole tiles alone leaves some unwritten."""
    operands = seed.site.operands
    sizes = [size for operand in operands for size in operand.shape if isinstance(size, str)]
    found: list[str] = []
    for name, size in shape.dims.items():
        # an operand with a place for every so many elements of a dimension cannot be picked from
        blocked = any(text != name and name in re.split(r"[*/]", text) for text in sizes)
        if size < 3 or blocked or not all(name in r.shape for r in results):
            continue
        half = np.arange(0, size, 2)[: (size - 1) // 4 * 2 + 1]
        picks = half if size > 4 else np.array([0, 2, 3] if size > 3 else [2])

        def picked(array: np.ndarray, axes: Sequence[Any], name: str = name, picks: np.ndarray = picks) -> np.ndarray:
            for axis, dim in enumerate(axes):
                if dim == name:
                    array = np.take(array, picks, axis=axis)
            return array

        try:
            part = seed.reference({o.name: picked(shape.inputs[o.name], o.shape) for o in operands})
        except Exception:  # noqa: BLE001 - then it does not
            continue
        pairs = [(part[r.place], picked(shape.answers[r.place], r.shape)) for r in results]
        if all(
            one.shape == other.shape
            and np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=1e-6, atol=1e-9)
            for one, other in pairs
        ):
            found.append(name)
    return found


def product_work(seed: Seed) -> dict[str, int]:
    """Floating-point operations of matrix products by workload: the reference's, or the kernel's if it has fewer, as
    where a mask leaves a part of them."""
    found = {}
    for dims in seed.site.dims:
        scope = {"torch": torch, "reference": seed.reference.function, **blanks(seed, dims, "meta")}
        counter = FlopCounterMode(display=False)
        try:
            with torch.no_grad(), counter:
                reference_results(seed.reference.call, scope)
            total = counter.get_total_flops()
            found[label_of(dims)] = total and min(total, _own_work(seed, dims) or total)
        except Exception:  # noqa: BLE001 - a reference that wants data
            found[label_of(dims)] = 0
    return found


WORK_SECONDS = 6.0
"""Of a processor."""

PROGRAMS, UNEVEN = (4, 2, 1), (4, 8, 8)
"""How many along each axis of a grid, whose products stand for those of all; of calls with integers, which may say how
long a loop is."""


def _own_work(seed: Seed, dims: Mapping[str, int]) -> int:
    """Floating-point operations of matrix products in the kernel, by a sample of its programs over zeros; 0 where that
    is not known, as after ``WORK_SECONDS``."""
    run, builder = GridExecutor.__call__, InterpreterBuilder
    place, tell = builder.set_grid_idx, builder.set_grid_dim
    end, total, share, some, whole = time.thread_time() + WORK_SECONDS, 0.0, 0.0, [[0]], (0,)

    def sampled(executor: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal share, some, whole
        grid = executor.grid(kwargs) if callable(executor.grid) else executor.grid
        whole = (*grid, 1, 1)[:3]
        wanted = PROGRAMS if all(t.is_floating_point() for t in tensors.values()) else UNEVEN
        most = [min(n, m) for n, m in zip(whole, wanted, strict=True)]
        some = [[int((i + 0.5) * n / m) for i in range(m)] for n, m in zip(whole, most, strict=True)]
        share = math.prod(whole) / math.prod(most)
        executor.grid, executor._restore_args_dev = tuple(most), lambda *_: None
        run(executor, *args, **kwargs)

    def count(_: Any, a: Any, b: Any, sums: Any, *rest: Any) -> Any:
        nonlocal total
        if time.thread_time() > end:
            raise TimeoutError
        total += 2.0 * share * a.data.size * b.data.shape[-1]
        return sums

    tensors = {o.name: torch.zeros(o.sizes(dims), dtype=getattr(torch, o.dtype)) for o in seed.site.operands}
    known = drawn_integers(seed.site.operands, dims, MOST_SENT)
    for operand in (o for o in seed.site.operands if not tensors[o.name].is_floating_point()):
        if operand.name not in known:
            return 0  # numbers may say how long a loop is
        tensors[operand.name] = torch.from_numpy(known[operand.name])
    changed: dict[str, Any] = {
        "create_dot": count,
        "set_grid_dim": lambda self, *_: tell(self, *whole),
        "set_grid_idx": lambda self, *at: place(self, *(of[i] for of, i in zip(some, at, strict=True))),
    }
    try:
        with mock.patch.object(GridExecutor, "__call__", sampled), mock.patch.multiple(builder, **changed):
            seed.module.launch(tensors, dict(seed.defaults))
    except Exception:  # noqa: BLE001 - programs that want other data, or take long
        return 0
    return int(total)
