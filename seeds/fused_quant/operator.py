"""RMSNorm and SwiGLU fused with 1 x 128 quantisation: bf16 activations become an operand of the FP8 product after.

``rmsnorm_1x128``: x [M, K], g [K] bf16; y = bf16(x / sqrt(mean(x^2 over the row) + 1e-6) * g).
``swiglu_1x128``: x [M, 2K] bf16, the gate's columns first; y = bf16(silu(gate) * up).
Within, all is float32 and rounded once, to bf16: the number an unfused program hands to its quantiser. Then q [M, K]
e4m3 and s [K/128, M] float32 as ``gemm_fp8_blockwise/quant_1x128`` makes them of y.

Gates: at least 99.9 % of codes have the bits that float64 gives, for a sum in another order may turn the rounding of y,
which is rare, and moves a code to its neighbour; scales are those of float64 within 45 dB, none off by 2 %, for one
whose block's largest value turned is off by up to 0.8 %, and with outliers a row's few scales are all that counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import BLOCK, draw, generator, quantise_rows
from tilewright.seeds.gemm_fp8_blockwise.contract import INPUT_KINDS as MATRIX_KINDS
from tilewright.seeds.inlined import inlined
from tilewright.seeds.operator import AgreementGate, Arrays, Gate, SeedKernel, SnrGate, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import Elements, Sample, normal_table, spread_picks
from tilewright.seeds.shaped import PEAK, Shaped, matrix, peaks, suites_of

EPSILON = 1e-6
INPUT_KINDS = (*MATRIX_KINDS, "repeated", "faint")
"""``faint``: every row has its own magnitude in 2^-14 .. 2^-4, where epsilon and the floor of a maximum tell; a norm's
with ``shaped.peaks``."""

SAMPLED_ROWS = 16
"""Looked at on each of several kinds of inputs, the first and the last among them."""
_KERNELS = Path(__file__).parent / "kernels"


def rmsnorm(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """x [R, K], g [K] bf16 -> bf16 [R, K], from float64."""
    wide = x.astype(np.float64)
    mean = np.square(wide).mean(axis=1, keepdims=True)
    return (wide / np.sqrt(mean + EPSILON) * g.astype(np.float64)).astype(np.float32).astype(ml_dtypes.bfloat16)


def swiglu(x: np.ndarray) -> np.ndarray:
    """x [R, 2K] bf16 -> bf16 [R, K], from float64."""
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    with np.errstate(over="ignore"):
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
    return (gate * sigmoid * up).astype(np.float32).astype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class FusedQuant(Shaped):
    """One of both; ``gated`` for SwiGLU."""

    name: str
    gated: bool
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = (
        AgreementGate("codes", "codes", ("q",), 0.999),
        SnrGate("scales", "scales", 45.0, worst=0.02, rare=0.01),
    )
    input_kinds: tuple[str, ...] = INPUT_KINDS
    memory_bound: bool = True

    constants = MappingProxyType({"block": BLOCK})
    multiples = MappingProxyType({"K": BLOCK})

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``x``, and for the norm its weight ``g``."""
        m, k = dims
        if self.gated:
            return (TensorSpec("x", (m, 2 * k), "bfloat16"),)
        return TensorSpec("x", (m, k), "bfloat16"), TensorSpec("g", (k,), "bfloat16")

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``q`` and ``s``."""
        m, k = dims
        return TensorSpec("q", (m, k), "float8_e4m3fn"), TensorSpec("s", (k // BLOCK, m), "float32")

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands; the norm's weights lie around one, of ``outliers`` are ones, of ``spread`` lie around powers
        of two, of ``repeated`` are of both signs. Of ``faint`` some gates let next to nothing of large factors pass."""
        m, k = self.dims(workload)
        rng = generator(seed, kind)
        wide = 2 * k if self.gated else k
        if kind == "faint":
            faint = draw(rng, m, wide, "randn").astype(np.float32)
            if not self.gated:
                peaks(faint, 1, BLOCK, seed)[rng.random(m) < 0.5] = PEAK
            faint *= np.exp2(rng.integers(-14, -3, (m, 1)))
            if self.gated:
                closed = rng.random(m) < 0.25
                faint[closed] *= np.float32(2.0**40)
                faint[closed, :k] = rng.uniform(-28.0, -18.0, (m, k))[closed]
            x = faint.astype(ml_dtypes.bfloat16)
        else:
            x = draw(rng, m, wide, kind)
        if self.gated:
            return {"x": x}
        g = 1.0 + (kind != "outliers") * 0.25 * rng.standard_normal(k)
        if kind in ("spread", "repeated"):
            g *= np.exp2(rng.integers(-3, 4, k)) if kind == "spread" else rng.choice((-1.0, 1.0), k)
        return {"x": x, "g": g.astype(ml_dtypes.bfloat16)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``codes`` and ``scales``."""
        q, s = self._quantised(inputs)
        return {"codes": {"q": q}, "scales": {"s": s}}

    def _quantised(self, inputs: Arrays) -> tuple[np.ndarray, np.ndarray]:
        y = swiglu(inputs["x"]) if self.gated else rmsnorm(inputs["x"], inputs["g"])
        return quantise_rows(y)

    def tables(self) -> Mapping[str, np.ndarray]:
        """Normal values; the norm's weights around one."""
        found = {"x": normal_table(1.0).astype("bfloat16")}
        return found if self.gated else {**found, "g": (1.0 + normal_table(0.25)).astype("bfloat16")}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``codes`` and ``scales`` of whole rows: a norm sees all of one."""
        m, k = self.dims(workload)
        rows, columns = spread_picks(m, SAMPLED_ROWS, rng), np.arange(k)
        inputs = {"x": elements.at("x", rows, np.arange(2 * k if self.gated else k))}
        if not self.gated:
            inputs["g"] = elements.at("g", columns)
        q, s = self._quantised(inputs)
        where = {"q": (rows, columns), "s": (np.arange(k // BLOCK), rows)}
        return Sample(where, {"codes": {"q": q}, "scales": {"s": s}})

    def flops(self, workload: Workload) -> int:
        """Some eight operations an element, none of them a product's."""
        m, k = self.dims(workload)
        return 8 * m * k


LAYERS = {"rmsnorm": (3584, 4096, 5120, 7168, 8192), "swiglu": (2048, 7168, 11008, 14336, 18944)}
"""K of published layers: hidden sizes, and widths of the gated part."""


def _suites(kind: str) -> Mapping[str, Suite]:
    check = ((72, 384), (33, 640))
    wide = 4096 if kind == "rmsnorm" else 14336
    lists = {
        "layers": [matrix(m, k) for k in LAYERS[kind] for m in (2048, 8192)],
        "llama3.1-8b": [matrix(2048, wide), matrix(8192, wide)],
        "tiny": [matrix(256, 1024)],
        "few-rows": [matrix(m, wide) for m in (1, 8, 64, 256)],
    }
    return suites_of(lists, tuple(matrix(*shape, "check/") for shape in check))


def operators() -> dict[str, FusedQuant]:
    """The family's operators by recipe name."""
    found = {}
    for kind in ("rmsnorm", "swiglu"):
        seeds = MappingProxyType({kind: SeedKernel(kind, inlined(_KERNELS / f"{kind}.py"))})
        recipe = f"{kind}_1x128"
        found[recipe] = FusedQuant(f"fused_quant/{recipe}", kind == "swiglu", _suites(kind), seeds)
    return found
