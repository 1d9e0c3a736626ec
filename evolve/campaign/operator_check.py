"""A dry run of an operator before a campaign starts: its suite, gates, inputs, outputs and oracle must fit together.

A campaign trusts its operator. Without gates it would end with an unchecked winner; with an oracle that hangs it would
never end. Each fault is one sentence that names the operator.
"""

import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import numpy as np

from tilewright.evolve.errors import UserError
from tilewright.fitness.original import is_original
from tilewright.seeds.catalogue import error_line
from tilewright.seeds.operator import AgreementGate, BitExactGate, Operator, SnrGate, Suite, TensorSpec, Workload
from tilewright.workers.child.frames import dtype_named
from tilewright.workers.child.launch import Deadline

SECONDS = 60.0
"""Time limit of the inputs and of the oracle on the smallest checked shape."""

CHEAP_FLOPS = 1 << 28
"""Up to this much work of the smallest checked shape, inputs of every kind are made; beyond it, of the first kind."""

_checked: weakref.WeakValueDictionary[tuple[int, str], Operator] = weakref.WeakValueDictionary()
"""Checked operators by identity and suite. Weak references: Python may give a dead operator's identity to a new one."""

T = TypeVar("T")


def check_operator(name: str, operator: Operator, suite: Suite, *, seconds: float = SECONDS) -> None:
    """Raises UserError. An operator object is checked once in a process for each suite."""
    key = (id(operator), suite.name)
    if _checked.get(key) is operator:
        return
    check = _Check(name, operator, seconds)
    check.declared(suite)
    check.answers(min(suite.check, key=operator.flops))
    _checked[key] = operator


class _Check:
    def __init__(self, name: str, operator: Operator, seconds: float) -> None:
        self._name = name
        self._operator = operator
        self._seconds = seconds

    def declared(self, suite: Suite) -> None:
        """Check the declarations: gates, kinds of inputs, shapes, work."""
        operator = self._operator
        self._require(bool(operator.gates), "has no gates, so nothing would be checked; give it one")
        known = (SnrGate, BitExactGate, AgreementGate)
        self._require(all(isinstance(gate, known) for gate in operator.gates), "has a gate of an unknown kind")
        tuples = all(isinstance(group, tuple | list) for group in (suite.workloads, suite.final, suite.check))
        self._require(tuples, f"has a suite {suite.name} whose shapes are no tuple; write one shape as (shape,)")
        bars = [gate.min_db for gate in operator.gates if isinstance(gate, SnrGate)]
        self._require(
            all(np.isfinite(bar) and bar > 0 for bar in bars), "has a gate whose min_db is no positive number"
        )
        self._require(bool(operator.input_kinds), "has no input_kinds, so nothing would be checked; name one")
        for workload in (*suite.workloads, *suite.final, *suite.check):
            for what in ("flops", "bytes"):
                count = self._call(f"{what}()", functools.partial(getattr(operator, what), workload))
                right = isinstance(count, int | np.integer) and not isinstance(count, bool) and bool(count > 0)
                self._require(right, f"has {what}() {count!r} for {workload.id}; a positive int is needed")
            for side in ("inputs", "outputs"):
                specs = self._call(f"{side}()", functools.partial(getattr(operator, side), workload))
                self._specs(specs, side, workload)

    def answers(self, workload: Workload) -> None:
        """Check inputs, of every kind where that is cheap, and the oracle's answer to the first kind."""
        operator = self._operator
        specs = {spec.name: spec for spec in operator.inputs(workload)}
        first: Mapping[str, np.ndarray] = {}
        cheap = operator.flops(workload) <= CHEAP_FLOPS
        for kind in operator.input_kinds if cheap else operator.input_kinds[:1]:
            made = self._call(f"make_inputs() of {kind!r}", functools.partial(operator.make_inputs, workload, 1, kind))
            self._arrays(made, specs, f"make_inputs() of {kind!r}", workload)
            zero = all(not np.any(array.astype(np.float64)) for array in made.values())
            self._require(not zero, f"makes inputs of {kind!r} that are all zero")
            first = first or made
        kind = operator.input_kinds[0]
        other = self._call(f"make_inputs() of {kind!r}", lambda: operator.make_inputs(workload, 2, kind))
        same = all(np.array_equal(_bits(first[n]), _bits(other[n])) for n in specs)
        # a function as it stands has no text in which a candidate could keep the answers
        sources = [kernel.source for kernel in operator.kernels.values()]
        as_it_stands = bool(sources) and all(map(is_original, sources))
        self._require(not same or as_it_stands, f"makes the same inputs of {kind!r} for every seed")
        found = self._call("oracle()", lambda: operator.oracle(workload, dict(first)))
        self._require(isinstance(found, Mapping), "has an oracle() that returns no mapping of references")
        self._references(found, workload)

    def _references(self, found: Mapping[str, Any], workload: Workload) -> None:
        outputs = {spec.name: spec for spec in self._operator.outputs(workload)}
        judged: set[str] = set()
        for gate in self._operator.gates:
            asked = [gate.reference, *(getattr(gate, n, "") for n in ("counted", "allowance"))]
            for name in filter(None, asked):
                has = ", ".join(map(repr, found)) or "none"
                self._require(name in found, f"has a gate {gate.name!r} on {name!r}; its oracle() gives {has}")
            reference = found[gate.reference]
            self._require(
                isinstance(reference, Mapping) and bool(reference), f"has an empty reference {gate.reference!r}"
            )
            names = list(reference) if isinstance(gate, SnrGate) else list(gate.outputs)
            for name in names:
                known = name in outputs and name in reference
                self._require(known, f"has a gate {gate.name!r} on {name!r}, which is no output with a reference")
                array, spec = np.asarray(reference[name]), outputs[name]
                right = tuple(array.shape) == tuple(spec.shape)
                self._require(
                    right, f"has a reference of {name!r} of shape {list(array.shape)}, not {list(spec.shape)}"
                )
                finite = not isinstance(gate, SnrGate) or bool(np.all(np.isfinite(array.astype(np.float64))))
                self._require(finite, f"has a reference of {name!r} that is not finite")
                judged.add(name)
        missed = [name for name in outputs if name not in judged]
        self._require(not missed, f"has no gate on its output {', '.join(missed)}")

    def _specs(self, specs: Any, side: str, workload: Workload) -> None:
        right = isinstance(specs, Sequence) and bool(specs) and all(isinstance(s, TensorSpec) for s in specs)
        self._require(right, f"has {side}() for {workload.id} that are no TensorSpecs")
        names = [spec.name for spec in specs]
        self._require(len(set(names)) == len(names), f"names one of its {side}() twice")
        for spec in specs:
            try:
                dtype_named(spec.dtype)
            except (TypeError, ValueError, AttributeError, KeyError):
                self._require(False, f"has {side}() of an unknown dtype {spec.dtype!r}")
            sizes = all(isinstance(n, int | np.integer) and n > 0 for n in spec.shape)
            self._require(sizes, f"has {side}() {spec.name!r} of shape {list(spec.shape)} for {workload.id}")

    def _arrays(self, made: Any, specs: Mapping[str, TensorSpec], what: str, workload: Workload) -> None:
        keys = set(made) if isinstance(made, Mapping) else None
        names = ", ".join(specs)
        self._require(keys == set(specs), f"has {what} that gives other names than its inputs ({names})")
        for name, spec in specs.items():
            array = made[name]
            right = (
                isinstance(array, np.ndarray)
                and tuple(array.shape) == tuple(spec.shape)
                and array.dtype == dtype_named(spec.dtype)
            )
            self._require(right, f"has {what} whose {name!r} is not {spec.dtype}{list(spec.shape)} on {workload.id}")

    def _require(self, right: bool, fault: str) -> None:
        if not right:
            raise UserError(f"operator: {self._name} {fault}.")

    def _call(self, what: str, function: Callable[[], T]) -> T:
        """The result of ``function``. Raises UserError when it raises or exceeds the time limit."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
                done.set_exception(error)

        # a daemon thread: code that hangs must not keep the process alive
        threading.Thread(target=run, daemon=True, name="operator's dry run").start()
        deadline = Deadline(os.getpid(), self._seconds)
        try:
            while not done.done() and (left := deadline.seconds_left()) > 0:
                wait((done,), left)
            return done.result(0)
        except (Exception, SystemExit) as error:
            if not done.done():
                late = f"operator: {self._name} has {what} that did not return within {self._seconds:g} s."
                raise UserError(late) from error
            reason = error_line(error)
            raise UserError(f"operator: {self._name} has {what} that raises {reason}.") from error


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)
