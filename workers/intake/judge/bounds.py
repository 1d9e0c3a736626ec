"""Bounds on a result: from the data types, widened by the original kernel's measured error."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.fitness import elements, gates
from tilewright.workers.intake.operator import LEAST_CODES, Operand, Result, TakenOperator, as_result, is_code

EXPECTED_DB: Mapping[str, float] = {"float64": 100.0, "float32": 90.0, "float16": 60.0, "bfloat16": 45.0}
"""SNR in dB after one rounding, with room; by the narrowest dtype of operands and results."""

PRODUCTS_DB: Mapping[str, float] = {"float32": 54.0, "float8": 60.0, "float16": 84.0, "int8": 90.0}
"""What products of matrices leave of a float32 result on a GPU: it keeps 10 bits of each float32 factor, and 14 bits
of sums of float8 products; products of 16 bits are exact and their sums, as integers, nearly so."""

ROOM_DB = 14.0
"""dB that roundings between the steps of a recipe may cost beside."""

_KIND: Mapping[str, str] = {
    "int8": "int8",
    "uint8": "int8",
    "float16": "float16",
    "bfloat16": "float16",
    "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
}

ENOUGH = 4
"""Readings whose largest error says what others will show, within a factor of two; of fewer, of four."""

OWN_ROOM_DB = 10.0
"""dB by which a seed must pass a wider result's bar for this to hold: a target's functions may cost as much."""

CERTAIN, ONE_APART = 6.0, 0.15
"""How many times what chance makes of it a factor must be; how far from 1 what a size times its logarithm may be."""

CAP: Mapping[str, float] = {"float64": 2.0**-20, "float32": 2.0**-9, "float16": 2.0**-7, "bfloat16": 2.0**-4}
"""Largest error of one element, as a share of the size usual around it; by dtype."""


@dataclass
class Reading:
    """One output on one set of inputs: SNR in dB, and the share that its worst element needs beside rounding."""

    db: float
    needed: float
    place: tuple[int, ...]
    found: float
    wanted: float
    noisy: bool = False
    """Whether rounding alone does not explain the noise of the whole."""


def read(output: np.ndarray, reference: np.ndarray) -> Reading:
    """The reading of a float output; NaN and infinities must be the same in both."""
    if (pair := elements.finite(output, reference)) is None:
        at = np.unravel_index(int(np.argmax(~np.isfinite(reference))), output.shape or (1,))
        seen, due = (float(array.reshape(output.shape or (1,))[at]) for array in (output, reference))
        return Reading(-math.inf, math.inf, tuple(int(n) for n in at), seen, due)
    output, reference = pair
    db = gates.snr_db(output, reference)
    if not output.size:
        return Reading(db, 0.0, (), 0.0, 0.0)
    columns = output.shape[-1] if output.ndim else 1
    found = output.astype(np.float64).reshape(-1, columns)
    wanted = reference.astype(np.float64).reshape(-1, columns)
    if np.array_equal(found, wanted):  # as of a kernel that is its own judge
        return Reading(db, 0.0, tuple([0] * output.ndim), float(found.flat[0]), float(wanted.flat[0]))
    rounded, unit = elements._rounded(wanted, output.dtype)
    around = elements._around(wanted)
    with np.errstate(all="ignore"):
        excess = np.abs(found - wanted) - unit - np.abs(rounded - wanted)
        share = np.where(excess > 0, excess / np.maximum(around, 1e-300), 0.0)
        share = np.where(np.isfinite(found), share, np.inf)
        lost = elements.ROUNDED / 8 * around
        noise = elements.excess_noise(found, wanted, rounded, unit, lost, output, elements.NOISE_DB / 2)
    flat = int(np.argmax(share))
    place = tuple(int(n) for n in np.unravel_index(flat, output.shape or (1,)))
    needed, seen, due = (float(array.reshape(-1)[flat]) for array in (share, found, wanted))
    return Reading(db, needed, place, seen, due, noise > 0.0)


@dataclass(frozen=True)
class Bar:
    """Bounds of a float output: least SNR in dB, and ``worst`` of a gate (None: rounding alone)."""

    min_db: float
    worst: float | None
    own_db: float = np.inf
    """SNR in dB of the seed itself, where it is below what its dtypes explain."""


def factors(operands: Sequence[Operand], dims: Mapping[str, int]) -> str:
    """The kind of a product's factors, a key of ``PRODUCTS_DB``: the widest of the two largest matrices."""
    matrices = [o for o in operands if len(o.shape) > 1 and o.dtype != "bool"]
    largest = sorted(matrices, key=lambda o: -math.prod(o.sizes(dims)))[:2]
    found = {_KIND.get(o.dtype, "float32") for o in largest}
    return next((k for k in ("float32", "float16", "float8", "int8") if k in found), "float32")


def narrowest(dtypes: Sequence[str]) -> str:
    """The float of the fewest digits among these; float32 where there is none."""
    return next((d for d in ("bfloat16", "float16", "float32", "float64") if d in dtypes), "float32")


def bar(readings: Sequence[Reading], operands: Sequence[str], result: str, products: str) -> tuple[Bar | None, str]:
    """The bounds that dtypes explain, widened by the seed's own error; None and why where the seed is outside.

    ``products``: the kind of factors of the kernel's products of matrices (a key of ``PRODUCTS_DB``), "" for none. A
    seed that keeps the precision of a result wider than its operands sets the bar at that.
    """
    kind = narrowest((*operands, result))
    loose = kind == "float32" and products in ("float32", "float8")
    expected = PRODUCTS_DB[products] if kind == "float32" and products else EXPECTED_DB[kind]
    least = min((r.db for r in readings), default=np.inf)
    worst = max(readings, key=lambda r: r.needed)
    cap = 2.0**-6 if loose else CAP[kind]
    if not least >= expected - ROOM_DB or not worst.needed <= cap:
        if not least >= expected - ROOM_DB:
            shown = min(readings, key=lambda r: r.db)
            return (None, f"{shown.db:.1f} dB where {kind} explains {expected - ROOM_DB:.0f} dB; {element_text(shown)}")
        needed = f"{worst.needed:.2g} of the values around it, where {kind} explains {cap:.2g}"
        return None, f"an element is off by {needed}; {element_text(worst)}"
    own = PRODUCTS_DB[products] if products and result == "float32" else EXPECTED_DB.get(result, 0.0)
    if least >= own + OWN_ROOM_DB:
        expected = max(expected, own)
    min_db = expected if least >= expected + 3 else least - 3
    share, room = None, 2 if len(readings) >= ENOUGH else 4
    if loose:
        share = max(2.0**-8, room * worst.needed)
    elif worst.needed > elements.ROUNDED / 2 or min_db < elements.ROUNDING_DB or any(r.noisy for r in readings):
        share = max(room * worst.needed, elements.ROUNDED * 2)
    return Bar(round(float(min_db), 1), share, least if least < expected else np.inf), ""


def divisor_apart(shapes: Sequence[tuple[Mapping[str, int], np.ndarray, np.ndarray]]) -> str:
    """How a kernel and its reference divide by numbers one apart: their answers to normal inputs then differ by a
    factor that nears 1 as a size grows; empty where they do not. ``shapes``: sizes, float output, answer of each.

    Rounding makes no such factor, and bounds that are widened by the seed's own error would hide it.
    """
    found: dict[str, dict[int, float]] = {}
    for dims, output, answer in shapes:
        if not (pair := elements.finite(output, answer)) or not np.any(pair[1]):
            continue
        seen, due = (a.astype(np.float64).ravel() for a in pair)
        factor = float(seen @ due) / (square := float(due @ due))
        unsure = float(np.linalg.norm(seen - factor * due)) / math.sqrt(square * due.size)
        if factor > 0 and abs(1 - factor) > CERTAIN * unsure:
            for name, size in dims.items():
                found.setdefault(name, {})[size] = factor
    for name, by_size in found.items():
        apart = [abs(size * math.log(factor)) for size, factor in by_size.items()]
        if len(apart) > 1 and any(all(abs(n / by - 1) < ONE_APART for n in apart) for by in (1.0, 0.5)):
            listed = " and ".join(f"{f:.6g} times where {name} = {n}" for n, f in by_size.items())
            return f"it is {listed}, as if kernel and reference divided by numbers one apart, {name} and {name} + 1"
    return ""


def bar_of_text(
    readings: Sequence[Reading], operands: Sequence[str], result: str, products: str, source: str
) -> tuple[Bar | None, str, str]:
    """``bar``; where the seed is outside it, that of a narrower float which the seed's own text converts to. Also the
    name of that float, empty where it was not needed."""
    found, why = bar(readings, operands, result, products)
    named = [d for d in ("float16", "bfloat16") if re.search(rf"\b{d}\b", source)]
    for narrow in named if found is None else ():
        again, _ = bar(readings, [*operands, narrow], result, products)
        if again is not None:
            return again, "", narrow
    return found, why, ""


def element_text(reading: Reading) -> str:
    """The worst element of a reading, with as many digits as tell it from the reference's."""
    place = list(reading.place)
    if not np.isfinite(reading.wanted):
        return f"the reference itself says {reading.wanted:g} for element {place}"
    digits = next((n for n in (6, 9, 17) if f"{reading.found:.{n}g}" != f"{reading.wanted:.{n}g}"), 0)
    if not digits:
        return "no element alone is to blame"
    return f"element {place} is {reading.found:.{digits}g} where the reference says {reading.wanted:.{digits}g}"


def wrong(outputs: Sequence[np.ndarray], answers: Sequence[np.ndarray], operands: Sequence[Operand] = ()) -> str:
    """A gross error of the outputs in a sentence, "" for none; precision is not judged."""
    for number, (output, answer) in enumerate(zip(outputs, answers, strict=False)):
        if output.shape != answer.shape:
            return f"result {number} has shape {list(output.shape)}, the reference's {list(answer.shape)}"
        if output.dtype.kind in "iub":
            share = float(np.mean(output == answer)) if output.size else 1.0
            if share < (LEAST_CODES if is_code(output.dtype.name, operands) else 1.0):
                return f"result {number}: {share:.1%} of its integers are the reference's"
            continue
        reading = read(output, np.asarray(answer, dtype=np.float64))
        most = np.abs(answer, where=np.isfinite(answer), out=np.zeros(answer.shape)).max(initial=0.0)
        if not np.isfinite(output.astype(np.float64)).all() and most > _largest(output.dtype):
            return (
                f"result {number} overflows: {output.dtype.name} holds up to {_largest(output.dtype):g}, and the "
                f"reference says {most:.6g}"
            )
        if not reading.db > 20:
            return f"result {number} is {reading.db:.1f} dB from the reference; {element_text(reading)}"
    return ""


def _largest(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).max)


class ResultGates:
    """The gates of an operator's results, for outputs and answers in their order."""

    def __init__(self, operands: Sequence[Operand], results: Sequence[Result]) -> None:
        self._results = results
        self._gates = TakenOperator("taken/one", "", "", tuple(operands), tuple(results), {}, {}).gates

    def passed(self, outputs: Sequence[np.ndarray], answers: Sequence[np.ndarray]) -> bool:
        named = {r.name: output for r, output in zip(self._results, outputs, strict=False)}
        wanted = {r.name: {r.name: as_result(answers[r.place], r.dtype)} for r in self._results}
        return gates.failure(gates.read_gates(self._gates, named, wanted, "randn"), self._gates) is None
