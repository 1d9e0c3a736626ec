"""What a kernel's own answers are held to: kinds of inputs that it bears, bounds on every result, results' shapes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.workers.intake.calls.dtypes import is_float, is_narrow
from tilewright.workers.intake.calls.sizes import size_said
from tilewright.workers.intake.judge import bounds as judge
from tilewright.workers.intake.judge.bounds import wrong
from tilewright.workers.intake.judge.edges import DRAWS, negative_numbers, with_edges
from tilewright.workers.intake.judge.inputs import FEW_VALUES, MOST_ANSWER, SET_APART, draws
from tilewright.workers.intake.operator import Operand, Result
from tilewright.workers.intake.triton.call_site import Oracle, Site
from tilewright.workers.intake.triton.interpreter_run import Crashed, Running, TooSlow, run
from tilewright.workers.intake.triton.kernel_module import Taken
from tilewright.workers.intake.triton.trace import Refusal
from tilewright.workers.intake.triton.trial import Shape, make

OTHER_SEEDS = (3, 5)
"""Of inputs of very different size on which the kernel itself is run."""


def bars(request: Mapping[str, Any], site: Site, taken: Taken, module: Any, defaults: Mapping[str, Any],
          shapes: list[Shape], places: Sequence[int], reference: Oracle, notes: list[str]
          ) -> tuple[list[Result], str, int]:  # fmt: skip
    """Results with their bounds, from all kinds of inputs; why the seed is wrong; the spread that it bears.

    The site's operands are given the edges that they bear."""
    outputs: dict[tuple[int, str], list[np.ndarray]] = {}
    spread = 4
    largest = max(shapes, key=_size)

    def bears(kind: str, attempt: int, seed: int) -> bool:
        """Whether it takes inputs of another seed, twice as far apart as those of gates: some draws overflow."""
        inputs = make(site, largest.dims, kind, attempt, seed)
        answers = reference(inputs)
        if not all(np.abs(a).max(initial=0.0) < MOST_ANSWER for a in answers if a.dtype.kind == "f"):
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

    def as_tight(kind: str) -> bool:
        """Whether a kind leaves the bounds that the others set."""
        known = [k for k in shapes[0].inputs if k != kind]
        return all(
            bound_of(number, known)[0] == bound_of(number, [*known, kind])[0] for number in range(len(dtypes))
        )

    begun = [(shape, Running(module, defaults, shape.inputs["randn"])) for shape in shapes]
    outputs.update({(id(shape), "randn"): one.outputs() for shape, one in begun})
    site.operands = edged(site, shapes, module, defaults, reference)
    for kind in (*SET_APART, *FEW_VALUES):
        family: Collection[str] = SET_APART if kind in SET_APART else FEW_VALUES
        if any(stronger in shapes[0].inputs for stronger in family):
            continue  # says less
        for attempt in (4,) if kind == "far" or kind in FEW_VALUES else (4, 2, 1):
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
            if fine and kind in SET_APART and (kind == "far" or attempt > 1):
                fine = explained(kind)  # else less far apart, where float32 may still explain a cancellation
            if fine and kind != "repeated":
                fine = all(bears(kind, attempt + 1, seed) for seed in range(24))
            if fine and kind in FEW_VALUES and kind != "repeated":
                fine = as_tight(kind)
            if fine:
                spread = attempt if kind in SET_APART else spread
                break
        else:
            if kind not in ("far", "shifted", "sided"):  # those of the next kind say nearly as much
                notes.append(f"inputs of kind {kind} are left out: the kernel itself fails on them")
            for shape in shapes:
                shape.inputs.pop(kind)
                shape.answers.pop(kind)
    results = []
    for number, tensor in enumerate(taken.outputs):
        sizes = [(shape.dims, outputs[id(shape), "randn"][number].shape) for shape in shapes]
        shape_of = symbolic(site.dims[0], sizes, tensor.shape)
        bound, why, narrow = bound_of(number, shapes[0].inputs)
        said = f"result {number} is judged as of {narrow}, to which the kernel itself converts"
        notes += [said] if narrow else []
        if bound is None:
            return [], f"result {number}: {why}", spread
        dtype = dtypes[number]
        results.append(Result(f"o{number}", dtype, shape_of, bound.min_db, bound.worst, places[number]))
    return results, "", spread


def _size(shape: Shape) -> int:
    return sum(array.size for array in shape.inputs["randn"].values())


def edged(
    site: Site, shapes: Sequence[Shape], module: Any, defaults: Mapping[str, Any], reference: Oracle
) -> list[Operand]:
    """The operands with what the reference bears on every shape, and the kernel on the smallest."""
    smallest = min(shapes, key=_size)

    def holds(operands: Sequence[Operand]) -> bool:
        def drawn(shape: Shape, seed: int) -> dict[str, np.ndarray]:
            return draws(operands, shape.dims, "repeated", 4, np.random.default_rng(seed))

        try:
            finite = all(
                np.isfinite(a).all()
                for shape, seed in itertools.product(shapes, range(DRAWS))
                for a in reference(drawn(shape, seed))
                if a.dtype.kind == "f"
            )
            inputs = drawn(smallest, 0)
            return finite and not wrong(run(module, defaults, inputs), reference(inputs), operands)
        except Exception:  # noqa: BLE001 - what the reference or the kernel does not take is no edge
            return False

    call = site.calls[0]
    numbers = negative_numbers(
        (site.function, reference.function), (*call.arguments, *call.keywords.values())
    )
    return with_edges(site.operands, numbers, holds)


def symbolic(
    dims: Mapping[str, int], small: Sequence[tuple[Mapping[str, int], Sequence[int]]], whole: Sequence[int]
) -> tuple[int | str, ...]:
    """A result's shape by dimensions. ``small``: dimensions and the result's sizes at shapes that were run, at all of
    which it must be as said."""
    axes = zip(*(sizes for _, sizes in small), whole, strict=True)
    given = [*(at for at, _ in small), dims]
    try:
        return tuple(size_said([(at, int(n)) for at, n in zip(given, sizes, strict=True)]) for sizes in axes)
    except LookupError as error:
        raise Refusal(str(error)) from error
