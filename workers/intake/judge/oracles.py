"""Sources of right answers while a kernel is read in: its reference, or the kernel itself."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.workers.intake.child_program import Refusal, first_line
from tilewright.workers.intake.judge.reference import as_float64, in_precision, run_reference
from tilewright.workers.intake.operator import Operand

Arrays = Mapping[str, np.ndarray]


@dataclass
class Oracle:
    """The reference, called by the first of ``calls`` that works, in the highest precision that it takes."""

    function: Callable[..., Any]
    calls: Sequence[str]
    call: str = ""
    """The text of its arguments; empty before the first call."""

    precision: str = "float64"

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The results. The first call raises Refusal if no text works, later ones what the reference raises."""
        if self.call:
            return run_reference(self.function, self.call, inputs, self.precision)
        errors = []
        for precision, call in itertools.product(("float64", "float32", ""), self.calls):
            try:
                values = run_reference(self.function, call, inputs, precision)
            except Exception as error:  # noqa: BLE001 - another way to call it may work
                errors.append(first_line(error))
                continue
            if values:
                self.call, self.precision = call, precision
                return values
        why = errors[0] if errors else "it returns no tensor"
        raise Refusal(f"the reference cannot be called with these arguments: {why}")


@dataclass
class OwnAnswers:
    """The kernel's own answers instead of a reference's, with the interface of ``Oracle``.

    ``run``: runs the module with its defaults; ``run_all``: the same on several inputs, None for one that fails.
    ``alike``: why two answers cannot come from one function; empty if they can.
    """

    run: Callable[[Arrays], list[np.ndarray]]
    alike: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], str]
    operands: Sequence[Operand]
    call: str = ""
    precision: str = ""
    precisions: Sequence[str] = ("float64", "float32")
    run_all: Callable[[Sequence[Arrays]], Sequence[list[np.ndarray] | None]] | None = None
    _asked: bool = False
    """Whether it was called before, so that its precision is known."""
    _last: list[tuple[Arrays, list[np.ndarray]]] = field(default_factory=list)
    """Inputs in the kernel's own precision, and its outputs."""

    def __call__(self, inputs: Arrays) -> list[np.ndarray]:
        """The answers, computed in the highest precision that gives the same function. Raises what ``run`` raises."""
        if self._asked:
            return [as_float64(a) for a in self.run(in_precision(inputs, self.precision))]
        self._asked = True
        self.call = ", ".join(f"{operand.name}={operand.name}" for operand in self.operands)
        plain = self.run(inputs)
        for precision in self.precisions:
            self.precision = precision
            with contextlib.suppress(Exception):  # a kernel may not take floats of that width
                answers = self(inputs)
                if all(np.isfinite(a).all() for a in answers) and not self.alike(plain, answers):
                    return answers
        self.precision = ""
        return [as_float64(a) for a in plain]

    def to_all(self, every: Sequence[Arrays]) -> list[list[np.ndarray]]:
        """The answers to several inputs. Raises what ``run`` raises, and ValueError."""
        if not self._asked or self.run_all is None:
            return [self(inputs) for inputs in every]
        made = [m for m in self.run_all([in_precision(inputs, self.precision) for inputs in every]) if m is not None]
        if len(made) < len(every):
            raise ValueError("the kernel fails on some of the inputs")
        self._last = [] if self.precision else list(zip(every, made, strict=True))
        return [[as_float64(a) for a in answer] for answer in made]

    def outputs(self, inputs: Arrays) -> list[np.ndarray] | None:
        """The kernel's outputs for these inputs if they are from the last ``to_all``, else None."""
        return next((outputs for known, outputs in self._last if known is inputs), None)

    def function(self, *_: object, **__: object) -> tuple[()]:
        """Stands in for a reference when operations are counted: there are none."""
        return ()


@dataclass
class CompletedOracle(Oracle):
    """A reference, and the kernel's ``own`` answers for those of its results that the reference does not compute."""

    own: OwnAnswers | None = None
    completed: bool = False

    def __call__(self, inputs: Arrays) -> list[np.ndarray]:
        """All results. Raises what either raises."""
        found = super().__call__(inputs)
        return [*found, *(self.own(inputs)[len(found) :] if self.own and self.completed else ())]
