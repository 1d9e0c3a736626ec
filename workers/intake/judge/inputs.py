"""Inputs for the gates of an operator that was taken in: distributions that show a mistake."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.workers.intake.calls.call_text import DISTINCT, ENDS, GIVEN, PARTS, SOFTMAX
from tilewright.workers.intake.calls.dtypes import is_float, is_narrow, numpy_dtype
from tilewright.workers.intake.calls.kept_values import kept_value
from tilewright.workers.intake.calls.sizes import label_of, size_of

if TYPE_CHECKING:
    from tilewright.workers.intake.operator import Operand

OUTLIER = 4
"""An outlier is 2^4 times a usual value of a large row: its exponential overflows, and in float16 its square."""

FAR = 6
"""The same of the larger ones of ``far``: beyond what is clipped at a thousand, and no larger: an exponential that is
taken as a power of two rounds its argument, at 3072 by more than float32 sums explain."""

TINY = 2.5
"""Exponent, over the spread, of a tiny row: around 2^(-2.5 spread) a number added under a root counts."""

APART = 4
"""Outliers of several operands lie at places of different remainders by this, so that no two of them are multiplied."""

USUAL_SPREAD = 4

WAYS = 9
"""Ways of padding that a padded operand's rows have in turn; the last leaves a row as it was drawn."""

FORMS, CIRCLE = 7, 6
"""Forms of a padded operand, and that of which two operands that are alike are cosines and sines together."""

MANY, MOST = 32, 16
"""Rows for which there are more outliers, another tiny row and row of zeros, and the most there are of each."""

TRIED = 8
"""Number of places tried for an outlier, first with the operand's own remainder, then with any."""

FAINT = (1.0, 8.0, 2.0**-10, 2.0**-20)
"""Factors on tiny rows, in turn: a constant that stands for a scale of nothing (1e-5, 1e-8) shows."""

ONE_SIDE = 8.0
"""Rows of one sign are so many standard deviations from zero: beyond every value. Some are 16 times as far."""

EDGE_EVERY, LEAST_EDGED = 16, 4
"""One element of so many, at least one, is its operand's edge; rows of floats that are shorter have none."""

MOST_ANSWER = 1e30
"""Largest answer to inputs of very different size: beyond, float32 may overflow in the next draw."""

SET_APART = ("far", "spread", "apart")
"""Kinds with outliers, the most telling first: a kernel is given the first of them that it bears."""

EXTREME: Mapping[str, Sequence[int]] = {
    "faint": (118, 60, 20),
    "huge": (125, 115, 100, 54, 40, 20),
    "lone": (100, 54, 40),
}
"""Kinds, with a power of two after a dash, whose values are all so much smaller or larger; each is given the first of
these that it bears: of 54, sums of thousands of squares are numbers. One of eight ``faint`` ones is smaller again,
below what is normal in float32; a quarter of the ``huge`` rows is below zero; ``lone``: one operand is huge."""

NARROW_EXTREME = {"faint": 11, "huge": 11, "lone": 11}
"""The same powers for float16."""

DENORMAL = 2.0**-16

SPECIAL: Mapping[str, Sequence[float]] = {"infinite": (np.inf, -np.inf), "nan": (np.nan,)}
"""Kinds with infinities or NaN in a few rows each, and negative zeros in others."""

SURE = 64.0
"""What is no number, in one operand, meets others that are so much larger: a softmax gives most of them no weight."""

SIGNED, USUAL, ALIKE, PADDED, TIES = "signed", "usual", "alike", "padded", "ties"

LARGEST_CODES = (127.0, 448.0)
"""Largest codes of int8 and e4m3: rows whose largest value is one of them times 2^n have exact scales."""

ROWS: Mapping[str, Sequence[str]] = {
    **{kind: (kind,) for kind in SPECIAL},
    "infinite": ("infinite-rows", "infinite"),
    SIGNED: ("signed-rows", SIGNED),
    PADDED: ("padded-left", PADDED),
}
"""Kinds that are tried with rows of one value each first, of minus infinity and of any value, or padded on the left."""

FEW_VALUES: Mapping[str, Sequence[float]] = {
    "usual": (ONE_SIDE, -ONE_SIDE, -ONE_SIDE, -16 * ONE_SIDE),
    "shifted": (ONE_SIDE, -ONE_SIDE, -ONE_SIDE, -16 * ONE_SIDE),
    "sided": (ONE_SIDE, -ONE_SIDE),
    "repeated": (),
}
"""Kinds with few distinct values, likewise, and by what their rows are shifted."""


def bound_of(operand: Operand, dims: Mapping[str, int]) -> int:
    """Exclusive bound of an operand's integers; where the call names none, that of all codes of 8 bits, of others 2."""
    below = size_of(operand.below, dims) or {"int8": 128, "uint8": 256}.get(operand.dtype, 2)
    return max(below, least_of(operand) + 1)


def least_of(operand: Operand) -> int:
    """The least of an operand's integers: indices begin at 0, codes of int8 without a bound are of both signs."""
    if operand.least is not None:
        return int(operand.least)
    return -127 if operand.dtype == "int8" and not operand.below else 0


def draws(
    operands: Sequence[Operand],
    dims: Mapping[str, int],
    kind: str,
    spread: int,
    rng: np.random.Generator,
    turn: int = 0,
) -> dict[str, np.ndarray]:
    """A call's operands by name: normal values; ``spread``: rows of sizes apart by 2^±spread, outliers above and
    below zero that meet ordinary values of the other operands, tiny rows and rows of zeros; ``far``: the same with
    larger outliers, too; ``apart``: as ``spread`` without zeros, for kernels that divide by a row's largest value;
    ``repeated``: few distinct values, and each operand's ``edge``; ``sided``: the same with rows of one sign;
    ``shifted``: with some farther from zero; ``usual``: the same with what calls hold and no draw does, see
    ``_usual``; ``alike``: equal or opposite operands, or twice another; ``padded``: see ``_padded``; ``ties``: see
    ``_ties``; ``faint``, ``huge``, ``lone``, ``infinite``, ``nan``: see above; ``signed``: each of one sign, far from
    zero; ``-rows``: rows of one value, too; ``given``: the caller's own, as integers always are. Others are
    as the call bounds them (``bound_of``); offsets of the same total, as of queries and keys, are the same. Raises
    LookupError for an operand that has the caller's own values alone, elsewhere. ``turn``: where a kind has several
    forms, or is about one operand, draws of turns in a row have all of them: a few draws by chance miss one."""
    made: dict[str, np.ndarray] = {}
    floats: dict[str, np.ndarray] = {}
    alone = [o.name for o in operands if is_float(o.dtype) and family(kind) in ("lone", "nan")]
    lone = alone[turn % len(alone)] if alone else ""
    usual_at = int(rng.integers(1 << 30)) if kind == USUAL else 0
    for form, operand in enumerate(operands, turn):
        plain = operand.dtype != "bool" and not is_float(operand.dtype)  # it may say how long a loop is
        if operand.values and (plain or GIVEN in (kind, operand.form)):
            own = kept_value(operand.values, label_of(dims), operand.name, operand.dtype, operand.sizes(dims))
            if own is not None:
                made[operand.name] = own
                continue
            if operand.form == GIVEN:
                raise LookupError(f"{operand.name} has the caller's own values, and there are none of this shape")
        if operand.dtype == "bool" or not is_float(operand.dtype):
            alike = next((o for o in operands if o.name in made and _same_parts(o, operand)), None)
            drawn = made[alike.name].copy() if alike else _integers(operand, dims, kind in FEW_VALUES, rng)
            made[operand.name] = drawn
            if family(kind) == PADDED and operand.edge and operand.below:
                at = int(rng.integers(drawn.size + 1))
                drawn.reshape(-1)[at : at + 2 + drawn.size // 4] = int(operand.edge)
            continue
        values = np.asarray(rng.standard_normal(operand.sizes(dims)))
        made[operand.name] = floats[operand.name] = values
        sized = [earlier for earlier in floats.values() if earlier.shape == values.shape]
        if kind in FEW_VALUES:
            np.round(values * 2, out=values)
            values /= 2
            _one_sided(operand, values, FEW_VALUES[kind], rng)
            if kind == USUAL:
                _usual(operand, values, usual_at, form, rng)
        if kind == ALIKE:  # also queries and keys, where there are as many
            values[...] = sized[0] * ((1.0, -1.0, 2.0)[turn % 3] if sized[1:] else 1.0)
        if family(kind) in EXTREME and lone in ("", operand.name):
            values *= _factor(operand, kind, spread, values.shape, rng)
            if family(kind) == "huge" and values.ndim > 1:
                low = rng.random((*values.shape[:-1], 1)) < 1 / 4
                values[...] = np.where(low, -np.abs(values), values)
        elif family(kind) == SIGNED:
            values[...] = (np.abs(values) + ONE_SIDE) * rng.choice((-1.0, 1.0))
            if kind != SIGNED and values.ndim > 1:
                rows = values.reshape(-1, values.shape[-1])
                rows[::3] = rows[::3, :1]
                values[...] = np.where(form % 4 == 0, rows[0, 0], values)
        elif family(kind) == PADDED:
            pair = [*floats.values()][-2:]  # the one before, at a form of single rows then
            if form % FORMS == CIRCLE and [one.shape for one in pair] == [values.shape] * 2:  # as of angles
                pair[0][...], values[...] = np.cos(values), np.sin(values)
            else:
                bias = values.ndim < 2 and any(len(o.shape) > 1 for o in operands)
                _padded(operand, values, kind != PADDED, rng, bias, form % FORMS)
        elif kind == TIES and values.ndim and values.size:
            _ties(values, rng)
        elif family(kind) in SPECIAL and operand.least is None and operand.form != SOFTMAX:
            if family(kind) == "nan":
                values *= rng.choice((1.0, 1.0, SURE))
            special = SPECIAL[family(kind)] if lone in ("", operand.name) else ()
            _with_special(values, special, rng, whole=kind not in SPECIAL)
    if kind == USUAL:
        _pointed(operands, made, rng)
    if kind in SET_APART:
        _set_apart([o for o in operands if o.name in floats], floats, kind, spread, rng)
    return {
        # of a tensor without dimensions, a product is a scalar and no array
        o.name: made[o.name]
        if o.name not in floats
        else np.asarray(within(o, made[o.name])).astype(numpy_dtype(o.dtype))
        for o in operands
    }


def family(kind: str) -> str:
    """The name of a kind before its dash."""
    return kind.partition("-")[0]


def _factor(operand: Operand, kind: str, spread: int, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """What values of an extreme kind are multiplied by; further away where ``spread`` is larger than usual."""
    name, _, power = kind.partition("-")
    most = NARROW_EXTREME[name] if operand.dtype == "float16" else int(power)
    far = rng.integers(max(1, most - 8), most + 1) + 8 * max(0, spread - USUAL_SPREAD)
    if is_narrow(operand.dtype):
        return np.ones(shape)
    if name != "faint":
        return np.full(shape, 2.0**far)
    return np.where(rng.random(shape) < 1 / 8, DENORMAL, 1.0) * 2.0**-far


def _with_special(values: np.ndarray, special: Sequence[float], rng: np.random.Generator, *, whole: bool) -> None:
    """In place: each of ``special`` in a few rows, of which others are left as they are, and negative zeros; with
    ``whole`` one of several rows is the last of ``special`` alone."""
    if values.ndim < 2 or values.size == 0:
        return
    rows = values.reshape(-1, values.shape[-1])
    rows[rng.random(rows.shape) < 1 / 16] = -0.0
    order = rng.permutation(len(rows))
    for turn, row in enumerate(order[: len(rows) // 2][: MOST * len(special)]):
        rows[row, rng.integers(rows.shape[1])] = special[turn % len(special)]
    if whole and len(rows) > 1:
        rows[order[-1]] = special[-1]


def within(operand: Operand, values: np.ndarray) -> np.ndarray:
    """Floats of the operand's size, and between its ends."""
    values = values * operand.size
    if operand.form == SOFTMAX:
        shares = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True))
    if operand.least is None:
        return values
    if operand.most is None:
        return operand.least + np.abs(values)
    half = (operand.most - operand.least) / 2
    # The logistic function by its tanh: between -1 and 1 a faint value stays faint instead of becoming 0.
    return np.clip(operand.least + half + half * np.tanh(values / 2), operand.least, operand.most)


def draw(operand: Operand, dims: Mapping[str, int], kind: str, spread: int, rng: np.random.Generator) -> np.ndarray:
    """The only operand of a call, as ``draws`` says."""
    return draws([operand], dims, kind, spread, rng)[operand.name]


def _integers(operand: Operand, dims: Mapping[str, int], edges: bool, rng: np.random.Generator) -> np.ndarray:
    """Both ends of their range are among them; with ``edges`` the operand's, too."""
    dtype, shape = numpy_dtype(operand.dtype), operand.sizes(dims)
    edges = edges and bool(operand.edge)
    if operand.dtype == "bool":
        drawn = rng.integers(0, 2, shape).astype(np.bool_)
        if edges and drawn.ndim > 1:
            rows = drawn.reshape(-1, drawn.shape[-1])
            chosen = rng.permutation(len(rows))[: max(2, len(rows) // EDGE_EVERY)]
            rows[chosen] = (np.arange(len(chosen)) % 2 == 1)[:, None]
        return drawn
    if operand.total:
        total = dims[operand.total] if isinstance(operand.total, str) else operand.total
        if operand.form in PARTS:
            without = int(operand.form == ENDS)
            return _offsets(shape[0] + without, total, operand.longest, rng)[without:].astype(dtype)
        parts = math.prod(shape)
        shares = rng.permutation(_uneven(parts)) if edges else np.full(parts, 1 / parts)
        return rng.multinomial(total, shares).reshape(shape).astype(dtype)
    low, high, count = least_of(operand), bound_of(operand, dims), math.prod(shape)
    if operand.form == DISTINCT and high - low >= count:
        return (low + rng.permutation(high - low)[:count]).reshape(shape).astype(dtype)
    drawn = rng.integers(low, high, shape).astype(dtype)
    flat = drawn.reshape(-1)
    order = rng.permutation(flat.size)
    if flat.size > 3:
        flat[order[:2]] = (low, high - 1)
    elif flat.size and high > 1:
        flat[order[0]] = flat[order[0]] or high - 1  # an operand that is all zero says nothing
    if edges and flat.size > 1:
        flat[order[-max(1, flat.size // EDGE_EVERY) :]] = int(operand.edge)
    return drawn


def _same_parts(one: Operand, other: Operand) -> bool:
    """Whether two operands are offsets that cut the same total alike."""
    cuts = [(o.form, o.total, o.longest, o.shape, o.dtype) for o in (one, other)]
    return one.form in PARTS and cuts[0] == cuts[1]


def _offsets(count: int, total: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Where parts of different lengths begin, and where the last one ends; none is empty where there is enough."""
    parts = count - 1
    shares = rng.uniform(0.5, 1.5, parts)
    least = int(total >= parts)
    ends = np.round(np.cumsum(shares) / shares.sum() * (total - least * parts))
    lengths = np.diff(ends, prepend=0).astype(np.int64) + least
    most = max(longest, -(-total // max(parts, 1))) if longest else total
    for place in range(parts):  # what is too long goes to the next that has room
        over = max(0, lengths[place] - most)
        lengths[place] -= over
        for other in range(parts):
            moved = min(over, max(0, most - lengths[other]))
            lengths[other] += moved
            over -= moved
    return np.concatenate([[0], np.cumsum(lengths)])


def _uneven(parts: int) -> np.ndarray:
    """Shares of a total: one has half of it, a quarter of the others nothing."""
    shares = np.full(parts, 1.0)
    shares[: parts // 4] = 0.0
    shares[-1] = max(1.0, shares[:-1].sum())
    made: np.ndarray = shares / shares.sum()
    return made


def _one_sided(operand: Operand, values: np.ndarray, shifts: Sequence[float], rng: np.random.Generator) -> None:
    """Most rows all above or all below zero, and the operand's edge at some places."""
    if shifts and values.ndim and values.shape[-1] > 1:
        rows = values.reshape(-1, values.shape[-1])
        rows += rng.choice((0.0, *shifts), (len(rows), 1))
    if operand.edge and values.ndim and values.shape[-1] >= LEAST_EDGED:
        rows = values.reshape(-1, values.shape[-1])
        count = max(1, rows.shape[1] // EDGE_EVERY)
        for row in rng.permutation(len(rows))[: max(1, len(rows) // 4)]:  # of no axis all are
            rows[row, rng.permutation(rows.shape[1])[:count]] = float(operand.edge)


def likest(operand: Operand, operands: Sequence[Operand]) -> str:
    """The first operand that is like this one but for its name and edge."""
    return next(o.name for o in operands if replace(o, name=operand.name, edge=operand.edge) == operand)


def _usual(operand: Operand, values: np.ndarray, at: int, form: int, rng: np.random.Generator) -> None:
    """Rows in order, rows at or below zero with zeros of both signs, rows with one value far above the others, and rows
    of ones or of zeros, the same ones of every operand, as a first position is encoded; weights of ones as they are
    before any training."""
    if values.ndim < 2:
        values[...] = values if form % 4 else 1.0
        return
    rows = values.reshape(-1, values.shape[-1])
    few, same = _few(len(rows)), np.random.default_rng(at)
    order = same.permutation(len(rows))
    plain, sorted_, low, sure = (order[n * few : n * few + few] for n in same.permutation(4))
    rows[plain] = rng.choice((0.0, 1.0))
    in_order = np.sort(np.rint(rows[sorted_]) if form % 2 else rows[sorted_], axis=1)
    rows[sorted_] = in_order[:, :: rng.choice((-1, 1))]
    below = -np.abs(np.round(2 * rng.standard_normal(rows[low].shape)) / 2)
    rows[low] = np.where((below == 0) & (rng.random(below.shape) < 1 / 2), 0.0, below)
    rows[sure, rng.integers(rows.shape[1], size=len(sure))] = (
        rows[sure].max(axis=1) + rng.integers(4, 33, len(sure)) / 2
    )


def _padded(operand: Operand, values: np.ndarray, left: bool, rng: np.random.Generator, bias: bool, form: int) -> None:
    """Rows whose second half, or with ``left`` first half, is padding (the operand's edge, or zeros), rows of a mask,
    with zeros at every second place, with a value just below the largest, of one value and zeros or padding, of ones of
    signs in turn, nearly of one value, and rows like the one before. Every second ``form`` is of an operand as a whole:
    ones (gradients of a sum), ones on a diagonal, or multiples of one row that fall or rise. One of a single dimension
    is as drawn, of ones, below zero, or, as a ``bias`` is, of zeros."""
    if values.ndim < 2:
        values[...] = (values, values * (not bias), 0 * values + 1, -np.abs(values))[form % 4]
        return
    rows = values.reshape(-1, values.shape[-1])
    if form in (0, 2, 4):
        factors, line, place = np.sort(rng.standard_normal(len(rows))), rows[0].copy(), np.arange(len(rows))
        rows[...] = form == 0
        if form == 2:
            rows[place, place % rows.shape[1]] = 1.0
        elif form == 4:
            rows[...] = np.outer(factors[:: rng.choice((-1, 1))], line)
        return
    half, order, first = rows.shape[1] // 2, rng.permutation(len(rows)), int(rng.integers(WAYS))
    padding = float(operand.edge) if operand.edge else 0.0
    for row, way in zip(order, itertools.cycle(np.roll(np.arange(WAYS), first)), strict=False):
        top = int(np.argmax(rows[row]))
        if way == 0 or (way == 1 and left):
            rows[row, slice(0, half) if way else slice(half or 1, None)] = padding
        elif way == 2:
            rows[row] = rng.random(rows.shape[1]) < 1 / 2
        elif way == 3:
            rows[row, int(rng.integers(2)) :: 2] = 0.0
        elif way == 4 and rows.shape[1] > 1:
            beside = rows[row, top] * (1 - 2.0**-23)  # the next number of float32, or the next but one
            rows[row, (top + rng.integers(1, rows.shape[1])) % rows.shape[1]] = beside
        elif way == 5:
            rows[row, np.arange(rows.shape[1]) != top] = padding if form % 4 == 1 else 0.0
        elif way == 6:
            rows[row] = (-1.0) ** np.arange(rows.shape[1])
        elif way == 7:
            rows[row] = rows[row, 0] + rows[row] * 2.0**-10
    for row in order[: len(rows) // 6 + 1]:
        rows[row] = rows[max(row - 1, 0)]


def _ties(values: np.ndarray, rng: np.random.Generator) -> None:
    """Rows half way between codes or at them, under scales that are powers of two."""
    rows = values.reshape(-1, values.shape[-1])
    for row in rows:
        largest = rng.choice(LARGEST_CODES)
        row[...] = np.clip(np.rint(row * largest * 0.6) / (2 if largest < 128 else 1), -largest, largest)
        row[rng.integers(row.size)] = largest * rng.choice((-1.0, 1.0))
    values *= 2.0 ** rng.integers(-3, 4)


def _pointed(operands: Sequence[Operand], made: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Indices as calls have them: a third at the largest of a row that they go with, then some up or down in
    order, and alike."""
    for index in (o for o in operands if isinstance(o.below, str) and not (o.total or o.form)):
        flat = made[index.name].reshape(-1)
        if flat.size < 3:
            continue
        rows = [o for o in operands if o.shape == (*index.shape, index.below) and is_float(o.dtype)]
        for operand in rows[:1]:
            flat[::3] = np.argmax(made[operand.name], axis=-1).reshape(-1)[::3]
        few = max(3, flat.size // 4)
        at, alike = rng.integers(flat.size - few + 1, size=2)
        least, span = least_of(index), max(1, int(flat.max(initial=1)) - least_of(index))
        flat[at : at + few] = least + (flat[at] - least + np.arange(few) * rng.choice((-1, 1))) % span
        if flat.size > few or rng.random() < 1 / 2:
            flat[alike : alike + few] = flat[alike]


@dataclass
class _Placed:
    """An operand's values on their way. ``kept``: elements that stay: tiny rows, rows of zeros, what is ``outlying``.
    ``met``: those that an outlier of another operand meets."""

    axes: tuple[int | str, ...]
    values: np.ndarray
    kept: np.ndarray
    outlying: np.ndarray
    met: np.ndarray

    def meeting(self, axes: Sequence[int | str], place: Sequence[int]) -> tuple[Any, ...] | None:
        """Where it has the indices of an element of an operand of these axes; None where they share no axis."""
        known: dict[str, Any] = {name: at for name, at in zip(axes, place, strict=True) if isinstance(name, str)}
        named = (name if isinstance(name, str) else "" for name in self.axes)
        index = tuple(known.get(name, slice(None)) for name in named)
        return index if any(not isinstance(part, slice) for part in index) else None


def _set_apart(
    operands: Sequence[Operand], floats: Mapping[str, np.ndarray], kind: str, spread: int, rng: np.random.Generator
) -> None:
    """Change normal values in place as ``draws`` says of ``spread``. Rows are those along the last axis."""
    placed = []
    tiny_at = int(rng.integers(1 << 30))  # the same rows of every operand: what is added up is tiny, too
    for operand in operands:
        values = floats[operand.name]
        kept = np.zeros(values.shape, dtype=bool)
        placed.append(_Placed(operand.shape, values, kept, kept.copy(), kept.copy()))
        if values.ndim > 1:
            _rows_apart(values, kept, spread, kind != "apart", tiny_at, rng)
    matrices = any(not _flat(one.values) for one in placed)
    for number, one in enumerate(placed):
        if not one.values.ndim:
            continue
        small = matrices and one.values.ndim == 1  # a row of weights or of scales changes all of an answer
        usual = 1 if small else min(spread, 4)
        sizes = [2.0 ** (usual + OUTLIER)] + ([2.0 ** (min(spread, 4) + FAR)] if kind == "far" else [])
        others = [other for other in placed if other is not one]
        for place, value, partner in _outliers(one, number, sizes, rng):
            _put(one, others, place, value, partner, rng)


def _flat(values: np.ndarray) -> bool:
    return values.ndim < 2 or math.prod(values.shape[:-1]) == 1


def _rows_apart(
    values: np.ndarray, kept: np.ndarray, spread: int, zeros: bool, tiny_at: int, rng: np.random.Generator
) -> None:
    """Rows of very different sizes, tiny ones and zeros among them where there are several.

    ``tiny_at``: a seed of which rows are tiny, and how much.
    """
    rows = values.reshape(-1, 1) if _flat(values) else values.reshape(-1, values.shape[-1])
    stay = kept.reshape(rows.shape)
    few, order, same = _few(len(rows)), rng.permutation(len(rows)), np.random.default_rng(tiny_at)
    rows *= np.exp2(rng.integers(-spread, spread + 1, (len(rows), 1)))
    if len(rows) > 3:
        tiny = same.permutation(len(rows))[:few]
        largest = np.abs(rows[tiny]).max(axis=1, keepdims=True)
        faint = np.resize(FAINT, (few, 1)) if few > 1 else same.choice(FAINT)
        rows[tiny] *= faint * np.exp2(-TINY * spread) / np.maximum(largest, 1e-30)
        stay[tiny] = True
    if zeros and len(rows) > 1:
        rows[order[-few:]] = 0
        stay[order[-few:]] = True


def _few(rows: int) -> int:
    return min(MOST, 1 + rows // MANY)


def _outliers(
    one: _Placed, number: int, sizes: Sequence[float], rng: np.random.Generator
) -> Iterator[tuple[list[tuple[int, ...]], float, float]]:
    """Places to try, an outlier's value, and the sign of what it meets. One after the other: all sizes, signs, and
    signs of what is met, those of one size and sign in a row."""
    columns = one.values.shape[-1]
    rows = one.values.size // columns
    (own_down, down), (own_along, along) = _places(rows, number, rng), _places(columns, number, rng)
    turn, some = 0, np.arange(TRIED)
    for _ in range(_few(rows if rows > 1 else columns // 8)):
        for size, sign, partner in itertools.product(sizes, (1.0, -1.0), (1.0, -1.0)):
            tried = [
                down_at[(turn // 2 + some) % len(down_at)] * columns + along_at[(turn + some) % len(along_at)]
                for down_at, along_at in ((own_down, own_along), (down, along))
            ]
            places = np.transpose(np.unravel_index(np.concatenate(tried), one.values.shape)).tolist()
            yield list(map(tuple, places)), sign * size * rng.uniform(1.0, 1.5), partner
            turn += 1


def _places(size: int, number: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Indices in random order: those of the operand's own remainder, and all."""
    order = rng.permutation(size)
    return order[order % APART == number % APART] if size > APART else order, order


def _put(
    one: _Placed,
    others: Sequence[_Placed],
    places: Sequence[tuple[int, ...]],
    value: float,
    partner: float,
    rng: np.random.Generator,
) -> None:
    """Set an outlier at the first place where it meets values that may be made ordinary ones; else where it may."""
    free = [place for place in places if not one.kept[place] and not one.met[place]]
    for place in free:
        meets = [(other, at) for other in others if (at := other.meeting(one.axes, place)) is not None]
        if any(other.kept[at].all() or other.outlying[at].any() for other, at in meets):
            continue
        for other, at in meets:
            before = other.values[at]
            signs = partner if before.ndim == 0 else rng.choice((-1.0, 1.0), before.shape)
            ordinary = signs * rng.uniform(1.0, 3.0, before.shape)
            other.values[at] = np.where(other.kept[at], before, ordinary)
            other.met[at] = True
        break
    else:
        if not free:
            return
        place = free[0]
    one.values[place] = value
    one.kept[place] = one.outlying[place] = True
