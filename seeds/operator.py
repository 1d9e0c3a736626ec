"""The operator protocol: what a kernel family must say about itself.

Everything here is host-side numpy; no device library is imported. A family is a folder with an
``operator.py`` that defines ``operators() -> dict[str, Operator]`` keyed by recipe name, and a
``kernels/`` folder of dialect modules. The full name of an operator is ``family/recipe``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
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

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a workload needs a non-empty id")
        for name, size in self.dims.items():
            if size < 0:
                raise ValueError(f"workload {self.id}: dimension {name} is negative")
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))

    def __hash__(self) -> int:
        return hash((self.id, tuple(self.dims.items())))

    def __reduce__(self) -> tuple:
        return (Workload, (self.id, dict(self.dims)))


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
    """``10 log10(|ref|^2 / |ref - out|^2) >= min_db`` in dB, in float64.

    ``reference`` names one of the references that ``Operator.oracle`` returns. Single elements are judged as well
    (``fitness.elements``): none may be off, beside rounding, by more than the share ``worst`` of the reference's root
    mean square around it. None: what sums in float32 explain if the bar is 40 dB or more, else no bound. A recipe that
    rounds within, where another order of operations turns a rounding, states its own. ``counted`` names a reference of
    bool arrays over leading axes of the outputs: what they leave out may be anything. All counts without one.
    ``usual`` names a reference of how large each element usually is, from the operands: the root of the sum of its
    squared products. Where there is none that is guessed from the elements around it. ``zero``: the share of the same
    kind as ``worst`` below which an element may be a zero; None: what sums in float32 explain. ``slack`` names a
    reference of what the contract leaves to each element beside rounding and sums, in absolute terms: then no share is
    allowed, and errors may not lean towards the answer or away from it; where it is nothing, each is one
    rounding. ``turned`` names one of the mean square that the contract leaves to each element where roundings within
    turn: noise that ``min_db`` does not count. ``rare``: the share of elements that may be off by more than sums
    explain, up to ``worst``, where a rounding within turns now and then; None: all. ``lean``: the share of a last place
    by which errors of a 16-bit output may go one way; None: any. ``short``: products that a matrix unit of 14 bits
    may add up by the contract; more than 128 of one sign lose noticeably.
    """

    name: str
    reference: str
    min_db: float
    worst: float | None = None
    counted: str | None = None
    usual: str | None = None
    zero: float | None = None
    slack: str | None = None
    turned: str | None = None
    rare: float | None = None
    lean: float | None = None
    short: int = 0


@dataclass(frozen=True)
class BitExactGate:
    """Every named output equals its reference bit for bit (payload and scales)."""

    name: str
    reference: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class AgreementGate:
    """At least the share ``least`` of the elements of every named output have the reference's bits.

    For results that are rounded from sums: another order of addition may turn a rounding, which is rare. ``counted``
    names a reference of bool arrays over leading axes of the outputs: what they leave out may be anything. All counts
    without one. ``allowance`` names a reference of scalars: the share of each output's elements that may differ beside
    1 - ``least``, because the inputs at hand are sums that some target's accumulator does not hold exactly. An element
    that differs is the next code, up or down, or as near as sums of such inputs explain (``fitness.elements``).
    ``scaled`` pairs outputs of codes with those of their exponents (e8m0, equal blocks of the last axis), for elements
    are compared as the values they stand for. Those that differ do so up and down, unless the gate ``leans``: the
    operator's own kernel rounds near ties one way. ``either`` names a reference whose bits are as good: the same in
    fewer places, where what float64 finds just beside a tie may be one.
    """

    name: str
    reference: str
    outputs: tuple[str, ...]
    least: float
    counted: str = ""
    allowance: str = ""
    scaled: tuple[tuple[str, str], ...] = ()
    leans: bool = False
    either: str = ""


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
    """An operator's addition when its module's docstring does not say what it computes."""

    @property
    def contract(self) -> str:
        """What a kernel is given and must return, for whoever writes one; empty where it does not know."""
        ...


@runtime_checkable
class KnownOperands(Protocol):
    """An operator's addition when the time of its kernels depends on the values of small integer operands.

    A kernel over ragged groups runs as long as the group sizes say. The time model needs them before the run, and the
    operator, never a candidate, says what they are: the distribution a workload stands for. The gates are passed on
    whatever ``make_inputs`` draws.
    """

    def known(self, workload: Workload) -> Arrays:
        """Values of int32 operands, one-dimensional, that the workload is timed with, by name."""
        ...


@runtime_checkable
class BesideKernels(Protocol):
    """An operator's addition when the function it was taken from computes something beside its kernels, as a wrapper
    that scales or sums its operands does. Candidates may do such work there, too; its time counts."""

    @property
    def beside(self) -> frozenset[str]:
        """Operations that may stand beside the kernels of a module, as StableHLO names them."""
        ...


@runtime_checkable
class LaneWork(Protocol):
    """An operator's addition when units other than the matrix units may bound it: what they do at least."""

    def lane_work(self, workload: Workload) -> Mapping[str, float]:
        """Element operations in float32 that no schedule avoids, by unit (``valu``, ``eup``: see ``Chip.slots``)."""
        ...
