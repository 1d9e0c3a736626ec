"""Base classes of operators over M, N and K: dimensions, tensor specs, bytes; and input kinds that products share.

A family's operator derives from ``Shaped`` or ``Product`` and defines ``operands`` and ``results``.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import ml_dtypes
import numpy as np

from tilewright.seeds.operator import AgreementGate, Gate, SnrGate, Suite, TensorSpec, Workload


class Shaped:
    """``axes``: names of a workload's dimensions, in the order in which methods take them."""

    name: str
    axes: ClassVar[Sequence[str]] = "MK"

    @property
    def multiples(self) -> Mapping[str, int]:
        """By axis, the number that its size must be a multiple of."""
        return {}

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """Specs of the operands, in call order, for sizes in the order of ``axes``."""
        raise NotImplementedError

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """Specs of the results, in return order, for sizes in the order of ``axes``."""
        raise NotImplementedError

    def dims(self, workload: Workload) -> tuple[int, ...]:
        """The workload's sizes in the order of ``axes``. Raises ValueError if one violates ``multiples``."""
        for axis, multiple in self.multiples.items():
            if workload.dims[axis] % multiple:
                rule = " and ".join(f"{a} to be a multiple of {n}" for a, n in self.multiples.items())
                raise ValueError(f"workload {workload.id}: {self.name} needs {rule}")
        return tuple(workload.dims[axis] for axis in self.axes)

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        """``operands`` of the workload. Raises ValueError for a variant, or a shape the operator lacks."""
        if variant is not None:
            raise ValueError(f"{self.name} has no inputs variant {variant!r}")
        return self.operands(*self.dims(workload))

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """``results`` of the workload."""
        return self.results(*self.dims(workload))

    def bytes(self, workload: Workload) -> int:
        """Bytes of all operands and results, each moved once."""
        specs = (*self.inputs(workload), *self.outputs(workload))
        return sum(math.prod(spec.shape) * _item_bytes(spec.dtype) for spec in specs)


class Product(Shaped):
    """C [M, N] from A [M, K] and B [N, K]."""

    axes: ClassVar[Sequence[str]] = "MNK"

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """The product ``c`` [M, N] in bfloat16."""
        m, n, _ = dims
        return (TensorSpec("c", (m, n), "bfloat16"),)

    def flops(self, workload: Workload) -> int:
        """2 M N K."""
        m, n, k = self.dims(workload)
        return 2 * m * n * k


FP8_MAX = 448.0
"""Largest finite e4m3fn value."""

ABSMAX_FLOOR = 1e-12
"""Smallest absmax a scale is made from, so that an all-zero group has a finite scale."""

SCALED_COLUMNS = 128
"""Columns of weights that share a scale."""


def quantise(x: np.ndarray, group: int, *, bf16_scales: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Along the last axis: ``x`` [..., C] -> (q [..., C] e4m3, scales [..., C/group] float32)."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, group)
    absmax = np.maximum(np.abs(blocks).max(axis=-1), np.float32(ABSMAX_FLOOR))
    scale = absmax / np.float32(FP8_MAX)
    if bf16_scales:
        scale = scale.astype(ml_dtypes.bfloat16).astype(np.float32)
    codes = (blocks / scale[..., None]).astype(ml_dtypes.float8_e4m3fn)
    return codes.reshape(x.shape), scale


def dequantise(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The inverse in float64."""
    blocks = codes.astype(np.float64).reshape(*scale.shape, -1) * scale.astype(np.float64)[..., None]
    return blocks.reshape(codes.shape)


def quantise_weights(w: np.ndarray, group: int, *, bf16_scales: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """``w`` [..., C, F] float32 -> (q [..., C, F] e4m3, scales [..., C/group, 1, F] float32, equal in 128 columns)."""
    blocks = w.reshape(*w.shape[:-2], w.shape[-2] // group, group, -1, SCALED_COLUMNS).swapaxes(-3, -2)
    q, scale = quantise(blocks.reshape(*blocks.shape[:-2], -1), group * SCALED_COLUMNS, bf16_scales=bf16_scales)
    q = q.reshape(blocks.shape).swapaxes(-3, -2).reshape(w.shape)
    return q, np.repeat(scale[..., 0], SCALED_COLUMNS, axis=-1)[..., None, :]


def dequantise_weights(w: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The inverse in float64."""
    blocks = w.astype(np.float64).reshape(*scales.shape[:-2], -1, w.shape[-1])
    return (blocks * scales.astype(np.float64)).reshape(w.shape)


def integers(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    axis: int,
    seed: int,
    *,
    mirror: bool,
    most: int = 7,
    far: float = 1.0,
    width: int = 128,
) -> np.ndarray:
    """A float32 operand of integers 1 to ``most`` that shows accumulators of too few bits.

    Two operands with the same ``seed``, one of them with ``mirror``, have a product whose partial sums are large and
    whose results are small, and all of whose sums are exact in float32, in any order. To that end each block of
    ``width`` in the first half of ``axis`` is copied to one in the second half, as ``seed`` pairs them; with ``mirror``
    negated, but for about four elements that become zero. Every block contains ``most``: with another maximum its e4m3
    codes would not be integers times one power of two. With ``mirror``, one pair of blocks is ``far`` times larger and
    cancels entirely, so that partial sums need more bits.
    """
    made = rng.integers(1, most + 1, shape).astype(np.float32)
    along = np.moveaxis(made, axis, -1)
    count = along.shape[-1] // width
    half = count // 2
    pairs = np.random.default_rng(seed)
    peak = pairs.integers(128)
    along[..., peak::128] = most
    for one, other in enumerate(half + pairs.permutation(half)):
        copied = along[..., one * width : (one + 1) * width]
        kept = (rng.random(copied.shape) >= 4 / (half * width)) | (np.arange(width) % 128 == peak)
        if mirror and far > 1 and half > 1 and not one:
            copied *= far
            kept[...] = True
        along[..., other * width : (other + 1) * width] = np.where(kept, -copied, 0) if mirror else copied
    return made


def peaks(x: np.ndarray, axis: int, width: int, seed: int) -> np.ndarray:
    """A view of one element (chosen by ``seed``) of every ``width`` along ``axis``, with that axis moved to the end.

    Set to ``PEAK`` in one operand, and to zero in the other, it makes the rest of a scale block have subnormal codes,
    and the product depend on them."""
    return np.moveaxis(x, axis, -1)[..., seed % width :: width]


def values(
    rng: np.random.Generator,
    kind: str,
    shape: tuple[int, ...],
    axis: int,
    width: int,
    seed: int,
    *,
    first: bool = True,
    free: int = 1,
    larger: float = 1.0,
) -> np.ndarray:
    """A float32 operand (the ``first``, or the other) of a product that quantises it. ``axis`` is contracted; a scale
    block has ``width`` elements along it and ``free`` along the axis beside it.

    ``randn``: standard normal. ``outliers``: 1/64 of the rows and columns are 64 times larger, of the other operand's
    contracted lines 16 times; where two meet, by the larger factor: else some elements, whose codes are a matter of
    rounding, make up the product. ``spread``: every scale block has its own magnitude in 2^-12 .. 2^12, so that a wrong
    scale index shows. ``zero_blocks``: three in eight scale blocks are zero. ``integers``: see there; the other operand
    is ``larger``. ``repeated``: three values of one sign, in half of the lines 256 times larger, where scales are one;
    of the other operand the same integers. ``faint``, ``huge``: the first operand around the smallest absmax that has a
    scale of its own, with lines far below and some ``peaks``, and around 2^100. Raises ValueError for any other.
    """
    if kind not in INPUT_KINDS:
        raise ValueError(f"no input kind {kind!r}; there are {', '.join(INPUT_KINDS)}")
    if kind == "integers" or (kind == "repeated" and not first):
        return np.float32(1.0 if first else larger) * integers(rng, shape, axis, seed, mirror=first)
    x = rng.standard_normal(shape, dtype=np.float32)
    along = np.moveaxis(x, axis, -1)
    if kind == "repeated":
        x[...] = rng.choice((0.5, 1.0, 1.75), shape)
        along[: len(along) // 2] *= 256.0
    elif kind == "outliers":
        factors = np.ones(along.shape[-2:], np.float32)
        for lines, most in ((factors, 64.0), (factors.T, 64.0 if first else 16.0)):
            chosen = rng.choice(len(lines), max(1, len(lines) // 64), replace=False)
            lines[chosen] = np.maximum(lines[chosen], most)
        along *= factors
    elif kind in ("spread", "zero_blocks"):
        blocks = (*along.shape[:-2], along.shape[-2] // free, along.shape[-1] // width)
        drawn = np.exp2(rng.integers(-12, 13, blocks)) if kind == "spread" else rng.random(blocks) < 0.625
        along *= drawn.astype(np.float32).repeat(width, axis=-1).repeat(free, axis=-2)
    elif kind == "faint" and first:
        peaks(x, axis, width, seed)[rng.random(along.shape[:-1]) < 0.5] = PEAK
        along *= rng.choice(np.array(FAINT, np.float32), (len(along), 1))
    elif kind == "faint":
        peaks(x, axis, width, seed)[...] = 0.0
    elif kind == "huge" and first:
        x *= HUGE
    return x


def turned_steps(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """float64 [M, K]: where the e4m3 code of x [M, K] under scales [M, K/g] may round either way, the step between both
    values; 0 elsewhere.

    ``x / s`` in float32 is off by three roundings at most, however it is computed: only codes near a tie are open.
    """
    wide = np.repeat(scale.astype(np.float64), x.shape[1] // scale.shape[1], axis=1)
    ratio = x.astype(np.float64) / wide
    low, high = ((ratio * (1 + e)).astype(np.float32).astype(ml_dtypes.float8_e4m3fn) for e in (-NEAR, NEAR))
    found: np.ndarray = np.abs(high.astype(np.float64) - low.astype(np.float64)) * wide
    return found


def slack_of(
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    a: np.ndarray,
    b: np.ndarray,
    steps_a: np.ndarray | None,
    steps_b: np.ndarray | None = None,
    *,
    carried: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """(largest error, mean square error), float64, that each element of ``product(a, b)`` may have because operands are
    rounded to bfloat16 and codes near a tie may round either way (``turned_steps``, None for an unquantised operand).

    A kernel may round either operand (the scale may be multiplied into one or the other), so all elements are granted
    the loss of rounding, unless all are exact in bfloat16: also times ``FP8_MAX``, where the scale may be ``carried``
    to the other operand so.
    """
    forms = (a, a * FP8_MAX, b, b / FP8_MAX) if carried else (a, b)
    exact = all((x.astype(ml_dtypes.bfloat16) == x).all() for x in forms)
    # a power of two, so that squares are numbers
    size = 2.0 ** np.floor(np.log2(max(float(np.abs(a).max(initial=0.0)), 1e-300)))
    left, right = np.abs(a / size).astype(np.float32), np.abs(b).astype(np.float32)
    lost = 0.0 if exact else 2 * LOST
    found: np.ndarray = ROOM * np.sqrt(lost * product(left * left, right * right))
    turned = np.zeros_like(found)
    pairs = [] if steps_a is None else [((steps_a / size).astype(np.float32), right)]
    pairs += [] if steps_b is None else [(left, steps_b.astype(np.float32))]
    for one, other in pairs:
        found, turned = found + product(one, other), turned + product(one * one, other * other)
    return found.astype(np.float64) * size, turned.astype(np.float64) * size**2


ATTENTION_GATES: tuple[Gate, ...] = (
    SnrGate("exact", "exact", 45.0, worst=0.1, lean=1 / 8),
    AgreementGate("lone", "lone", ("out",), 1.0, counted="alone"),
)
"""Weights are rounded to bfloat16, and where values cancel an output is off by a share of what is usual around it. Cut
ones lean, by 0.2 to 0.4 of a last place. Where one key has all the weight, the answer is its value."""

GATES: tuple[Gate, ...] = (
    SnrGate("field", "field", 25.0),
    SnrGate("exact", "exact", 45.0, slack="slack", turned="turned"),
)
INPUT_KINDS = ("randn", "outliers", "spread", "zero_blocks", "integers", "repeated", "faint", "huge")
"""Of products that quantise an operand on the way."""

ROOM, NEAR = 6.5, 2.0**-21
"""Standard deviations that the largest of millions of errors may be; shares of a code within which it may turn."""

FAINT, HUGE = (2.0**-37, 2.0**-41, 2.0**-110), np.float32(2.0**100)
"""What makes values faint and huge: factors around 1e-12 and below, and the largest power of two for which sums of
codes are numbers however they are scaled."""

PEAK = 2.0**14
"""Beside it, half of ordinary values have codes below the least normal one of e4m3."""


LOST = 2.0**-14 / 12
"""Variance of a rounding to bfloat16, as a share of the value squared: at most a step of 2^-7, evenly spread."""


def gemm(m: int, n: int, k: int, prefix: str = "") -> Workload:
    """A product's workload, named by its sizes."""
    return Workload(f"{prefix}{m}x{n}x{k}", {"M": m, "N": n, "K": k})


def matrix(m: int, k: int, prefix: str = "") -> Workload:
    """The workload of an operator over one matrix, named by its sizes."""
    return Workload(f"{prefix}{m}x{k}", {"M": m, "K": k})


def suites_of(lists: Mapping[str, Iterable[Workload]], check: tuple[Workload, ...]) -> Mapping[str, Suite]:
    """Suites by name; ``lists`` are their timed workloads, ``check`` the shapes that all of them check."""
    return MappingProxyType({name: Suite(name, tuple(timed), check) for name, timed in lists.items()})


def _item_bytes(dtype: str) -> int:
    kind = np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)
    return int(kind.itemsize)
