"""Inputs for the gates of an operator that was taken in: distributions that show a mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tilewright.workers.intake.dtypes import is_float, numpy_dtype

if TYPE_CHECKING:
    from tilewright.workers.intake.operator import Operand

OUTLIER = 4
"""An outlier is 2^4 times a usual value of a large row: its exponential overflows, and in float16 its square."""

TINY = 2.5
"""A row of values around 2^(-2.5 spread), where what is added under a root counts."""

APART = 4
"""Outliers of several operands lie at places of different remainders by this, so that no two of them are multiplied."""


MANY = 32
"""Rows for which there is one more outlier of either sign, tiny row and row of zeros."""


def bound_of(operand: Operand, dims: Mapping[str, int]) -> int:
    """Exclusive bound of an operand's integers; where the call names none, that of all codes of 8 bits, of others 2."""
    below = dims[operand.below] if isinstance(operand.below, str) else operand.below
    return below or {"int8": 128, "uint8": 256}.get(operand.dtype, 2)


def least_of(operand: Operand) -> int:
    """The least of an operand's integers: indices begin at 0, codes of int8 without a bound are of both signs."""
    return -127 if operand.dtype == "int8" and not operand.below else 0


def draw(
    operand: Operand,
    dims: Mapping[str, int],
    kind: str,
    spread: int,
    rng: np.random.Generator,
    number: int = 0,
) -> np.ndarray:
    """An operand, the call's ``number``-th: normal values; ``spread``: rows of sizes apart by 2^±spread, outliers
    above and below zero, tiny rows and rows of zeros; ``apart``: the same without zeros, for kernels that divide
    by a row's largest value; ``repeated``: few distinct values. Integers are as the call bounds them (``bound_of``).
    """
    dtype, shape = numpy_dtype(operand.dtype), operand.sizes(dims)
    if operand.dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if not is_float(operand.dtype):
        if operand.total:
            total = dims[operand.total] if isinstance(operand.total, str) else operand.total
            parts = math.prod(shape)
            return rng.multinomial(total, [1 / parts] * parts).reshape(shape).astype(dtype)
        return rng.integers(least_of(operand), bound_of(operand, dims), shape).astype(dtype)
    values = rng.standard_normal(shape)
    if kind in ("spread", "apart") and values.ndim:
        _set_apart(values, spread, kind == "spread", rng, number)
    elif kind == "repeated":
        values = np.round(values * 2) / 2
    return (values * operand.size).astype(dtype)


def _set_apart(values: np.ndarray, spread: int, zeros: bool, rng: np.random.Generator, number: int) -> None:
    """Change normal values in place as ``draw`` says of ``spread``. Rows are those along the last axis."""
    flat = values.ndim == 1 or math.prod(values.shape[:-1]) == 1
    rows = values.reshape(-1, 1) if flat else values.reshape(-1, values.shape[-1])
    few = 1 + len(rows) // MANY

    def place(size: int) -> np.ndarray:
        """Indices in random order, those of the operand's own remainder first."""
        order = rng.permutation(size)
        own = order % APART == number % APART if size > APART else order >= 0
        return np.concatenate([order[own], order[~own]])

    order = place(len(rows))
    if values.ndim > 1:
        rows *= np.exp2(rng.integers(-spread, spread + 1, (len(rows), 1)))
        if len(rows) > 3:
            tiny = order[-2 * few : -few]
            largest = np.abs(rows[tiny]).max(axis=1, keepdims=True)
            rows[tiny] *= np.exp2(-TINY * spread) / np.maximum(largest, 1e-30)
        if zeros and len(rows) > 1:
            rows[order[-few:]] = 0
    usual = min(spread, 4) if values.ndim > 1 else 1  # a row of weights or of scales changes all of an answer
    left = order[: max(1, len(rows) - 2 * few)]
    for sign, chosen in ((1.0, left[:few]), (-1.0, left[few : 2 * few])):
        for row in chosen:
            rows[row, place(rows.shape[1])[0]] = sign * 2.0 ** (usual + OUTLIER) * rng.uniform(1.0, 1.5)
