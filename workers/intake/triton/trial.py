"""Runs of a taken module in the interpreter: on small shapes of the same kind, judged against the reference."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.workers.intake.judge.bounds import wrong
from tilewright.workers.intake.judge.inputs import draws
from tilewright.workers.intake.judge.self_reference import ITSELF
from tilewright.workers.intake.triton.call_site import (
    Oracle,
    Site,
    traced_at,
    wanted_at,
    wanted_of,
)
from tilewright.workers.intake.triton.interpreter_run import RUN_SECONDS, TooSlow, run, timed
from tilewright.workers.intake.triton.kernel_module import Taken
from tilewright.workers.intake.triton.small_shapes import check_dims, ladder, last_resorts, looped
from tilewright.workers.intake.triton.stub_device import noted_device
from tilewright.workers.intake.triton.trace import Refusal

MOST_REASONS = 3
"""Reasons that are told of a kernel that agrees nowhere."""

MOST_TILE = 256
"""Largest literal that is taken for a tile when a shape of several tiles is made."""

NO_TILES = frozenset(("num_warps", "num_stages"))

LOOPED_SECONDS = 6.0
"""Most that a run on a shape of several tiles may take, and the most elements of its operands."""
LOOPED_ELEMENTS = 1 << 21

SLOW_SECONDS = 3.0
"""A shape that takes longer is the only one that is checked, with fewer kinds of inputs."""


def id_of(dims: Mapping[str, int]) -> str:
    return "x".join(str(n) for n in dims.values()) or "one"


@dataclass
class Shape:
    """A checked shape with its inputs and answers by kind of inputs. ``looped``: it takes several tiles."""

    dims: dict[str, int]
    inputs: dict[str, dict[str, np.ndarray]]
    answers: dict[str, list[np.ndarray]]
    looped: bool = False


def make(
    site: Site, dims: Mapping[str, int], kind: str, spread: int, seed: int = 17
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, len(kind), spread])
    return draws(site.operands, dims, kind, spread, rng)


def unlike(request: Mapping[str, Any], site: Site, taken: Taken, small: Mapping[str, int]) -> str:
    """Why the wrapper does not do the same at a shape; empty where it does."""
    try:
        with noted_device(site.part):
            wanted = wanted_of(request, site) and wanted_at(request, site, small)
            taken_again = traced_at(site, small, wanted)
    except Refusal as refusal:
        return refusal.what
    except Exception as error:  # noqa: BLE001 - a shape the wrapper does not take
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "" if taken_again.source == taken.source else "the wrapper launches otherwise there"


def several_tiles(
    request: Mapping[str, Any], site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any], reference: Oracle
) -> Shape | None:  # fmt: skip
    """A shape with two tiles and a part along every axis, by the largest literal that may be one; None where there is
    no such literal, or the kernel does not take such a shape in time."""
    sizes = [k.default for k in taken.knobs if not k.certain and 1 < k.default <= MOST_TILE]
    dims = site.dims[0]
    # halves of a tile; of a few rows, all or two
    for parts, few in itertools.product((5, 4, 8), (16, 2)) if sizes else ():
        most = parts * max(sizes) // 2
        small = {n: min(s, few) if s <= 16 else min(s, most) for n, s in dims.items()}
        found = _held(request, site, taken, module, defaults, reference, small)
        if found is not None:
            return found
    return None


def deep_shape(
    request: Mapping[str, Any], site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any], reference: Oracle
) -> Shape | None:  # fmt: skip
    """A shape as long in its longest dimension as the call's; None where the kernel does not take it in time."""
    small = check_dims(site.dims[0], "deep", max((len(o.shape) for o in site.operands), default=0))
    return _held(request, site, taken, module, defaults, reference, small)


def _held(request: Mapping[str, Any], site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any],
          reference: Oracle, small: Mapping[str, int]) -> Shape | None:  # fmt: skip
    """A shape with inputs and answers, where the recording holds there and the default is right."""
    size = sum(int(np.prod(o.sizes(small))) for o in site.operands)
    if size > 1 << 20 or unlike(request, site, taken, small):
        return None
    try:
        inputs = make(site, small, "randn", 4)
        answers, outputs = reference(inputs), run(module, defaults, inputs)
    except Exception:  # noqa: BLE001 - a shape that the reference or the kernel does not take
        return None
    if wrong(outputs, answers, site.operands):
        return None
    return Shape(dict(small), {"randn": inputs}, {"randn": answers})


def shapes_of(request: Mapping[str, Any], site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any],
            reference: Oracle, notes: list[str]) -> list[Shape] | str:  # fmt: skip
    """Up to three small shapes on which the recording holds and the default is right; or why there is none."""
    dims = site.dims[0]
    found: list[Shape] = []
    reasons: dict[str, str] = {}

    def again(small: Mapping[str, int]) -> str:
        return unlike(request, site, taken, small)

    def elements(small: Mapping[str, int]) -> int:
        return sum(int(np.prod(o.sizes(small))) for o in site.operands)

    tried: set[str] = set()
    slow = False
    last = last_resorts(dims)

    def holds(small: Mapping[str, int]) -> bool:
        """Whether the recording holds at a shape, and the reference takes it."""
        if again(small):
            return False
        if elements(small) > LOOPED_ELEMENTS or request["reference"] == ITSELF:
            return True
        inputs = make(site, small, "randn", 1)
        try:
            return bool(reference(inputs) if reference.call else reference.settle(site, inputs))
        except Exception:  # noqa: BLE001 - a shape the reference does not take
            return False

    tiles = [k.default for k in taken.knobs if k.name not in NO_TILES]
    wide = [d for d in looped(dims, tiles, holds) if elements(d) <= LOOPED_ELEMENTS]
    for small in (*wide, *ladder(dims, max(len(o.shape) for o in site.operands), holds)):
        label = id_of(small)
        big = elements(small) > 1 << (24 if small == dims else 22)
        if label in tried or big or (found and (slow or small in last)) or len(found) == 3:
            continue
        tried.add(label)
        why = again(small)
        if why:
            reasons[label] = why
            continue
        try:
            inputs = make(site, small, "randn", 4)
            answers = reference.settle(site, inputs) if not reference.call else reference(inputs)
            outputs, took = timed(module, defaults, inputs)
            if small in wide and took > LOOPED_SECONDS:
                continue
            slow = slow or took > SLOW_SECONDS
        except TooSlow:
            reasons[label] = f"more than {RUN_SECONDS} s in the interpreter"
            continue
        except Refusal as refusal:
            reasons[label] = refusal.what
            continue
        except Exception as error:  # noqa: BLE001 - a shape the kernel or the reference does not take
            reasons[label] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        fault = wrong(outputs, answers, site.operands)
        if fault:
            reasons[label] = fault
            continue
        found.append(Shape(small, {"randn": inputs}, {"randn": answers}, small in wide))
    if not found:
        return f"the kernel agrees with the reference on no small shape: {said_once(reasons)}"
    notes += [f"not checked at {label}: {why}" for label, why in reasons.items()]
    return found


def said_once(reasons: Mapping[str, str]) -> str:
    """Reasons by shape as one text, each once, and how many more there are of many."""
    shapes: dict[str, list[str]] = {}
    for label, why in reasons.items():
        shapes.setdefault(why, []).append(label)
    said = [f"{', '.join(labels)}: {why}" for why, labels in shapes.items()]
    more = [f"and {len(said) - MOST_REASONS} more"] if len(said) > MOST_REASONS else []
    return "; ".join([*said[:MOST_REASONS], *more])
