"""Runs of a taken module in the interpreter: on small shapes of the same kind, judged against the reference."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.workers.intake import judge
from tilewright.workers.intake.call_site import (
    Oracle,
    Site,
    traced_at,
    wanted_at,
    wanted_of,
)
from tilewright.workers.intake.device import noted_device
from tilewright.workers.intake.draws import SET_APART, draws
from tilewright.workers.intake.dtypes import is_float, is_narrow
from tilewright.workers.intake.itself import ITSELF
from tilewright.workers.intake.operator import (
    LEAST_CODES,
    Operand,
    Result,
    is_code,
)  # fmt: skip
from tilewright.workers.intake.running import RUN_SECONDS, Crashed, Running, TooSlow, run, timed
from tilewright.workers.intake.sizes import size_said
from tilewright.workers.intake.small_shapes import check_dims, ladder, last_resorts, looped
from tilewright.workers.intake.taken import Taken
from tilewright.workers.intake.trace import Refusal

MOST_TILE = 256
"""Largest literal that is taken for a tile when a shape of several tiles is made."""

OTHER_SEEDS = (3, 5)
"""Of inputs of very different size on which the kernel itself is run."""

MOST = 1e30
"""Largest answer to inputs of very different size: beyond, float32 may overflow in the next draw."""

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
        said = "; ".join(f"{label}: {why}" for label, why in reasons.items())
        return f"the kernel agrees with the reference on no small shape: {said}"
    notes += [f"not checked at {label}: {why}" for label, why in reasons.items()]
    return found


def wrong(
    outputs: Sequence[np.ndarray], answers: Sequence[np.ndarray], operands: Sequence[Operand] = ()
) -> str:
    """A coarse look: another function, or a shape outside the kernel's domain; no judgement of precision."""
    for number, (output, answer) in enumerate(zip(outputs, answers, strict=False)):
        if output.shape != answer.shape:
            return f"result {number} has shape {list(output.shape)}, the reference's {list(answer.shape)}"
        if output.dtype.kind in "iub":
            share = float(np.mean(output == answer)) if output.size else 1.0
            if share < (LEAST_CODES if is_code(output.dtype.name, operands) else 1.0):
                return f"result {number}: {share:.1%} of its integers are the reference's"
            continue
        reading = judge.read(output, np.asarray(answer, dtype=np.float64))
        if not np.isfinite(output.astype(np.float64)).all() and np.abs(answer).max(initial=0.0) > _largest(
            output.dtype
        ):
            return (f"result {number} overflows: {output.dtype.name} holds up to {_largest(output.dtype):g}, and the "
                    f"reference says {np.abs(answer).max():.6g}")  # fmt: skip
        if not reading.db > 20:
            return (f"result {number} is {reading.db:.1f} dB from the reference; element {list(reading.place)} is "
                    f"{reading.found:.6g} where the reference says {reading.wanted:.6g}")  # fmt: skip
    return ""


def _largest(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).max)


def bars(request: Mapping[str, Any], site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any],
          shapes: list[Shape], places: Sequence[int], reference: Oracle, notes: list[str]
          ) -> tuple[list[Result], str, int]:  # fmt: skip
    """Results with their bounds, from all kinds of inputs; why the seed is wrong; the spread that it bears."""
    outputs: dict[tuple[int, str], list[np.ndarray]] = {}
    spread = 4
    largest = max(shapes, key=lambda s: sum(a.size for a in s.inputs["randn"].values()))

    def bears(kind: str, attempt: int, seed: int) -> bool:
        """Whether it takes inputs of another seed, twice as far apart as those of gates: some draws overflow."""
        inputs = make(site, largest.dims, kind, attempt, seed)
        answers = reference(inputs)
        if not all(np.abs(a).max(initial=0.0) < MOST for a in answers if a.dtype.kind == "f"):
            return False
        try:
            return seed not in OTHER_SEEDS or not wrong(run(module, defaults, inputs), answers, site.operands)
        except (TooSlow, Crashed, RuntimeError):
            return False

    products = any("tl.dot" in t.text for t in taken.kernels.functions.values())
    factors = judge.factors(site.operands, shapes[0].dims) if products else ""
    kernels = " ".join(t.text for t in taken.kernels.functions.values())
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in taken.outputs]

    def bound_of(number: int, kinds: Collection[str]) -> tuple[judge.Bar | None, str, str]:
        """``judge.bar_of_text`` of a result on these kinds of inputs; without bounds where it is of no wide float."""
        if not is_float(dtypes[number]) or is_narrow(dtypes[number]):
            return judge.Bar(0.0, None), "", ""
        readings = [
            judge.read(outputs[id(s), kind][number], s.answers[kind][places[number]])
            for s in shapes
            for kind in kinds
        ]
        known = [o.dtype for o in site.operands]
        return judge.bar_of_text(readings, known, dtypes[number], factors, kernels)

    def explained(kind: str) -> bool:
        """Whether dtypes explain what a kernel's own answers are off."""
        return all(bound_of(number, (kind,))[0] is not None for number in range(len(dtypes)))

    for kind in (*SET_APART, "repeated"):
        if kind in SET_APART and any(stronger in shapes[0].inputs for stronger in SET_APART):
            continue  # says less
        for attempt in (4,) if kind == "far" else (4, 2, 1):
            fine, running = True, []
            for shape in shapes:
                inputs = make(site, shape.dims, kind, attempt)
                answers = reference(inputs)
                fine = fine and all(np.isfinite(a).all() for a in answers if a.dtype.kind == "f")
                shape.inputs[kind], shape.answers[kind] = inputs, answers
                running.append(Running(module, defaults, inputs) if fine else None)
            for shape, one in zip(shapes, running, strict=True):
                try:
                    made = one.outputs() if one is not None else []
                except (TooSlow, Crashed, RuntimeError):
                    made, fine = [], False
                fine = fine and not wrong(made, shape.answers[kind], site.operands)
                outputs[id(shape), kind] = made
            if fine and kind == "far":
                fine = explained(kind)
            if fine and kind != "repeated":
                fine = all(bears(kind, attempt + 1, seed) for seed in range(24))
            if fine:
                spread = attempt if kind != "repeated" else spread
                break
        else:
            if kind != "far":  # those of the next kind are as many, and no larger than most kernels bear
                notes.append(f"inputs of kind {kind} are left out: the kernel itself fails on them")
            for shape in shapes:
                shape.inputs.pop(kind)
                shape.answers.pop(kind)
    begun = [(shape, Running(module, defaults, shape.inputs["randn"])) for shape in shapes]
    outputs.update({(id(shape), "randn"): one.outputs() for shape, one in begun})
    results = []
    for number, tensor in enumerate(taken.outputs):
        small = [(shape.dims, outputs[id(shape), "randn"][number].shape) for shape in shapes]
        shape_of = symbolic([*small, (site.dims[0], tensor.shape)])
        bound, why, narrow = bound_of(number, shapes[0].inputs)
        said = f"result {number} is judged as of {narrow}, to which the kernel itself converts"
        notes += [said] if narrow else []
        if bound is None:
            return [], f"result {number}: {why}", spread
        dtype = dtypes[number]
        results.append(Result(f"o{number}", dtype, shape_of, bound.min_db, bound.worst, places[number]))
    return results, "", spread


def symbolic(seen: Sequence[tuple[Mapping[str, int], Sequence[int]]]) -> tuple[int | str, ...]:
    """A result's shape by dimensions, from its shapes at several ones, the call's own last. Raises Refusal."""
    try:
        return tuple(
            size_said([(dims, int(shape[axis])) for dims, shape in seen]) for axis in range(len(seen[-1][1]))
        )
    except LookupError as error:
        raise Refusal(str(error)) from error
