"""2D block quantisation (256 x 256 or 128 x 128) of bf16 matrices, and the FP8 product under such scales.

``quant_<edge>``: x [M, K] -> q [M, K] e4m3 and s [ceil(M/edge), ceil(K/edge)] float32, with
    s = 448 / max(amax over the block, 1e-4)   float32, correctly rounded: the scale that *multiplies*
    q = RNE cast of clamp(x * s, +-448)
``gemm_<edge>``: c [M, N] = sum over blocks k of a_q . b_q^T / (a_s b_s), bf16, float32 accumulation. A kernel that
multiplies the whole accumulator by each step's scales, as a published draft does, is right for equal scales only.
Ragged edges are allowed but for K, a multiple of 128.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import (
    AMAX_FLOOR,
    FP8_MAX,
    PRODUCT_KINDS,
    QUANTISER_KINDS,
    cast,
    draw,
    factors,
    generator,
    usual_sizes,
)
from tilewright.seeds.inlined import inlined
from tilewright.seeds.operator import Arrays, BitExactGate, Gate, SeedKernel, SnrGate, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import TABLE, Elements, Sample, members, normal_table, spread_picks
from tilewright.seeds.shaped import Product, Shaped, gemm, matrix, suites_of

STEP = 128
"""K is a multiple of this."""

SAMPLED, SAMPLED_BLOCKS = 96, 2
"""Rows and columns of a big product that are checked; blocks along each axis of a big matrix."""

_KERNELS = Path(__file__).parent / "kernels"


def widened(s: np.ndarray, edge: int, shape: tuple[int, ...]) -> np.ndarray:
    """Block scales -> one value per element of ``shape``."""
    wide = np.repeat(np.repeat(s, edge, axis=0), edge, axis=1)
    return wide[: shape[0], : shape[1]]


def quantise_grid(x: np.ndarray, edge: int) -> tuple[np.ndarray, np.ndarray]:
    """``x`` [R, C] -> (q [R, C] e4m3, s [ceil(R/edge), ceil(C/edge)] float32)."""
    rows, cols = x.shape
    tall, wide = -(-rows // edge), -(-cols // edge)
    padded = np.zeros((tall * edge, wide * edge), np.float32)
    padded[:rows, :cols] = x.astype(np.float32)
    amax = np.abs(padded.reshape(tall, edge, wide, edge)).max(axis=(1, 3))
    s = FP8_MAX / np.maximum(amax, AMAX_FLOOR)
    return cast(padded[:rows, :cols] * widened(s, edge, x.shape)), s


def dequantise_grid(q: np.ndarray, s: np.ndarray, edge: int) -> np.ndarray:
    """float64 values of a quantised matrix."""
    return q.astype(np.float64) / widened(s.astype(np.float64), edge, q.shape)


@dataclass(frozen=True)
class GridQuant(Shaped):
    """The quantiser with blocks of ``edge`` x ``edge``."""

    name: str
    edge: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = (BitExactGate("bits", "bits", ("q", "s")),)
    input_kinds: tuple[str, ...] = QUANTISER_KINDS
    memory_bound: bool = True

    @property
    def constants(self) -> Mapping[str, int]:
        """The block's edge."""
        return {"block": self.edge}

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``x`` [M, K] bf16."""
        m, k = dims
        return (TensorSpec("x", (m, k), "bfloat16"),)

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``q`` and ``s``."""
        m, k = dims
        grid = (-(-m // self.edge), -(-k // self.edge))
        return (TensorSpec("q", (m, k), "float8_e4m3fn"), TensorSpec("s", grid, "float32"))

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """A fresh ``x``."""
        m, k = self.dims(workload)
        return {"x": draw(generator(seed, kind), m, k, kind)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``bits``: what the contract gives."""
        q, s = quantise_grid(inputs["x"], self.edge)
        return {"bits": {"q": q, "s": s}}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Normal values."""
        return {"x": normal_table(1.0).astype("bfloat16")}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``bits`` where a few whole blocks of rows and of columns cross."""
        m, k = self.dims(workload)
        picked = [spread_picks(-(-size // self.edge), SAMPLED_BLOCKS, rng) for size in (m, k)]
        axes = []
        for blocks, size in zip(picked, (m, k), strict=True):
            index = members(blocks, self.edge)
            axes.append(index[index < size])
        q, s = quantise_grid(elements.at("x", *axes), self.edge)
        return Sample({"q": tuple(axes), "s": tuple(picked)}, {"bits": {"q": q, "s": s}})

    def flops(self, workload: Workload) -> int:
        """One multiplication per element."""
        m, k = self.dims(workload)
        return m * k


@dataclass(frozen=True)
class GridGemm(Product):
    """The product under scales of ``edge`` x ``edge`` blocks of both operands."""

    name: str
    edge: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    input_kinds: tuple[str, ...] = PRODUCT_KINDS

    @property
    def gates(self) -> tuple[Gate, ...]:
        """A matrix unit may add up a scale block."""
        exact = SnrGate("exact", "exact", 45.0, usual="usual", short=self.edge)
        return (SnrGate("field", "exact", 25.0), exact)

    @property
    def constants(self) -> Mapping[str, int]:
        """The block's edge."""
        return {"block": self.edge}

    multiples = MappingProxyType({"K": STEP})

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``."""
        m, n, k = dims
        found = []
        for name, rows in (("a", m), ("b", n)):
            grid = (-(-rows // self.edge), -(-k // self.edge))
            found += [TensorSpec(f"{name}_q", (rows, k), "float8_e4m3fn"), TensorSpec(f"{name}_s", grid, "float32")]
        return tuple(found)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands, quantised by the contract."""
        m, n, k = self.dims(workload)
        rng = generator(seed, kind)
        a, b = factors(rng, seed, kind, m, n, k, most=7, width=self.edge)
        (a_q, a_s), (b_q, b_s) = quantise_grid(a, self.edge), quantise_grid(b, self.edge)
        return {"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``exact``: the float64 product of the dequantised operands."""
        a = dequantise_grid(inputs["a_q"], inputs["a_s"], self.edge)
        b = dequantise_grid(inputs["b_q"], inputs["b_s"], self.edge)
        return {"exact": {"c": a @ b.T}, "usual": {"c": usual_sizes(a, b)}}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Payloads as quantised normal data has them, scales of block maxima between 3 and 6 (log-uniform)."""
        payload = cast(normal_table(float(FP8_MAX) / 4.3))
        scale = (float(FP8_MAX) / np.geomspace(3.0, 6.0, TABLE)).astype(np.float32)
        return {"a_q": payload, "a_s": scale, "b_q": payload, "b_s": scale}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``exact`` at crossing rows and columns, in nearly every tile row and column."""
        m, n, k = self.dims(workload)
        rows, columns = spread_picks(m, SAMPLED, rng), spread_picks(n, SAMPLED, rng)
        depth = np.arange(k)
        parts = []
        for name, picked in (("a", rows), ("b", columns)):
            scale = elements.at(f"{name}_s", picked // self.edge, depth // self.edge).astype(np.float64)
            parts.append(elements.at(f"{name}_q", picked, depth).astype(np.float64) / scale)
        answers = {"exact": {"c": parts[0] @ parts[1].T}, "usual": {"c": usual_sizes(*parts)}}
        return Sample({"c": (rows, columns)}, answers)


MATRICES = (*((n, n) for n in (2048, 4096, 8192, 16384, 32768)), (6656, 16384), (16384, 13312))
"""Published shapes of the quantiser."""

FEW_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
SQUARES = (2048, 4096, 8192)


def operators() -> dict[str, GridQuant | GridGemm]:
    """The family's operators by recipe name."""
    found: dict[str, GridQuant | GridGemm] = {}
    published = {"published": [matrix(*shape) for shape in MATRICES], "tiny": [matrix(256, 256)]}
    matrices = suites_of(published, (matrix(300, 272, "check/"), matrix(256, 512, "check/")))
    lists = {
        "few-rows": [gemm(m, 8192, 8192) for m in FEW_ROWS],
        "squares": [gemm(n, n, n) for n in SQUARES],
        "tiny": [gemm(16, 128, 256)],
    }
    products = suites_of(lists, (gemm(72, 320, 1152, "check/"), gemm(264, 128, 256, "check/")))
    for edge in (256, 128):
        quant = _seeds(edge, "held", "whole", whole={"num_warps": 16})
        found[f"quant_{edge}"] = GridQuant(f"gridquant/quant_{edge}", edge, matrices, quant)
        product = _seeds(edge, "persistent", "persistent_ws")
        found[f"gemm_{edge}"] = GridGemm(f"gridquant/gemm_{edge}", edge, products, product)
    return found


def _seeds(edge: int, *names: str, **overrides: Mapping[str, object]) -> Mapping[str, SeedKernel]:
    texts = {name: inlined(_KERNELS / f"{name}.py") for name in names}
    fixed = {name: {"edge": edge, **overrides.get(name, {})} for name in names}
    return MappingProxyType({name: SeedKernel(name, texts[name], fixed[name]) for name in names})
