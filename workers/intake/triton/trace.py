"""What one call of a wrapper did, as data: its tensors, its launches, and where in the user's files."""

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.triton import scalar_reads


class Address(int):
    """What ``data_ptr()`` returns while a call is recorded: 0, with the ``tensor`` that lies there."""

    tensor: torch.Tensor


@dataclass
class Var:
    """A tensor of the wrapper. ``text``: the expression that makes it, None for an input; ``base``: what it views."""

    name: str
    tensor: torch.Tensor
    kind: str  # input, fresh, zeros, view, foreign
    text: str | None = None
    base: "Var | None" = None
    line: int = 0
    foreign: str = ""

    @property
    def is_foreign(self) -> bool:
        """Whether torch alone could make it."""
        return bool(self.foreign) or self.kind == "foreign"


@dataclass(frozen=True)
class Work:
    """A kernel of ours in place of torch: its name and text, its launch as text, what it reads and writes.

    ``asked``: an expression over x0, x1, … and c0, c1, … with its Vars and numbers, or a reduction's name and axis.
    """

    kernel: str
    text: str
    call: str
    reads: tuple[Var, ...]
    target: Var
    what: str
    line: int
    asked: tuple[Any, ...]


@dataclass
class Launch:
    """One kernel launch: arguments by the kernel's parameter names, in their order."""

    kernel: Any
    grid: tuple[Any, ...]
    arguments: dict[str, Any]
    options: dict[str, Any]
    line: int
    tuned: tuple[Mapping[str, Any], ...] = ()


@dataclass
class Trace:
    """What one call did, in order. ``steps``: Var (made), Launch, Work, or (Var, method) for a reset."""

    inputs: dict[str, Var]
    steps: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    returned: Any = None
    """What the call returned, as it is built of ``results`` and other values."""

    notes: list[str] = field(default_factory=list)
    split: int | None = None
    """Number of the first step of the backward, where the call was of a pair."""
    wanted: Sequence[torch.Tensor] = ()
    """Arguments of a pair that get a gradient."""

    left_out: list[str] = field(default_factory=list)
    """What the call did that a module cannot do, such as assertions on values."""

    conditions: dict[str, bool | int] = field(default_factory=dict)
    """What the call decided by the sizes of its tensors: expressions, and their values."""

    configs: dict[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    """Kernel to its autotuner's configurations."""

    asks_gradients: bool = False
    """Whether the call asked a tensor if it needs a gradient."""

    reads: dict[str, Var] = field(default_factory=dict)
    """Tensors of one element whose values the wrapper read, by the atoms that stand for the values."""
    refusals: list[tuple[int, str]] = field(default_factory=list)
    """What stands against the call although it went on: line and reason."""

    vars: dict[int, Var] = field(default_factory=dict)
    atoms: dict[str, Any] = field(default_factory=dict)
    """Values of atoms that configurations and the device give."""

    _count: int = 0

    def settle(self, number: traced_numbers.Traced, value: bool | int) -> None:
        """Note a number that the wrapper settled."""
        if "read" in number.atoms:
            if scalar_reads.guarded(*caller()) is None:
                self.refusals.append((user_line(), "a branch or a loop is computed from a tensor's values"))
            else:
                self.left_out.append(f"line {user_line()}: a condition on a tensor's values is taken as met")
        elif "shape" in number.atoms:
            self.conditions.setdefault(number.code, value)

    def fresh_name(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def find(self, tensor: torch.Tensor) -> Var | None:
        var = self.vars.get(id(tensor))
        if var is not None and var.tensor is tensor:
            return var
        for known in reversed(list(self.vars.values())):
            same = known.tensor
            if (
                same.untyped_storage()._cdata == tensor.untyped_storage()._cdata
                and same.shape == tensor.shape
                and same.stride() == tensor.stride()
                and same.storage_offset() == tensor.storage_offset()
                and same.dtype == tensor.dtype
            ):
                return known
        return None

    def likely(self, var: Var) -> int:
        """A value that an integer tensor of one element may have: of a sum, as many as it was summed over."""
        summed = (s for s in self.steps if isinstance(s, Work) and s.target is var and s.what == "sum")
        return next((int(step.reads[0].tensor.numel()) for step in summed), 1)

    def compared(self, var: Var | None) -> str:
        """How a tensor was made by a comparison of two for equality, ``eq`` or ``ne``; empty where it was not."""
        made = (s.what for s in self.steps if isinstance(s, Work) and s.target is var)
        return next((what for what in made if what in ("eq", "ne")), "")

    def add(self, var: Var) -> Var:
        self.vars[id(var.tensor)] = var
        if var.kind != "input":
            self.steps.append(var)
        return var


_current: list[Trace] = []
_user_files: list[str] = []


@contextlib.contextmanager
def opened(trace: Trace, files: Sequence[str]) -> Iterator[None]:
    """While open, launches are noted in ``trace``; ``files`` are the user's."""
    _current.append(trace)
    _user_files[:] = files
    watching = traced_numbers.WATCH.set(trace.settle)
    try:
        yield
    finally:
        traced_numbers.WATCH.reset(watching)
        _current.pop()


def current() -> Trace | None:
    """The recording that is open."""
    return _current[-1] if _current else None


def caller() -> tuple[str, int]:
    """File and line of the innermost code that is neither torch's nor ours."""
    frame: types.FrameType | None = sys._getframe(1)
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    while frame is not None:
        if not frame.f_code.co_filename.startswith(own):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def user_line() -> int:
    """The innermost line of the user's files that is being run."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in _user_files:
            return frame.f_lineno
        frame = frame.f_back
    return 0
