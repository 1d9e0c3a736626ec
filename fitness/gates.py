"""Gates: comparisons that decide whether an output is right. Each is written so that NaN fails."""

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.fitness import elements
from tilewright.fitness.evaluation import GateReading
from tilewright.seeds.operator import AgreementGate, Arrays, Gate, SnrGate, TensorSpec


def snr_db(output: np.ndarray, reference: np.ndarray) -> float:
    """``10 log10(sum ref^2 / sum (ref - out)^2)`` in dB, in float64; +inf for equal, NaN or -inf for non-finite.

    A reference that is zero everywhere is met only by an output that is zero everywhere (+inf, else -inf).
    """
    wanted = reference.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        error = output.astype(np.float64) - wanted
        noise = float(np.sum(error * error))  # not a BLAS product, whose last digit depends on its threads
        signal = float(np.sum(wanted * wanted))
        if noise == 0.0:
            return float("inf")
        return float(10.0 * np.log10(signal / noise))


def agreement(output: np.ndarray, reference: np.ndarray, counted: np.ndarray | None = None) -> float:
    """Share (0 to 1) of elements with equal bits. ``counted``: those compared (bool over leading axes); None: all."""
    if counted is not None:
        output, reference = output[counted], reference[counted]
    return 1 - int(elements.differing(output, reference).sum()) / max(reference.size, 1)


def ill_formed(outputs: Mapping[str, np.ndarray], specs: Sequence[TensorSpec]) -> str | None:
    """One line on the first output that is missing or has another shape or dtype; None when all are there."""
    for spec in specs:
        found = outputs.get(spec.name)
        if found is None:
            return f"output {spec.name} is missing"
        if tuple(found.shape) != tuple(spec.shape):
            return f"output {spec.name} has shape {list(found.shape)} instead of {list(spec.shape)}"
        if found.dtype.name != spec.dtype:
            return f"output {spec.name} is {found.dtype.name} instead of {spec.dtype}"
    return None


def read_gates(
    gates: Sequence[Gate],
    outputs: Mapping[str, np.ndarray],
    references: Mapping[str, Arrays],
    kind: str,
    *,
    least: float = 0.0,
) -> list[GateReading]:
    """Readings of every gate on one set of outputs, whose shapes and dtypes ``ill_formed`` has checked.

    ``references``: the answers of the operator by the name that a gate gives; ``kind``: that of the inputs.

    ``least``: what the target's own sums explain of an element's error (see ``fitness.elements``).
    """
    return [_read(gate, outputs, references, kind, least) for gate in gates]


def _read(
    gate: Gate, outputs: Mapping[str, np.ndarray], references: Mapping[str, Arrays], kind: str, least: float
) -> GateReading:
    reference = references[gate.reference]
    if isinstance(gate, SnrGate):
        usual: Arrays = references.get(gate.usual or "", {})
        slack: Arrays = references[gate.slack] if gate.slack else {}
        if gate.counted:
            counts = references[gate.counted]
            outputs = {name: outputs[name][rows] for name, rows in counts.items()}
            reference = {name: wanted[counts[name]] for name, wanted in reference.items()}
            usual = {name: size[counts[name]] for name, size in usual.items()}
            slack = {name: size[counts[name]] for name, size in slack.items()}
        pairs = {name: elements.finite(outputs[name], wanted) for name, wanted in reference.items()}
        if not all(pairs.values()):
            return GateReading(gate=gate.name, inputs=kind, value=None, passed=False)
        outputs = {**outputs, **{name: pair[0] for name, pair in pairs.items() if pair}}
        reference = {name: pair[1] for name, pair in pairs.items() if pair}
        values = [snr_db(outputs[name], wanted) for name, wanted in reference.items()]
        value = min(values) if values and not any(np.isnan(values)) else float("nan")
        bars = [_bar(gate, references, name, wanted) for name, wanted in reference.items()]
        bar = min(bars, default=gate.min_db)
        passed = bool(values) and all(db >= least for db, least in zip(values, bars, strict=True))
        shown = value if np.isfinite(value) else None
        allowed = elements.allowance(gate, least)
        judged = reference if passed else {}
        faults = [
            elements.objection(outputs[n], wanted, allowed, usual.get(n), slack.get(n)) for n, wanted in judged.items()
        ]
        fault = next(filter(None, faults), "")
        passed, reported_bar = passed and not fault, bar if gate.turned else None
        return GateReading(gate=gate.name, inputs=kind, value=shown, passed=passed, bar=reported_bar, detail=fault)
    if any(outputs[name].dtype != reference[name].dtype for name in gate.outputs):
        return GateReading(gate=gate.name, inputs=kind, value=None, passed=False)
    if isinstance(gate, AgreementGate):
        return _read_agreement(gate, outputs, references, kind, least)
    wrong = sum(int(elements.differing(outputs[name], reference[name]).sum()) for name in gate.outputs)
    return GateReading(gate=gate.name, inputs=kind, value=float(wrong), passed=wrong == 0)


def _bar(gate: SnrGate, references: Mapping[str, Arrays], name: str, wanted: np.ndarray) -> float:
    """Least SNR of an output in dB: ``gate.min_db``, less what codes explain that turn by a rounding."""
    signal = float(np.sum(wanted.astype(np.float64, copy=False) ** 2))
    if gate.turned is None or signal == 0.0:
        return gate.min_db
    share = float(np.sum(references[gate.turned][name])) / signal
    return float(-10.0 * np.log10(10.0 ** (-gate.min_db / 10.0) + share))


def _read_agreement(
    gate: AgreementGate, outputs: Mapping[str, np.ndarray], references: Mapping[str, Arrays], kind: str, least: float
) -> GateReading:
    """The gate's reading on the output with the least margin above its bar, or the farthest below it."""
    reference = references[gate.reference]
    for name, other in (pair for beside in gate.either for pair in references[beside].items()):
        same = ~elements.differing(outputs[name], other).reshape(other.shape)
        outputs = {**outputs, name: np.where(same, reference[name], outputs[name])}
    counted = references[gate.counted] if gate.counted else {}
    allowed = references[gate.allowance] if gate.allowance else {}
    shares = {n: agreement(outputs[n], reference[n], counted.get(n)) for n in gate.outputs}
    bars = {n: gate.least - float(allowed.get(n, 0.0)) for n in gate.outputs}
    worst = min(gate.outputs, key=lambda n: shares[n] - bars[n])
    value, bar = shares[worst], bars[worst]
    shown = bar if gate.allowance else None
    fault = _unlike_rounding(gate, outputs, reference, counted, least) if value >= bar else ""
    return GateReading(
        gate=gate.name, inputs=kind, value=value, passed=value >= bar and not fault, bar=shown, detail=fault
    )


def _unlike_rounding(
    gate: AgreementGate,
    outputs: Mapping[str, np.ndarray],
    reference: Arrays,
    counted: Mapping[str, np.ndarray],
    least: float,
) -> str:
    """The fault of single elements in a sentence, codes under exponents first; empty where rounding explains all."""
    exponents = dict(gate.scaled)
    worst = max(elements.ROUNDED, least, elements.INEXACT if gate.allowance else 0.0)

    def both(name: str) -> tuple[np.ndarray, np.ndarray]:
        mask = counted.get(name)
        pair = outputs[name], reference[name]
        return pair if mask is None else (pair[0][mask], pair[1][mask])

    for name in gate.outputs:
        if name in exponents.values() or outputs[name].dtype.kind in "ub":
            continue  # exponents count with their codes, and of packed codes nobody knows which is next
        scales = both(exponents[name]) if name in exponents else None
        fault = elements.turned_too_far(*both(name), worst, scales)
        if fault is None and not gate.leans and scales is None:
            fault = elements.turned_one_way(*both(name))
        if fault is not None:
            return fault
    return ""


def failure(readings: Sequence[GateReading], gates: Sequence[Gate]) -> str | None:
    """A line on the first gate that did not pass; None where all did."""
    by_name = {gate.name: gate for gate in gates}
    for reading in readings:
        if reading.passed:
            continue
        gate = by_name[reading.gate]
        if reading.detail:
            return f"gate {gate.name} on {reading.inputs}: {reading.detail}"
        if isinstance(gate, SnrGate):
            value = "not a number" if reading.value is None else f"{reading.value:.1f} dB"
            bar = gate.min_db if reading.bar is None else round(reading.bar, 1)
            return f"gate {gate.name} on {reading.inputs}: {value}, at least {bar:g} dB needed"
        if isinstance(gate, AgreementGate) and reading.value is not None:
            bar = gate.least if reading.bar is None else reading.bar
            share = f"{reading.value:.2%} of the elements agree, at least {bar:.2%} must"
            return f"gate {gate.name} on {reading.inputs}: {share}"
        value = "another dtype" if reading.value is None else f"{reading.value:.0f} elements differ"
        return f"gate {gate.name} on {reading.inputs}: {value}"
    return None
