"""The contract of blockwise FP8 training: how bf16 becomes e4m3 and scales, in numpy, and test matrices for it.

Published recipes; block 128, e4m3, no power-of-two scales:
    amax  = max(|x| over the block, 1e-4)          float32
    scale = 448 / amax                             float32, correctly rounded
    q     = RNE cast of clamp(x * scale, +-448)    to e4m3
    s     = 1 / scale                              float32, correctly rounded: the dequantisation multiplier
Blocks are 1 x 128 along the contracted dimension for activations and gradients, 128 x 128 for weights; the last row
of 128 x 128 blocks may be cut off. Scales of
1 x 128 blocks are stored [blocks along the contracted dimension, rows]: neighbouring rows of one block lie together,
which is what a tile's loads want (and what vendor libraries take, as stride (1, M)).
"""

import math

import ml_dtypes
import numpy as np

from tilewright.seeds.operator import SnrGate, TensorSpec
from tilewright.seeds.sampled import TABLE, normal_table
from tilewright.seeds.shaped import PEAK, integers, peaks

BLOCK = 128
"""Edge of a scale block, elements."""

FP8_MAX = np.float32(448.0)
"""Largest finite e4m3fn value."""

AMAX_FLOOR = np.float32(1e-4)
"""Smallest block maximum a scale is made from."""

INPUT_KINDS = ("randn", "outliers", "spread", "zero_blocks")
PRODUCT_KINDS = (*INPUT_KINDS, "repeated", "integers", "scaled")
QUANTISER_KINDS = (*INPUT_KINDS, "repeated", "extreme")
"""Kinds of inputs of products, and of quantisers. NaN and infinities are unspecified."""

PRODUCT_GATES = (SnrGate("field", "exact", 25.0), SnrGate("exact", "exact", 45.0, usual="usual"))

_FEW = np.array([(0.5, 1.0, 1.75), (128.0, 256.0, 448.0), (4.25, 8.5, 17.0)], np.float32)
"""Of ``repeated``: scales that are powers of two, scales of one, and squares that bfloat16 rounds one way."""

_MIDPOINTS = np.arange(17, 32, 2, dtype=np.float32) / 16
"""Half way between e4m3 numbers."""


def operand(name: str, rows: int, k: int, *many: int, blocks: bool = False) -> tuple[TensorSpec, TensorSpec]:
    """``<name>_q`` [..., rows, K] and ``<name>_s``: scales of 1 x 128 blocks, or of 128 x 128 ``blocks``."""
    scales = (-(-rows // BLOCK), k // BLOCK) if blocks else (k // BLOCK, rows)
    codes = TensorSpec(f"{name}_q", (*many, rows, k), "float8_e4m3fn")
    return codes, TensorSpec(f"{name}_s", (*many, *scales), "float32")


def scales_of(amax: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Block maxima (float32) -> (scale, 1 / scale) in float32 as the contract rounds them."""
    scale = FP8_MAX / np.maximum(amax.astype(np.float32), AMAX_FLOOR)
    return scale, np.float32(1.0) / scale


def cast(scaled: np.ndarray) -> np.ndarray:
    """float32, already scaled -> e4m3 with saturation."""
    return np.clip(scaled, -FP8_MAX, FP8_MAX).astype(ml_dtypes.float8_e4m3fn)


def quantise_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """1 x 128 blocks of ``x`` [R, C] -> (q [R, C] e4m3, s [C/128, R] float32)."""
    rows, cols = x.shape
    blocks = x.astype(np.float32).reshape(rows, cols // BLOCK, BLOCK)
    scale, inverse = scales_of(np.abs(blocks).max(axis=2))
    return cast(blocks * scale[:, :, None]).reshape(rows, cols), np.ascontiguousarray(inverse.T)


def quantise_blocks(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """128 x 128 blocks of ``x`` [R, C] -> (q [R, C] e4m3, s [ceil(R/128), C/128] float32)."""
    rows, cols = x.shape
    whole = np.zeros((-(-rows // BLOCK) * BLOCK, cols), np.float32)
    whole[:rows] = x
    blocks = whole.reshape(-1, BLOCK, cols // BLOCK, BLOCK)
    scale, inverse = scales_of(np.abs(blocks).max(axis=(1, 3)))
    return cast(blocks * scale[:, None, :, None]).reshape(-1, cols)[:rows], inverse


def dequantise_rows(q: np.ndarray, s: np.ndarray) -> np.ndarray:
    """(q [R, C], s [C/128, R]) -> float64 [R, C]."""
    return q.astype(np.float64) * np.repeat(s.astype(np.float64).T, BLOCK, axis=1)


def dequantise_blocks(q: np.ndarray, s: np.ndarray) -> np.ndarray:
    """(q [R, C], s [ceil(R/128), C/128]) -> float64 [R, C]."""
    wide = np.repeat(np.repeat(s.astype(np.float64), BLOCK, axis=0), BLOCK, axis=1)
    return q.astype(np.float64) * wide[: q.shape[0]]


def draw(rng: np.random.Generator, rows: int, cols: int, kind: str) -> np.ndarray:
    """A bf16-representable float32 matrix [rows, cols] distributed as ``kind``.

    ``randn``: standard normal. ``outliers``: 1/64 of the rows and columns are 64 times larger. ``spread``: every
    128 x 128 block has its own magnitude in 2^-12 .. 2^12, every row another 2^-2 .. 2^2, so that a wrong scale
    index shows. ``zero_blocks``: half of the blocks and a row are zero, and every other time the others 2^40 times
    larger. ``repeated``: three values, rows of one sign and of different size, some of one value, with one in each
    block alone, or like the one before. ``extreme``: every block has its own magnitude in
    2^-134 .. 2^118, in a quarter of them all but the largest lie half way between two codes, and some are negative
    zeros. Raises ValueError for another kind; see ``factors`` for ``integers`` and ``scaled``.
    """
    x = rng.standard_normal((rows, cols), dtype=np.float32)
    grid = (-(-rows // BLOCK), -(-cols // BLOCK))

    def blow_up(factors: np.ndarray) -> np.ndarray:
        wide = np.repeat(np.repeat(factors.astype(np.float32), BLOCK, axis=0), BLOCK, axis=1)
        return wide[:rows, :cols]

    if kind == "outliers":
        x[rng.choice(rows, max(1, rows // 64), replace=False)] *= np.float32(64)
        x[:, rng.choice(cols, max(1, cols // 64), replace=False)] *= np.float32(64)
    elif kind == "spread":
        x *= blow_up(np.exp2(rng.integers(-12, 13, grid)))
        x *= np.exp2(rng.integers(-2, 3, (rows, 1))).astype(np.float32)
    elif kind == "zero_blocks":
        # exactly half: where each block is zero by chance, one lot in ten leaves hardly a sum to judge
        order = rng.permutation(math.prod(grid)).reshape(grid)
        x *= blow_up(order >= order.size // 2) * np.float32(2.0 ** rng.choice((0, 40)))
        x[rng.permutation(rows)[:1]] = 0  # a norm's row without a size
    elif kind == "repeated":
        signs = rng.choice(np.array([-1, 1], np.float32), (rows, 1)) * _steps(rng, rows)
        few = rng.choice(_FEW)
        x = np.where(rng.random((rows, 1)) < 1 / 8, few[2], rng.choice(few, (rows, cols))) * signs
        alone, again = np.array_split(rng.permutation(rows)[: 2 + rows // 16], 2)
        x[alone] *= np.arange(cols) % BLOCK == rng.integers(BLOCK)
        x[again] = x[again - 1]
    elif kind == "extreme":
        near = rng.choice(_MIDPOINTS, (rows, cols)) * np.exp2(rng.integers(-6, 8, (rows, cols)))
        near = np.where(np.arange(cols) % BLOCK == rng.integers(BLOCK), FP8_MAX, near) * np.sign(x)
        x = np.where(blow_up(rng.random(grid) < 0.25) > 0, near * 2.0**-8, x)
        x = np.where(rng.random((rows, cols)) < 1 / 16, np.float32(-0.0), x)
        x = x * blow_up(np.exp2(rng.integers(-134, 119, grid)))
    elif kind != "randn":
        known = ", ".join((*PRODUCT_KINDS, *QUANTISER_KINDS[-1:]))
        raise ValueError(f"gemm_fp8_blockwise has no input kind {kind!r}; it has {known}")
    return x.astype(ml_dtypes.bfloat16)


def _steps(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Powers of two by row."""
    return np.exp2(rng.integers(-2, 3, (rows, 1))).astype(np.float32)


def factors(
    rng: np.random.Generator, seed: int, kind: str, m: int, n: int, k: int, most: int = 14, width: int = BLOCK
) -> tuple[np.ndarray, np.ndarray]:
    """A [m, k] and B [n, k] of one kind, before they are quantised.

    ``integers``: see ``shaped.integers``; up to 14 a sum over one block is held by 14 bits, one over four is not, and
    with blocks that are 512 times larger it takes most of the 24 that float32 has.
    ``scaled``: A with ``shaped.peaks``, and both by 2^-12, where the floor is near, or by 2^30 and 2^70.
    """
    if kind == "scaled":
        a, b = (rng.standard_normal((rows, k), dtype=np.float32) for rows in (m, n))
        peaks(a, 1, BLOCK, seed)[rng.random(m) < 0.5] = PEAK
        peaks(b, 1, BLOCK, seed)[...] = 0.0
        sizes = np.float32(2.0) ** rng.choice(np.array(((-12, -12), (30, 70), (70, 30))))
        return (a * sizes[0]).astype(ml_dtypes.bfloat16), (b * sizes[1]).astype(ml_dtypes.bfloat16)
    if kind != "integers":
        return draw(rng, m, k, kind), draw(rng, n, k, kind)
    mirrored = integers(rng, (m, k), 1, seed, mirror=True, most=most, far=512.0, width=width)
    other = integers(rng, (n, k), 1, seed, mirror=False, most=most, width=width)
    return mirrored * _steps(rng, m), other * _steps(rng, n)


def generator(seed: int, kind: str) -> np.random.Generator:
    """The random numbers of one seed and kind of inputs."""
    kinds = (*PRODUCT_KINDS, *QUANTISER_KINDS[-1:])
    return np.random.default_rng([seed, kinds.index(kind) if kind in kinds else 0])


def usual_sizes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64 [M, N]: how large elements of a [M, K] . b [N, K]^T are where signs are random."""
    most = [max(float(np.abs(x).max(initial=0.0)), 1e-300) for x in (a, b)]
    left, right = (np.square(x / top).astype(np.float32) for x, top in zip((a, b), most, strict=True))
    return np.sqrt(left @ right.T) * (most[0] * most[1])


def product_tables() -> dict[str, np.ndarray]:
    """Payloads as quantised normal data has them, scales of block maxima between 1.6 and 4.9 (log-uniform)."""
    # the largest of 128 normals is near 2.7, so a standard deviation is 448 / 2.7 after scaling
    payload = cast(normal_table(float(FP8_MAX) / 2.7))
    scale = (np.geomspace(1.6, 4.9, TABLE) / 448.0).astype(np.float32)
    return {"a_q": payload, "a_s": scale, "b_q": payload, "b_s": scale}
