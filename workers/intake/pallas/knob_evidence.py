"""Evidence for the parameters of a ``build``: values that a shape takes, values that change no answer."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr

from tilewright.workers.intake.calls.sizes import label_of
from tilewright.workers.intake.judge.bounds import ResultGates
from tilewright.workers.intake.judge.input_kinds import CheckedShape
from tilewright.workers.intake.operator import Result
from tilewright.workers.intake.source.knobs import MEANING, Knob

EVIDENCE_SECONDS = 20.0
LEGAL_SECONDS = 10.0

Dims = Mapping[str, int]
Below = tuple[str, str]
"""Two knobs of which the first may not be above the second: a block of a block."""


def legal_values(
    knobs: Sequence[Knob],
    defaults: Dims,
    shapes: Sequence[Dims],
    timed: Sequence[Dims],
    traced: Callable[[Dims, Dims], ClosedJaxpr],
    elements: Callable[[Dims, Dims], tuple[int, int]],
    identity: Callable[[ClosedJaxpr], str],
) -> tuple[dict[str, dict[str, list[int]]], set[str]]:
    """By shape and knob: the values at which the function can be traced there, the other knobs at their defaults or,
    if those are smaller, at that value (a block of a block), or those of the same default too (square blocks).
    And the knobs of which no value changes anything. ``elements``: of what the kernels then read and write, and of the
    blocks that cover it. At a ``timed`` shape a value that pads is left out beside one of at least half its size that
    pads less; and of a knob's parts what divides none of the shape's sizes, pads, or covers more than it must."""
    found: dict[str, dict[str, list[int]]] = {}
    telling: set[str] = set()
    began, plain = time.process_time(), ""
    for place, dims in enumerate(shapes):
        label = label_of(dims)
        if label in found or time.process_time() - began > LEGAL_SECONDS * (place + 1):
            continue
        found[label] = {}
        for base in (defaults, *({**defaults, k.name: v} for k in knobs for v in _nearest(k))):
            with contextlib.suppress(Exception):  # a shape need not take the defaults
                plain = identity(traced(dims, base))
                break
        for knob in knobs:
            name, sizes = knob.name, dict[int, tuple[int, int]]()
            whole = (v for v in knob.parts if dims not in timed or any(n % v == 0 for n in dims.values()))
            for value in (*knob.values, *whole):
                others = {n: max(v, value) for n, v in base.items()}
                alike = {n: value if v == base[name] else v for n, v in base.items()}
                for params in ({**base, name: value}, {**others, name: value}, alike):
                    try:
                        made = traced(dims, params)
                        telling |= {name} if name not in telling and identity(made) != plain else set()
                    except Exception:  # noqa: BLE001 - a value that this shape does not take
                        telling.add(name)
                        continue
                    sizes[value] = elements(dims, params) if dims in timed else (0, 0)
                    break
            least = min((covered for _, covered in sizes.values()), default=0)
            found[label][name] = [
                v
                for v, (size, covered) in sizes.items()
                if (all(sizes[u][0] >= size for u in sizes if 2 * u >= v) if v in knob.values else covered == least)
            ]
    return found, {k.name for k in knobs} - telling if found else set()


def _nearest(knob: Knob) -> list[int]:
    """A knob's values, those near its default first."""
    return sorted(knob.values, key=lambda v: abs(math.log2(v / knob.default)))


def values_taken(
    knob: Knob, legal: Mapping[str, Mapping[str, Sequence[int]]], timed: Sequence[str], checked: Sequence[str]
) -> Knob:
    """A knob with the values that a ``timed`` shape takes, and every shape at which answers are ``checked``."""
    every = (*knob.values, *knob.parts)
    kept_values = {v for label in timed for v in legal.get(label, {}).get(knob.name, every)} if legal else {*every}
    for label in checked:
        kept_values &= {*legal.get(label, {}).get(knob.name, every)}
    kept_values.add(knob.default)
    values, parts = (tuple(v for v in of if v in kept_values) for of in (knob.values, knob.parts))
    return replace(knob, values=values, parts=parts)


def smallest_taking(
    shapes: Sequence[CheckedShape], legal: Mapping[str, Mapping[str, Sequence[int]]], params: Mapping[str, int]
) -> CheckedShape:
    """The last of the checked shapes, which is the smallest, if it takes these parameters; else the first."""
    taken = legal.get(label_of(shapes[-1].dims), {})
    return shapes[-1 if all(v in taken.get(n, (v,)) for n, v in params.items()) else 0]


def tiling_knobs(
    knobs: Sequence[Knob],
    defaults: Mapping[str, int],
    shape_of: Callable[[Mapping[str, int]], CheckedShape],
    results: Sequence[Result],
    outputs_of: Callable[[Mapping[str, int], Mapping[str, np.ndarray]], list[np.ndarray]],
    expected: Callable[[Mapping[str, int], Dims], float],
) -> tuple[dict[str, tuple[int, ...]], list[dict[str, Any]], list[Below], dict[str, str]]:
    """Which knobs only tile, which keep their value and why, which may not be above which, and which are equal to
    another one: both are one size, and only work as such. ``shape_of``: where parameters are tried. ``outputs_of``: of
    parameters and inputs. ``expected``: seconds that these will take; what is left for all must suffice."""
    began = time.process_time()
    gates = ResultGates((), results)
    space: dict[str, tuple[int, ...]] = {}
    fixed: list[dict[str, Any]] = []
    below: list[Below] = []
    tied: dict[str, str] = {}

    def good(params: Mapping[str, int]) -> bool:
        shape = shape_of(params)
        try:
            if time.process_time() - began + expected({**defaults, **params}, shape.dims) > EVIDENCE_SECONDS:
                return False
            outputs = outputs_of({**defaults, **params}, shape.inputs)
            pairs = zip(outputs, shape.outputs, strict=True)
            same = all(a.shape == b.shape and np.array_equal(a, b) for a, b in pairs)
            return same or gates.passed(outputs, shape.answers)
        except Exception:  # noqa: BLE001 - a value that does not work is no parameter's
            return False

    def works(knob: Knob, value: int) -> bool:
        """Whether a value passes, with the blocks that it lies in or that lie in it moved along. Pairs of which one
        must be as large as the other are added to ``below``."""
        outer = dict(below).get(knob.name, "")
        moved = {outer: value} if outer and value > defaults[outer] else {}
        moved |= {n: value for n, o in below if o == knob.name and value < defaults[n]}
        if good({knob.name: value, **moved}):
            return True
        for other in knobs if value > knob.default and not outer else ():
            larger = other.name != knob.name and other.default < value and value in other.values
            if larger and good({knob.name: value, other.name: value}):
                below.append((knob.name, other.name))
                return True
        return False

    for knob in knobs:
        if knob.name in tied:
            why = f"works only as large as {tied[knob.name]}"
            fixed.append({"name": knob.name, "value": knob.default, "why": why})
            continue
        tried = time.process_time() - began < EVIDENCE_SECONDS
        # between two that only tile others do, and a campaign judges each
        ends = {min(knob.values), max(knob.values)} - {knob.default}
        kept = list(knob.values) if tried and all(works(knob, v) for v in ends) else []
        kept = kept or [v for v in _nearest(knob) if v == knob.default or works(knob, v)]
        kept += [v for v in knob.parts if len(kept) == 1 and works(knob, v)]
        if len(kept) > 1:
            space[knob.name] = tuple(sorted(kept))
            continue
        alike = [k for k in knobs if k.default == knob.default and k.name not in {*space, *tied}]
        groups = [[knob, other] for other in alike if other is not knob] + ([alike] if len(alike) > 2 else [])
        for group in groups:
            common = [v for v in knob.values if v != knob.default and all(v in k.values for k in group)]
            kept = [v for v in common if good({k.name: v for k in group})]
            if kept:
                space[knob.name] = tuple(sorted([knob.default, *kept]))
                tied.update({k.name: knob.name for k in group if k is not knob})
                break
        else:
            why = MEANING if tried else "no time was left to try other values"
            fixed.append({"name": knob.name, "value": knob.default, "why": why})
    for knob in (k for k in knobs if k.name in space):
        further = [v for v in knob.parts if works(knob, v)]
        space[knob.name] = tuple(sorted({*space[knob.name], *further}))
    for name, other in [pair for pair in below if pair[::-1] in below and pair[0] < pair[1]]:
        if name in space and other in space:  # two places of one size
            both = space.pop(other)
            space[name], tied[other] = tuple(v for v in space[name] if v in both), name
    return space, fixed, [(n, o) for n, o in below if n in space and o in space], tied
