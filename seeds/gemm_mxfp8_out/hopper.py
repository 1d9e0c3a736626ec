"""Sums as Hopper's FP8 matrix instruction makes them, bit for bit, and how many codes that turns.

Its accumulators are the least exact among the targets', so they say what a right kernel may be off by. One instruction
adds 32 products to an accumulator: products of significands stand at the sum of their exponents, all 33 terms are cut
(towards zero) to 13 binary places below the largest exponent and added, and the sum is cut to a significand of 13
places. Kernels promote to float32 every 128 columns of K. Others found this out: arXiv 2412.19437, 2511.10909.
"""

from __future__ import annotations

import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import BLOCK
from tilewright.seeds.operator import Arrays

DEPTH = 32
"""Products that one instruction adds."""

PLACES = 13
LEAST_EXPONENT = -6
"""Exponent of e4m3's subnormal numbers."""

NOTHING = -50
"""Exponent of a zero: two make less than any product, or a cut sum of some, and float32 still holds their scale."""

ROWS_AT_ONCE = 32
"""Keeps a piece of M x N x 32 products in a core's cache."""

SLACK, DEVIATIONS = 1.5, 3.0
"""Another order of the same arithmetic turns other codes: so many times as many, and so many standard deviations."""


def product(a_q: np.ndarray, a_s: np.ndarray, b_q: np.ndarray, b_s: np.ndarray) -> np.ndarray:
    """float32 [M, N] of e4m3 [M, K] under [K/128, M] and e4m3 [N, K] under [K/128, N] float32 scales."""
    a, b = a_q.astype(np.float32), b_q.astype(np.float32)
    a_e, b_e = _exponents(a), _exponents(b)
    found = np.zeros((len(a), len(b)), np.float32)
    for first in range(0, len(a), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        for step in range(a.shape[1] // BLOCK):
            part = np.zeros((len(a[rows]), len(b)), np.float32)
            for column in range(step * BLOCK, (step + 1) * BLOCK, DEPTH):
                depth = slice(column, column + DEPTH)
                part = _added(part, a[rows, depth], a_e[rows, depth], b[:, depth], b_e[:, depth])
            found[rows] += part * (a_s[step, rows, None] * b_s[step, None, :])
    return found


def turned(exact: Arrays, coarse: Arrays, inexact: bool) -> Arrays:
    """By output the share (scalar) of codes [..., N] that may differ from ``exact``, because ``coarse`` ones do.

    None may where the sums were not ``inexact``. A block maximum within its error of 448 x 2^e takes all codes of the
    block with it, so one block may.
    """
    found = {}
    for name, wanted in exact.items():
        differ = int(np.count_nonzero(wanted.view(np.uint8) != coarse[name].view(np.uint8)))
        block = wanted.size // max(1, exact["d_s"].size)
        most = SLACK * differ + DEVIATIONS * differ**0.5 + block if inexact else 0.0
        found[name] = np.array(most / max(1, wanted.size))
    return found


def _exponents(x: np.ndarray) -> np.ndarray:
    """int16 exponents of significands in [1, 2), e4m3's subnormal numbers at the least, zeros at ``NOTHING``."""
    e = np.maximum(np.frexp(x)[1] - 1, LEAST_EXPONENT)
    return np.where(x == 0, NOTHING, e).astype(np.int16)


def _added(part: np.ndarray, a: np.ndarray, a_e: np.ndarray, b: np.ndarray, b_e: np.ndarray) -> np.ndarray:
    """The accumulators ``part`` [M, N] after one instruction."""
    top = (a_e[:, None, :] + b_e[None, :, :]).max(axis=2)
    own = np.where(part == 0, 2 * NOTHING, np.frexp(part)[1] - 1)
    top = np.maximum(top, own)
    terms = a[:, None, :] * b[None, :, :]
    terms *= np.ldexp(np.float32(1), PLACES - top)[:, :, None]
    total = np.trunc(terms, out=terms).sum(axis=2) + np.trunc(np.ldexp(part, PLACES - top))
    # whole numbers below 2^24: exact so far; the last places of the significand go
    cut = (total.view(np.int32) & np.int32(-1 << (23 - PLACES))).view(np.float32)
    return np.ldexp(cut, top - PLACES)
