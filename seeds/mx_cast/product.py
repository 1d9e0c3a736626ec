"""Products of what the casts write: c [M, N] bf16 = A . B^T of microscaled A [M, K] and B [N, K], float32 accumulation.

``gemm_mxfp8``: payloads e4m3 with exponents [rows, K/32]. ``gemm_mxfp4``: two codes a byte. ``gemm_nvfp4``: two codes a
byte, e4m3 scales [rows, K/16] and one float32 scale per tensor, ``a_t`` and ``b_t`` [1]. Scales lie plainly. K is a
multiple of 128.

Gates: the field's 25 dB, and 50 dB against the float64 product of the dequantised operands (rounding to bf16 costs 55).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import draw
from tilewright.seeds.mx_cast import formats
from tilewright.seeds.mx_cast.formats import BLOCK, E2M1, E4M3, NV_BLOCK, Rule
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, SnrGate, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import TABLE, Elements, Sample, normal_table, spread_picks
from tilewright.seeds.shaped import PEAK, Product, peaks

INPUT_KINDS = ("randn", "outliers", "spread", "zero_blocks", "far")
STEP, SAMPLED = 128, 64

NV_LARGEST = np.float32(448.0 * 6.0)
"""What the two levels of NVFP4 reach together."""


class Form(NamedTuple):
    """How operands look: their number in kernels, payloads a byte holds, columns under one scale, and the cast."""

    number: int
    packed: int
    block: int
    cast: Callable[[np.ndarray], Arrays]


def _mxfp8(x: np.ndarray) -> Arrays:
    codes, s = formats.cast_rows(x, Rule.RCEIL, E4M3)
    return {"q": codes.view(ml_dtypes.float8_e4m3fn), "s": s}


def _mxfp4(x: np.ndarray) -> Arrays:
    codes, s = formats.cast_rows(x, Rule.RCEIL, E2M1)
    return {"q": formats.packed(codes), "s": s}


def _nvfp4(x: np.ndarray) -> Arrays:
    t = np.maximum(np.abs(x.astype(np.float32)).max(), np.float32(1e-4)) / NV_LARGEST
    codes, s = formats.cast_nvfp4(x, np.float32(t))
    return {"q": formats.packed(codes), "s": s, "t": np.array([t], np.float32)}


FORMS: Mapping[str, Form] = {
    "mxfp8": Form(0, 1, BLOCK, _mxfp8),
    "mxfp4": Form(1, 2, BLOCK, _mxfp4),
    "nvfp4": Form(2, 2, NV_BLOCK, _nvfp4),
}


def dequantised(form: Form, operand: Mapping[str, np.ndarray]) -> np.ndarray:
    """float64 values of ``q``, ``s`` and, for two levels, ``t``."""
    q, s = operand["q"], operand["s"]
    if form.packed == 2:
        codes = np.stack([q & 0xF, q >> 4], axis=-1).reshape(q.shape[0], -1).astype(np.uint8)
        values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    else:
        values = q.astype(np.float64)
    if "t" in operand:
        scale = s.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * np.float64(operand["t"][0])
    else:
        scale = np.exp2(s.astype(np.float64) - 127)
    return values * np.repeat(scale, form.block, axis=1)


@dataclass(frozen=True)
class MxGemm(Product):
    """The product of one form of operands."""

    name: str
    form: Form
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = (SnrGate("field", "exact", 25.0), SnrGate("exact", "exact", 50.0))
    input_kinds: tuple[str, ...] = INPUT_KINDS

    @property
    def constants(self) -> Mapping[str, int]:
        """The recipe, for constraints of kernels."""
        return {"format": self.form.number}

    multiples = MappingProxyType({"K": STEP})

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``; under two levels also ``a_t``, ``b_t``."""
        m, n, k = dims
        kind = "float8_e4m3fn" if self.form.packed == 1 else "uint8"
        found = []
        for name, rows in (("a", m), ("b", n)):
            found.append(TensorSpec(f"{name}_q", (rows, k // self.form.packed), kind))
            found.append(TensorSpec(f"{name}_s", (rows, k // self.form.block), "uint8"))
        if self.form.block == NV_BLOCK:
            found += [TensorSpec(f"{name}_t", (1,), "float32") for name in "ab"]
        return tuple(found)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands, cast as the definitions say. ``far``: by 2^40 or 2^-50; but for NVFP4, half of one operand's
        blocks by 2^60 more, what they meet by as much less; of MXFP8 ``shaped.peaks``, and NaN in a row of several."""
        m, n, k = self.dims(workload)
        rng = np.random.default_rng([seed, INPUT_KINDS.index(kind)])
        powers = np.zeros((2, k))
        if kind == "far":
            powers += 40.0 if (seed + m + n) % 2 else -50.0
            if self.form.block == BLOCK:
                powers += np.repeat(np.where(rng.permutation(k // BLOCK) % 2, 60, -60), BLOCK) * [[1], [-1]]
        drawn = [draw(rng, rows, k, "randn" if kind == "far" else kind) for rows in (m, n)]
        if kind == "far" and self.form.packed == 1:
            peaks(drawn[0], 1, BLOCK, seed)[rng.random(m) < 0.5] = PEAK
            peaks(drawn[1], 1, BLOCK, seed)[...] = 0.0
            drawn[0][rng.integers(m) : m - 1 : m, rng.integers(k)] = np.nan
        sizes = np.exp2(powers).astype(np.float32)
        cast = (self.form.cast((x * size).astype(x.dtype)) for x, size in zip(drawn, sizes, strict=True))
        made = dict(zip("ab", cast, strict=True))
        found = {f"{name}_{part}": array for name, parts in made.items() for part, array in parts.items()}
        return {spec.name: found[spec.name] for spec in self.operands(m, n, k)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``exact``: the float64 product of the dequantised operands."""
        a, b = (dequantised(self.form, _operand(inputs, name)) for name in "ab")
        return {"exact": {"c": a @ b.T}}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Payloads as normal data has them, exponents of block maxima of 2 to 4, scales of two levels alike."""
        found: dict[str, np.ndarray] = {}
        if self.form.packed == 1:
            payload = normal_table(130.0).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
        else:
            codes = normal_table(2.2).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
            rng = np.random.default_rng(0)
            payload = (codes | (rng.permutation(codes) << 4)).astype(np.uint8)
        if self.form.block == NV_BLOCK:
            scale = np.geomspace(100, 448, TABLE).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        else:
            scale = (118 + np.arange(TABLE) * 3 // TABLE).astype(np.uint8)
        for name in "ab":
            found |= {f"{name}_q": payload, f"{name}_s": scale}
            found[f"{name}_t"] = np.full(TABLE, np.float32(5.5) / NV_LARGEST, np.float32)
        return found

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``exact`` at crossing rows and columns."""
        m, n, k = self.dims(workload)
        picked = {"a": spread_picks(m, SAMPLED, rng), "b": spread_picks(n, SAMPLED, rng)}
        values = {}
        for name, lines in picked.items():
            operand = {
                "q": elements.at(f"{name}_q", lines, np.arange(k // self.form.packed)),
                "s": elements.at(f"{name}_s", lines, np.arange(k // self.form.block)),
            }
            if self.form.block == NV_BLOCK:
                operand["t"] = elements.at(f"{name}_t", np.arange(1))
            values[name] = dequantised(self.form, operand)
        return Sample({"c": (picked["a"], picked["b"])}, {"exact": {"c": values["a"] @ values["b"].T}})

    def bytes(self, workload: Workload) -> int:
        """Operands and scales once, result once."""
        m, n, k = self.dims(workload)
        return (m + n) * (k // self.form.packed + k // self.form.block) + 2 * m * n


def _operand(inputs: Arrays, name: str) -> Arrays:
    return {part: inputs[f"{name}_{part}"] for part in "qst" if f"{name}_{part}" in inputs}
