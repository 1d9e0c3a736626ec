"""Parts that the family's operators share: operands as blockwise FP8 quantisers leave them, and the MXFP8 oracle.

Beside float64, the oracle computes sums as Hopper's FP8 matrix instruction makes them, bit for bit, and how many codes
that turns. Its accumulators are the least exact among the targets', so they say what a right kernel may be off by. One
instruction adds 32 products to an accumulator: products of significands stand at the sum of their exponents, all 33
terms are cut (towards zero) to 13 binary places below the largest exponent and added, and the sum is cut to a
significand of 13 places. Kernels promote to float32 every 128 columns of K. Others found this out: arXiv 2412.19437,
2511.10909.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import (
    BLOCK,
    cast,
    dequantise_rows,
    draw,
    quantise_blocks,
    quantise_rows,
)
from tilewright.seeds.mx_cast.formats import E4M3, Rule, cast_rows
from tilewright.seeds.operator import AgreementGate, Arrays, TensorSpec
from tilewright.seeds.sampled import members, spread_picks
from tilewright.seeds.shaped import Product

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


def hopper_product(a_q: np.ndarray, a_s: np.ndarray, b_q: np.ndarray, b_s: np.ndarray) -> np.ndarray:
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


def turned_codes(exact: Arrays, coarse: Arrays, inexact: bool) -> Arrays:
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


MX = 32
"""Columns under one exponent of the output."""

INPUT_KINDS = ("randn", "outliers", "spread", "zero_blocks", "edges")

SAMPLED_ROWS, SAMPLED_BLOCKS, MOST_BLOCKS = 96, 3, 32
"""Rows and blocks of columns of a sample; more blocks where there are fewer rows."""

LEAST_EQUAL = 0.999
"""Share of codes that must be the float64 product's wherever accumulators hold the sums."""


class MxProduct(Product):
    """A product of FP8 operands whose float32 accumulator leaves as MXFP8, for ``groups`` groups (0: none)."""

    groups: int

    @property
    def constants(self) -> Mapping[str, int]:
        """``by_groups`` is 1 where something comes in groups."""
        return {"block": BLOCK, "by_groups": int(self.groups > 0)}

    @property
    def multiples(self) -> Mapping[str, int]:
        """Scale blocks along K and blocks of the output are whole."""
        return {"K": BLOCK, "N": MX}


def quantised(product: np.ndarray) -> Arrays:
    """``d`` and ``d_s`` of a float64 product [..., N], rounded to float32 first."""
    codes, e = cast_rows(product.reshape(-1, product.shape[-1]).astype(np.float32), Rule.RCEIL, E4M3)
    leading = product.shape[:-1]
    return {"d": codes.view(ml_dtypes.float8_e4m3fn).reshape(product.shape), "d_s": e.reshape(*leading, -1)}


def results(*leading: int, columns: int) -> tuple[TensorSpec, ...]:
    """``d`` [..., N] and ``d_s`` [..., N/32]."""
    return (
        TensorSpec("d", (*leading, columns), "float8_e4m3fn"),
        TensorSpec("d_s", (*leading, columns // MX), "uint8"),
    )


def accumulator_gate(counted: str = "") -> AgreementGate:
    """Codes and exponents of the float64 product, but for what an accumulator such as Hopper's turns."""
    return AgreementGate("accumulator", "mx", ("d", "d_s"), LEAST_EQUAL, counted, "turned", scaled=(("d", "d_s"),))


@dataclass(frozen=True)
class Sums:
    """The same sums twice, [..., N]: in float64, and as Hopper's accumulators leave them (float32)."""

    exact: np.ndarray
    coarse: np.ndarray

    @staticmethod
    def of(a_q: np.ndarray, a_s: np.ndarray, b_q: np.ndarray, b_s: np.ndarray) -> "Sums":
        """Of e4m3 [M, K] and [N, K] under [K/128, M] and [K/128, N] scales."""
        exact = dequantise_rows(a_q, a_s) @ dequantise_rows(b_q, b_s).T
        return Sums(exact, hopper_product(a_q, a_s, b_q, b_s))

    @staticmethod
    def empty(*shape: int) -> "Sums":
        """Zeros, to be filled."""
        return Sums(np.zeros(shape), np.zeros(shape, np.float32))

    def __setitem__(self, where: Any, found: "Sums") -> None:
        self.exact[where], self.coarse[where] = found.exact, found.coarse

    def references(self, counted: np.ndarray | None = None) -> dict[str, Arrays]:
        """``mx``: codes of the exact sums; ``turned``: by output the share that the coarse ones may turn.

        ``counted`` (bool, over the leading axes) says what counts, and becomes a third reference.
        """
        mx = quantised(self.exact)
        seen = np.ones(self.exact.shape[:-1], dtype=bool) if counted is None else counted
        exact, coarse = self.exact[seen], self.coarse[seen]
        inexact = bool((exact.astype(np.float32) != coarse).any())
        own = {name: codes[seen] for name, codes in mx.items()}
        found = {"mx": mx, "turned": turned_codes(own, quantised(coarse), inexact)}
        return found if counted is None else {**found, "counted": dict.fromkeys(mx, counted)}


def picked_columns(n: int, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Some blocks of columns to cross so many rows, and the columns they hold."""
    many = min(MOST_BLOCKS, -(-SAMPLED_ROWS * SAMPLED_BLOCKS // max(1, rows)))
    blocks = spread_picks(n // MX, many, rng)
    return blocks, members(blocks, MX)


def by_rows(b_s: np.ndarray, n: int) -> np.ndarray:
    """128 x 128 scales [N/128, K/128] as [K/128, N], N not always a multiple of a block."""
    return np.repeat(b_s, BLOCK, axis=0)[:n].T


def operands(rng: np.random.Generator, m: int, n: int, k: int, kind: str) -> Arrays:
    """A with 1 x 128 and B with 128 x 128 scales: ``edge_operands``, or quantised from what ``draw`` gives."""
    if kind == "edges":
        return edge_operands(rng, m, n, k)
    a_q, a_s = quantise_rows(draw(rng, m, k, kind))
    b_q, b_s = quantise_blocks(np.pad(draw(rng, n, k, kind), ((0, -n % BLOCK), (0, 0))))
    return {"a_q": a_q, "a_s": a_s, "b_q": b_q[:n], "b_s": b_s}


def edge_operands(rng: np.random.Generator, m: int, n: int, k: int) -> Arrays:
    """B has one 1 in each row, so an accumulator is one payload of A under one scale; maxima near 448 x 2^e."""
    steps = k // BLOCK
    a = rng.integers(-400, 400, (m, k)).astype(np.float32)
    a[:, ::MX] = rng.choice((-448.0, 448.0), (m, k // MX))
    ulps = rng.integers(-3, 4, (steps, m)).astype(np.int32)
    power = np.exp2(rng.integers(-20, 20, (steps, m))).astype(np.float32)
    a_s = (power.view(np.int32) + ulps).view(np.float32)
    b = np.zeros((n, k), np.float32)
    b[np.arange(n), np.arange(n) % k] = 1.0
    b_s = np.ones((-(-n // BLOCK), steps), np.float32)
    return {"a_q": cast(a), "a_s": a_s, "b_q": cast(b), "b_s": b_s}
