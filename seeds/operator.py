"""The operator protocol: what a kernel family must say about itself.

Everything here is host-side numpy; no device library is imported. A family is a folder with an
``operator.py`` that defines ``operators() -> dict[str, Operator]`` keyed by recipe name, and a
``kernels/`` folder of dialect modules. The full name of an operator is ``family/recipe``.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape (elements) and dtype (a name ``ml_dtypes``/numpy knows) of one operand."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Workload:
    """One shape of an operator. ``dims`` are element counts such as ``{"M": 4096}``.

    ``id`` is stable across releases; figures are keyed by it.
    """

    id: str
    dims: Mapping[str, int]
    turn: int = field(default=0, compare=False)
    """Its place among shapes that are judged together: forms and kinds of inputs are dealt to them in turn."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a workload needs a non-empty id")
        for name, size in self.dims.items():
            if size < 0:
                raise ValueError(f"workload {self.id}: dimension {name} is negative")
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))

    def dealt(self, kinds: Sequence[str], seed: int, most: int) -> list[str]:
        """``most`` of the kinds, in an order that ``seed`` draws: shapes of turns in a row meet all."""
        order = random.Random(seed).sample(kinds, len(kinds))
        return [order[(self.turn * most + n) % len(order)] for n in range(min(most, len(order)))]

    def __hash__(self) -> int:
        return hash((self.id, tuple(self.dims.items())))

    def __reduce__(self) -> tuple:
        return (Workload, (self.id, dict(self.dims), self.turn))


def in_order(workloads: Iterable[Workload], first: int = 0) -> tuple[Workload, ...]:
    """The workloads, each with its turn; the first one has ``first``."""
    return tuple(replace(w, turn=turn) for turn, w in enumerate(workloads, first))


class Scope(StrEnum):
    """What an evaluation runs: the workloads that decide fitness, or the final ones."""

    SUITE = "suite"
    FINAL = "final"


@dataclass(frozen=True)
class Suite:
    """A named list of workloads.

    ``workloads`` are timed for every candidate and decide its fitness, ``final`` are timed once
    for the campaign's winner and baselines, ``check`` are the (small) shapes the gates run on.
    """

    name: str
    workloads: tuple[Workload, ...]
    check: tuple[Workload, ...]
    final: tuple[Workload, ...] = ()

    def __post_init__(self) -> None:
        if not self.workloads or not self.check:
            raise ValueError(f"suite {self.name} needs at least one workload and one check workload")

    def timed(self, scope: Scope) -> tuple[Workload, ...]:
        """Workloads of a scope; the suite's own where it has no final ones."""
        return (self.final or self.workloads) if scope is Scope.FINAL else self.workloads


@dataclass(frozen=True)
class SnrGate:
    """A signal-to-noise bar for float outputs: ``10 log10(|ref|^2 / |ref - out|^2) >= min_db`` dB, in float64.

    Single elements are judged as well (``fitness.elements``). Fields that name a reference name one of those that
    ``Operator.oracle`` returns.
    """

    name: str
    reference: str
    """Name of the exact answers."""
    min_db: float
    worst: float | None = None
    """Largest error of one element, beside rounding, over the root mean square of the reference around it. None: what
    sums in float32 explain if ``min_db`` is 40 or more, else no limit. A recipe that rounds on the way, so that another
    order of operations rounds differently, states its own."""
    counted: str | None = None
    """Name of bool arrays over leading axes of the outputs: elements at False may be anything. None: all are judged."""
    usual: str | None = None
    """Name of each element's usual size: the root of the sum of its squared products. None: guessed from neighbours."""
    zero: float | None = None
    """Share, as in ``worst``, below which an element may be zero instead. None: what sums in float32 explain."""
    slack: str | None = None
    """Name of each element's allowed absolute error beside rounding and sums. With it ``worst`` is not used, errors
    must not lean towards or away from the answer, and where it is 0 an element is off by one rounding at most."""
    turned: str | None = None
    """Name of each element's mean square noise from roundings on the way; ``min_db`` does not count that noise."""
    rare: float | None = None
    """Share of elements that may be off by more than sums explain, up to ``worst``. None: all may."""
    lean: float | None = None
    """Mean error in one direction that a 16-bit output may have, in units of its last place. None: any."""
    short: int = 0
    """Number of FP8 products that a matrix unit with 14-bit sums may add up by the contract; beyond 128 of one sign the
    loss is noticeable."""


@dataclass(frozen=True)
class BitExactGate:
    """Every named output equals its reference bit for bit (payload and scales)."""

    name: str
    reference: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class AgreementGate:
    """A bar for outputs that are codes rounded from sums: a share ``least`` of the elements has the reference's bits.

    Another order of addition changes a rounding now and then. An element that differs is the next code up or down, or
    as near as sums of such inputs explain (``fitness.elements``), and the differences go up as often as down. Fields
    that name a reference name one of those that ``Operator.oracle`` returns.
    """

    name: str
    reference: str
    """Name of the exact codes."""
    outputs: tuple[str, ...]
    """Outputs that the gate judges, each by itself."""
    least: float
    counted: str = ""
    """As in ``SnrGate``; empty: all elements are judged."""
    allowance: str = ""
    """Name of one number for each output: a further share that may differ, since the inputs at hand make sums that some
    target's accumulator does not hold exactly."""
    scaled: tuple[tuple[str, str], ...] = ()
    """Pairs of an output of codes and the output of its e8m0 exponents (equal blocks of the last axis): their elements
    are compared as the values they stand for."""
    leans: bool = False
    """Whether all differences may go one way, as those of the operator's own kernel near ties do."""
    either: tuple[str, ...] = ()
    """Names of codes that are as good: in less precision, where float64 decides a tie that others do not see."""


Gate = SnrGate | BitExactGate | AgreementGate


@dataclass(frozen=True)
class SeedKernel:
    """A kernel a campaign may start from.

    ``source`` is a dialect module. ``overrides`` replace its ``DEFAULTS``. ``points`` are values of its
    parameters, beside the defaults, that a campaign tries before any other; they may fail. A ``baseline`` is
    measured and reported but never a parent (for example the bf16 kernel of an fp8 operator,
    which computes the same product from other operands): it is not held to the gates, and its
    inputs come from ``baseline_inputs`` of the operator when ``inputs`` is set.
    """

    name: str
    source: str
    overrides: Mapping[str, object] = field(default_factory=dict)
    baseline: bool = False
    inputs: str | None = None
    points: tuple[Mapping[str, object], ...] = ()


@runtime_checkable
class Operator(Protocol):
    """An operator: what is computed, and when an answer counts as right."""

    name: str
    """``family/recipe``, for example ``gemm_fp8_fused/g512``."""

    constants: Mapping[str, int]
    """Numbers of the recipe that constraints may name, for example ``{"group": 512}``."""

    gates: tuple[Gate, ...]

    input_kinds: tuple[str, ...]
    """Distributions for ``make_inputs``; the gates run on every one."""

    suites: Mapping[str, Suite]

    kernels: Mapping[str, SeedKernel]

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        """Operands in call order; ``variant`` is a baseline's ``inputs``."""
        ...

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Results in return order."""
        ...

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands by name, distributed as ``kind`` says."""
        ...

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """References by name (as the gates name them), each a float64 or bit-exact output by name."""
        ...

    def flops(self, workload: Workload) -> int:
        """Floating-point operations of the operator itself (2MNK for a GEMM)."""
        ...

    def bytes(self, workload: Workload) -> int:
        """Compulsory bytes: every operand read once, every result written once."""
        ...


@runtime_checkable
class HasContract(Protocol):
    """An optional part of an operator whose module's docstring does not say what it computes."""

    @property
    def contract(self) -> str:
        """Inputs and results of a kernel in words, for the author of one; empty if unknown."""
        ...


@runtime_checkable
class KnownOperands(Protocol):
    """An optional part of an operator: values of small integer operands that decide how long its kernels run.

    A kernel over ragged groups takes as long as the group sizes say, and the time model needs these before the run.
    They come from the operator, never from a candidate. The gates use what ``make_inputs`` draws instead.
    """

    def known(self, workload: Workload) -> Arrays:
        """Values of int32 operands, one-dimensional, that the workload is timed with, by name."""
        ...


@runtime_checkable
class BesideKernels(Protocol):
    """An optional part of an operator whose original function computes something around its kernels, such as a wrapper
    that scales or sums its operands. Candidates may do the same there; its time counts."""

    @property
    def beside(self) -> frozenset[str]:
        """Operations that may stand beside the kernels of a module, as StableHLO names them."""
        ...


@runtime_checkable
class LaneWork(Protocol):
    """An optional part of an operator that units other than the matrix units may bound: their least work."""

    def lane_work(self, workload: Workload) -> Mapping[str, float]:
        """Element operations in float32 that no schedule avoids, by unit (``valu``, ``eup``: see ``Chip.slots``)."""
        ...
