"""One evaluation in progress: its inputs and the oracle's answers, the request, and the findings of its stages.

The answers stay in the parent and never reach a child.
"""

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tilewright.fitness.evaluation import GateReading, Stage, Verdict, WorkloadFigures
from tilewright.fitness.race import Race
from tilewright.fitness.targets import Target
from tilewright.fitness.tpu.structure import ModuleFacts
from tilewright.seeds.operator import Arrays, KnownOperands, Operator, SeedKernel, TensorSpec, Workload
from tilewright.seeds.sampled import OracleAt, crossing
from tilewright.workers.child.frames import Frame, dtype_named
from tilewright.workers.child.launch import Launcher, Spawn
from tilewright.workers.child.run_once import ChildLimits

Where = Mapping[str, Sequence[np.ndarray]]
"""By output, indices along each of its axes; they stand for the elements at their crossings."""

K = TypeVar("K")
V = TypeVar("V")


class Latest(Generic[K, V]):
    """A cache of the latest values by key, for several threads: each value is made once, and other keys do not wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[K, tuple[threading.Lock, list[V]]] = OrderedDict()

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value under a key, made if there is none."""
        with self._lock:
            turn, made = self._held.setdefault(key, (threading.Lock(), []))
            self._held.move_to_end(key)
            while len(self._held) > self._most:
                self._held.popitem(last=False)
        with turn:
            if not made:
                made.append(make())
            return made[0]


class Truth:
    """A cache of one operator's inputs and references, for several threads, since a campaign uses a seed for a few
    candidates in a row."""

    def __init__(self, operator: Operator, most: int = 0) -> None:
        """``most``: (shape, seed, kind) triples to keep; by default those of one evaluation and of a new best's
        further shapes."""
        self._operator, most = operator, most or len(operator.input_kinds) + 2
        self._inputs: Latest[tuple[str, int, int, str], Arrays] = Latest(most)
        self._references: Latest[tuple[str, int, int, str], dict[str, Arrays]] = Latest(most)

    def inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Operands by name, fresh for every seed."""
        key = (workload.id, workload.turn, seed, kind)
        return self._inputs.of(key, lambda: self._operator.make_inputs(workload, seed, kind))

    def references(self, workload: Workload, seed: int, kind: str) -> dict[str, Arrays]:
        """The oracle's answers to these inputs."""
        key = (workload.id, workload.turn, seed, kind)
        return self._references.of(key, lambda: self._operator.oracle(workload, self.inputs(workload, seed, kind)))

    def prepare(self, wanted: Sequence[tuple[Workload, int, str]]) -> None:
        """Compute references ahead, in parallel if other processes do it (``TakenOperator.answered_apart``)."""
        apart = getattr(self._operator, "answered_apart", False)
        with ThreadPoolExecutor(max(1, len(wanted)) if apart else 1) as threads:
            list(threads.map(self.references, *zip(*wanted, strict=True)))

    def references_at(self, workload: Workload, seed: int, kind: str, where: Where) -> dict[str, Arrays]:
        """The answers at some elements of the outputs; all are computed unless the operator has ``oracle_at``."""
        inputs = self.inputs(workload, seed, kind)
        if isinstance(self._operator, OracleAt):
            return self._operator.oracle_at(workload, inputs, where)
        return crossing(self.references(workload, seed, kind), where)


GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """Limits of the two children. A final evaluation (larger shapes) gets ``final_factor`` times the wall clocks."""

    trace: ChildLimits = field(default_factory=lambda: ChildLimits(60.0, 8 * GIB))
    compile: ChildLimits = field(default_factory=lambda: ChildLimits(150.0, 12 * GIB))
    final_factor: float = 4.0


@dataclass(frozen=True)
class Failure:
    """The end of an evaluation: a verdict with a one-line reason. ``stage`` overrides the stage that returned it.

    ``entry``: id of the faulty kernel if several ran side by side.
    """

    verdict: Verdict
    reason: str
    log: str = ""
    stage: Stage | None = None
    entry: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimingRequest:
    """Shapes of an operator to time kernels on. ``final``: with the time limits of a finalist."""

    operator: Operator
    truth: Truth
    target: Target
    limits: Limits
    seed: int
    measured: tuple[Workload, ...]
    baseline: SeedKernel | None = None
    final: bool = False

    @property
    def time_factor(self) -> float:
        """Factor on the time limits."""
        return self.limits.final_factor if self.final else 1.0

    def inputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Specs of this kernel's operands: the operator's, or those of the baseline's variant."""
        return self.operator.inputs(workload, self.baseline.inputs if self.baseline else None)

    def compulsory_bytes(self, workload: Workload) -> int:
        """Compulsory bytes: the operator's, or fewer if a baseline's operands are smaller."""
        specs = (*self.inputs(workload), *self.operator.outputs(workload))
        tensors = sum(math.prod(spec.shape) * dtype_named(spec.dtype).itemsize for spec in specs)
        return min(self.operator.bytes(workload), tensors)

    def fixed_operands(self, workload: Workload) -> dict[str, list[int]]:
        """Integer operands whose values are part of the timed workload, by the operand's number in call order."""
        if not isinstance(self.operator, KnownOperands):
            return {}
        values = self.operator.known(workload)
        names = [spec.name for spec in self.inputs(workload)]
        return {str(names.index(name)): [int(n) for n in array.reshape(-1)] for name, array in values.items()}

    def described(self, workload: Workload) -> dict[str, Any]:
        """JSON of a workload for a child: its id, and name, shape and dtype of operands and results."""
        return {
            "id": workload.id,
            "inputs": [_tensor(spec) for spec in self.inputs(workload)],
            "outputs": [_tensor(spec) for spec in self.operator.outputs(workload)],
        }


def _never(artefact: str) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class KernelRequest(TimingRequest):
    """A kernel at a point of its space, to be compiled for the timed shapes and for the ``checked`` ones.

    ``is_known``: names the earlier genome that compiled to an artefact, or None.
    """

    source: str
    params: Mapping[str, Any]
    checked: tuple[Workload, ...] = ()
    is_known: Callable[[str], str | None] = _never


@dataclass(frozen=True, kw_only=True)
class Request(KernelRequest):
    """A genome to evaluate: ``measured`` shapes are timed, ``checked`` ones pass the gates; ``folder`` is scratch
    space.

    ``thorough``: every kind of inputs on every checked shape, as for a finalist; otherwise ``large_checks``, a part of
    ``checked``, get two kinds. A fitness over ``best`` is checked harder. With a ``race``, only contenders are timed on
    all of ``measured``. ``only``: ids of the shapes that may run; None: all of the suite's.
    """

    folder: Path
    large_checks: tuple[Workload, ...] = ()
    sampled: Mapping[str, Where] = field(default_factory=dict)
    """By the id of a checked shape, the elements of its outputs to compare; of other shapes all are."""
    whole_axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By the id of a sampled shape, the kinds of inputs on which all steps along axes not declared parallel run."""
    every_kind: frozenset[str] = frozenset()
    """Ids of checked shapes that get all kinds of inputs."""
    unmeasured: tuple[Workload, ...] = ()
    """Other shapes of the suite that the kernel must be legal for and right on."""
    thorough: bool = False
    genome: str = ""
    best: float = 0.0
    race: Race | None = None
    only: frozenset[str] | None = None
    within: tuple[str, ...] = ()
    """Constraints on randomly drawn shapes, in addition to the kernel's own."""
    launcher: Launcher = field(default_factory=Spawn)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}


@dataclass
class Findings:
    """The stages' findings; each stage adds its own."""

    traced: dict[str, Frame] = field(default_factory=dict)
    """By workload, what the candidate's Python traced to."""
    sources: dict[str, str] = field(default_factory=dict)
    """By workload, the hash of the traced kernel, which is interpreted and compiled."""
    modules: dict[str, bytes] = field(default_factory=dict)
    plans: dict[str, bytes] = field(default_factory=dict)
    """By workload, the launch plan for a device (``library.plans``)."""

    conventions: dict[str, int] = field(default_factory=dict)
    claimed: dict[str, str] = field(default_factory=dict)
    facts: dict[str, ModuleFacts] = field(default_factory=dict)
    dumps: dict[str, Path] = field(default_factory=dict)
    gates: list[GateReading] = field(default_factory=list)
    figures: list[WorkloadFigures] = field(default_factory=list)
    projected: float | None = None
    compiled: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By kernel, the facts of its code (``fitness.isa.KernelIsa.data``)."""

    crowned: bool = False
    """Whether it was confirmed as faster than the champion."""

    paired: bool = False
    """Whether the figures are the champion's times the paired ratio of a comparison with it."""

    drawn: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    """See ``fitness.evaluation.Evaluation``."""

    artefact: str | None = None
    logs: list[str] = field(default_factory=list)
    device_seconds: float = 0.0
    """Seconds for which it held the device."""

    device_cpu_seconds: float = 0.0
    """CPU time of the device's child meanwhile."""

    def spend(self, device: float, cpu: float) -> None:
        """Count a job's seconds."""
        self.device_seconds += device
        self.device_cpu_seconds += cpu


class StageStep(Protocol):
    """A stage of the cascade."""

    stage: Stage

    def run(self, request: Request, found: Findings) -> Failure | None:
        """Add to ``found``; return a Failure if the evaluation ends here."""
        ...


def artefact_hash(fingerprints: Mapping[str, str]) -> str:
    """Hash of the code compiled for a set of workloads: 16 hex digits."""
    text = "\n".join(f"{name} {value}" for name, value in sorted(fingerprints.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def duplicate(request: KernelRequest, artefact: str | None) -> Failure | None:
    """The failure ``duplicate`` if an earlier genome compiled to this artefact, else None."""
    earlier = request.is_known(artefact) if artefact is not None else None
    if earlier is None:
        return None
    return Failure(Verdict.DUPLICATE, f"compiles to the same artefact {artefact} as {earlier}")


def one_line(text: str) -> str:
    """Text as a verdict's reason: one line of at most 600 characters without control sequences; a candidate wrote
    it."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= 600 else line[:597] + "..."
