"""Sums of narrow floats in the interpreter, which Triton itself adds as their bit patterns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

tl = pytest.importorskip("triton.language")


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("size", [1, 7, 128])
def test_a_sum_of_bfloat16_rounds_as_pairs_do(axis: int | None, size: int) -> None:
    from tilewright.workers.runners.triton.interpreter_rounding import _summed

    values = (
        np.random.default_rng(size).standard_normal((3, size)).astype(ml_dtypes.bfloat16).astype(np.float32)
    )
    bits = _summed(values, axis, tl.bfloat16)
    found = bits.view(ml_dtypes.bfloat16).astype(np.float64)
    exact = values.astype(np.float64).sum(axis=axis, keepdims=True)
    steps = np.ceil(np.log2(3 * size)) + 1
    assert found.shape == exact.shape
    assert np.all(np.abs(found - exact) <= steps * 2.0**-8 * np.abs(values).sum(axis=axis, keepdims=True))
    assert np.array_equal(found, np.float64(found.astype(ml_dtypes.bfloat16)))


def test_a_number_becomes_a_scalar_of_a_narrow_type() -> None:
    from tilewright.workers.runners.triton.interpreter_rounding import _constant_of

    made = _constant_of(tl.bfloat16)(None, 0.3)
    assert made.dtype == tl.bfloat16 and made.data.view(ml_dtypes.bfloat16)[0] == ml_dtypes.bfloat16(0.3)
