"""Kinds of inputs that a taken ``build`` bears, found in the interpreter that candidates are judged with."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.workers.intake.judge import bounds as judge
from tilewright.workers.intake.judge.edges import DRAWS, with_edges
from tilewright.workers.intake.judge.inputs import FEW_VALUES, MOST_ANSWER, SET_APART, draws
from tilewright.workers.intake.operator import Operand

Arrays = Mapping[str, np.ndarray]
OTHER_DRAWS = 12
"""Draws of inputs of very different size that the reference must stay finite on."""

OWN_DRAWS = 1
"""Of these, those that the kernel itself is run on."""

SECONDS = 45.0
"""After which no other kind is tried: some kernels take seconds a run."""

FEWER = {"far": (4,), "shifted": (4,), "sided": (4,), "repeated": (2,)}
"""Spreads that are tried, where they are not all."""


class Kinds:
    """``borne``: names of kinds; ``operands``: with the edges that they bear; ``spread``: see ``draws``.

    ``shapes``: (dimensions, inputs, answers, outputs) of normal values.
    """

    def __init__(
        self,
        operands: Sequence[Operand],
        numbers: Sequence[int],
        shapes: Sequence[Any],
        answers: Callable[[Arrays], list[np.ndarray]],
        runs: Callable[[Mapping[str, int], Arrays], list[np.ndarray]],
    ) -> None:
        self._answers, self._runs = answers, runs
        self._until = time.monotonic() + SECONDS
        self._small = min((s[0] for s in shapes), key=lambda at: sum(_size(o, at) for o in operands))
        self._shapes = [s[0] for s in shapes]
        self._seen = {"randn": [(s[3], s[2]) for s in shapes]}
        self.spread = 2
        self.operands = list(operands)
        self.operands = with_edges(operands, numbers, self._holds)

    def _holds(self, operands: Sequence[Operand]) -> bool:
        """Whether reference, on every shape, and kernel, on the smallest, bear the operands' edges."""
        every = itertools.product(self._shapes, range(DRAWS))
        return all(
            self._fine("repeated", 2, n, operands, run=False, dims=dims) for dims, n in every
        ) and self._fine("repeated", 2, 0, operands)

    @property
    def borne(self) -> list[str]:
        return list(self._seen)

    def readings(self, number: int, kinds: Collection[str]) -> list[judge.Reading]:
        """Of one float result on all shapes."""
        pairs = [pair for kind in kinds for pair in self._seen[kind]]
        return [judge.read(outputs[number], wanted[number].astype(np.float64)) for outputs, wanted in pairs]

    def settle(self, bounds: Callable[[Sequence[str]], Sequence[judge.Bar | None]]) -> None:
        """Add the most telling kinds that it bears and that dtypes explain, those with few values only where they leave
        the bounds of the others."""
        for family in (SET_APART, tuple(FEW_VALUES)):
            for kind in family:
                if any(self._added(kind, spread, bounds) for spread in FEWER.get(kind, (4, 2, 1))):
                    break
        if not set(FEW_VALUES) & set(self._seen) and time.monotonic() > self._until:
            self._seen["repeated"] = []  # which hardly any kernel fails on

    def _added(self, kind: str, spread: int, bounds: Callable[[Sequence[str]], Sequence[Any]]) -> bool:
        found = []
        for dims in self._shapes:
            pair = self._pair(kind, spread, 17, self.operands, dims)
            if pair is None:
                return False
            found.append(pair)
        if kind != "repeated":
            later = range(OTHER_DRAWS)
            if not all(self._fine(kind, spread + 1, n, self.operands, run=n < OWN_DRAWS) for n in later):
                return False
        before = bounds(list(self._seen))
        self._seen[kind] = found
        after = bounds(list(self._seen))
        told = kind != "repeated" and (None in after or (kind in FEW_VALUES and after != before))
        if told:
            del self._seen[kind]
        elif kind in SET_APART:
            self.spread = spread
        return not told

    def _inputs(
        self, kind: str, spread: int, seed: int, operands: Sequence[Operand], dims: Mapping[str, int]
    ) -> dict[str, np.ndarray]:
        return draws(operands, dims, kind, spread, np.random.default_rng([seed, len(kind), spread]))

    def _pair(
        self, kind: str, spread: int, seed: int, operands: Sequence[Operand], dims: Mapping[str, int]
    ) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
        """Outputs and answers, where all is finite and of one function."""
        if time.monotonic() > self._until:
            return None
        try:
            inputs = self._inputs(kind, spread, seed, operands, dims)
            wanted = self._answers(inputs)
            if not _finite(wanted):
                return None
            outputs = self._runs(dims, inputs)
        except Exception:  # noqa: BLE001 - inputs that the reference or the kernel does not take
            return None
        return None if judge.wrong(outputs, wanted, operands) else (outputs, wanted)

    def _fine(
        self, kind: str, spread: int, seed: int, operands: Sequence[Operand], *, run: bool = True,
        dims: Mapping[str, int] | None = None,
    ) -> bool:  # fmt: skip
        if run:
            return self._pair(kind, spread, seed, operands, self._small) is not None
        try:
            return _finite(self._answers(self._inputs(kind, spread, seed, operands, dims or self._small)))
        except Exception:  # noqa: BLE001 - inputs that the reference does not take
            return False


def _size(operand: Operand, dims: Mapping[str, int]) -> int:
    return int(np.prod(operand.sizes(dims)))


def _finite(answers: Sequence[np.ndarray]) -> bool:
    wide = [a for a in answers if a.dtype.kind == "f"]
    return all(np.isfinite(a).all() and np.abs(a).max(initial=0.0) < MOST_ANSWER for a in wide)
