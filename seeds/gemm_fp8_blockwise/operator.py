"""Blockwise FP8 training: quantisers and the NT products of forward, dgrad and wgrad, on pre-quantised operands.

How operands are quantised, and how scales are stored, is in ``contract.py``.

Hopper's fp8 matrix instruction takes operands with the contracted dimension contiguous, so the quantisers also
write *transposed* copies, and all three products are NT:
    forward  y  [M, N] = x [M, K]    . w [N, K]^T      rows x blocks     ``gemm_nt``
    dgrad    dx [M, K] = dy [M, N]   . w^T [K, N]^T    rows x blocks     ``gemm_nt``
    wgrad    dw [N, K] = dy^T [N, M] . x^T [K, M]^T    rows x rows       ``gemm_nt_rows``

``grouped.py`` has the products of an MoE layer's experts, ``linear.py`` a layer that serves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import (
    BLOCK,
    PRODUCT_GATES,
    PRODUCT_KINDS,
    QUANTISER_KINDS,
    dequantise_blocks,
    dequantise_rows,
    draw,
    factors,
    generator,
    operand,
    product_tables,
    quantise_blocks,
    quantise_rows,
    usual_sizes,
)
from tilewright.seeds.gemm_fp8_blockwise.grouped import DepthGroups, RowGroups, groups
from tilewright.seeds.gemm_fp8_blockwise.linear import ServingLinear, serving
from tilewright.seeds.gemm_fp8_blockwise.shapes import (
    FP8_GROUPED,
    FP8_ROWS,
    FP8_SMALL,
    gemm_suites,
    matrix_suites,
    wgrad_suites,
)
from tilewright.seeds.inlined import inlined
from tilewright.seeds.operator import Arrays, BitExactGate, Gate, SeedKernel, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import Elements, Sample, members, normal_table, spread_picks
from tilewright.seeds.shaped import Product, Shaped

SAMPLED = 96
"""Rows, and columns, of a big product that are checked."""

SAMPLED_BLOCKS = 4
"""Blocks of rows, and of columns, of a big matrix whose quantisation is checked."""

_KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class BlockwiseGemm(Product):
    """C [M, N] = A . B^T in bf16 from e4m3 operands; A has 1 x 128 scales, B 128 x 128 or 1 x 128 (``columns``)."""

    name: str
    columns: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = PRODUCT_GATES
    input_kinds: tuple[str, ...] = PRODUCT_KINDS

    @property
    def constants(self) -> Mapping[str, int]:
        """``columns`` is 1 when B's scales are per row of B (per column of C); ``ahead`` where A is quantised here."""
        return {"block": BLOCK, "columns": self.columns, "ahead": 0, "groups": 0}

    multiples = MappingProxyType({"K": BLOCK})

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``."""
        m, n, k = dims
        return (*operand("a", m, k), *operand("b", n, k, blocks=not self.columns))

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands, quantised by the contract from matrices that ``draw`` distributes as ``kind``."""
        m, n, k = self.dims(workload)
        rng = generator(seed, kind)
        a, b = factors(rng, seed, kind, m, n, k)
        a_q, a_s = quantise_rows(a)
        b_q, b_s = (quantise_rows if self.columns else quantise_blocks)(b)
        return {"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``exact``: the float64 product of the dequantised operands; ``usual``: how large its elements usually are."""
        a = dequantise_rows(inputs["a_q"], inputs["a_s"])
        b = (dequantise_rows if self.columns else dequantise_blocks)(inputs["b_q"], inputs["b_s"])
        return {"exact": {"c": a @ b.T}, "usual": {"c": usual_sizes(a, b)}}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Payloads as quantised normal data has them, scales of block maxima between 1.6 and 4.9 (log-uniform)."""
        return product_tables()

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``exact``: the float64 product at crossing rows and columns, in nearly every tile row and column."""
        m, n, k = self.dims(workload)
        rows, columns = spread_picks(m, SAMPLED, rng), spread_picks(n, SAMPLED, rng)
        depth, steps = np.arange(k), np.arange(k // BLOCK)
        a_s = elements.at("a_s", steps, rows)
        a = dequantise_rows(elements.at("a_q", rows, depth), a_s)
        b_q = elements.at("b_q", columns, depth)
        b_s = elements.at("b_s", steps, columns) if self.columns else elements.at("b_s", columns // BLOCK, steps).T
        exact = a @ dequantise_rows(b_q, b_s).T
        return Sample({"c": (rows, columns)}, {"exact": {"c": exact}})


@dataclass(frozen=True)
class Quantiser(Shaped):
    """bf16 ``x`` [M, K] -> e4m3 copies and scales. ``rows``/``blocks``: one copy; ``*_dual``: a transposed one too."""

    name: str
    shape: str
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    input_kinds: tuple[str, ...] = QUANTISER_KINDS
    memory_bound: bool = True

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Payload and scales bit for bit."""
        names = ("q", "s", "q_t", "s_t") if self.dual else ("q", "s")
        return (BitExactGate("bits", "bits", names),)

    @property
    def dual(self) -> bool:
        """Whether the transposed copy is written as well."""
        return self.shape.endswith("dual")

    constants = MappingProxyType({"block": BLOCK})

    @property
    def multiples(self) -> Mapping[str, int]:
        """Blocks along K are whole, and, but for 1 x 128 rows, along M."""
        return {"K": BLOCK} if self.shape == "rows" else {"M": BLOCK, "K": BLOCK}

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``x`` [M, K] in bfloat16."""
        return (TensorSpec("x", dims, "bfloat16"),)

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``q`` [M, K], ``s``; for a dual quantiser also ``q_t`` [K, M] (transposed) and ``s_t``."""
        m, k = dims
        blocks = self.shape.startswith("blocks")
        s = (m // BLOCK, k // BLOCK) if blocks else (k // BLOCK, m)
        first = (TensorSpec("q", (m, k), "float8_e4m3fn"), TensorSpec("s", s, "float32"))
        if not self.dual:
            return first
        s_t = (m // BLOCK, k) if self.shape == "rows_dual" else (k // BLOCK, m // BLOCK)
        return (*first, TensorSpec("q_t", (k, m), "float8_e4m3fn"), TensorSpec("s_t", s_t, "float32"))

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """A fresh ``x``, distributed as ``kind`` (see ``draw``)."""
        m, k = self.dims(workload)
        return {"x": draw(generator(seed, kind), m, k, kind)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``bits``: what the contract gives, bit for bit."""
        x = inputs["x"]
        quantise = quantise_blocks if self.shape.startswith("blocks") else quantise_rows
        q, s = quantise(x)
        bits = {"q": q, "s": s}
        if self.dual:
            turned = quantise_rows if self.shape == "rows_dual" else quantise_blocks
            bits["q_t"], bits["s_t"] = turned(np.ascontiguousarray(x.T))
        return {"bits": bits}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Standard normal values in bf16."""
        return {"x": normal_table(1.0).astype(ml_dtypes.bfloat16)}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``bits`` where a few blocks of rows and of columns cross."""
        m, k = self.dims(workload)
        down = spread_picks(-(-m // BLOCK), SAMPLED_BLOCKS, rng)
        across = spread_picks(k // BLOCK, SAMPLED_BLOCKS, rng)
        rows, cols = members(down, BLOCK), members(across, BLOCK)
        rows = rows[rows < m]
        bits = self.oracle(workload, {"x": elements.at("x", rows, cols)})["bits"]
        blocks = self.shape.startswith("blocks")
        where = {
            "q": (rows, cols),
            "s": (down, across) if blocks else (across, rows),
            "q_t": (cols, rows),
            "s_t": (down, cols) if self.shape == "rows_dual" else (across, down),
        }
        return Sample({name: where[name] for name in bits}, {"bits": bits})

    def flops(self, workload: Workload) -> int:
        """One multiplication per element and copy."""
        m, k = self.dims(workload)
        return m * k * (2 if self.dual else 1)


Operators = BlockwiseGemm | Quantiser | ServingLinear | RowGroups | DepthGroups


def operators() -> dict[str, Operators]:
    """The family's operators by recipe name."""
    family = "gemm_fp8_blockwise"
    rows, block = _seeds("fp8_rows")["fp8_rows"], _seeds("fp8_block")["fp8_block"]
    few = {
        "fp8_rows": replace(rows, points=FP8_ROWS),
        "fp8_small": replace(block, name="fp8_small", overrides=FP8_SMALL[0], points=FP8_SMALL[1:]),
    }
    products = {
        "gemm_nt": BlockwiseGemm(f"{family}/gemm_nt", 0, gemm_suites(), {**_seeds("pointer", "fp8_block"), **few}),
        "gemm_nt_rows": BlockwiseGemm(f"{family}/gemm_nt_rows", 1, wgrad_suites(), _seeds("pointer", "fp8_block")),
    }
    quantisers = {
        recipe: Quantiser(f"{family}/{recipe}", shape, matrix_suites(few_rows=shape == "rows"), _seeds(*kernels))
        for recipe, shape, kernels in (
            ("quant_1x128", "rows", ("quant_rows",)),
            ("quant_128x128", "blocks", ("quant_blocks",)),
            ("quant_dual", "rows_dual", ("quant_dual_tma",)),
            ("quant_128x128_dual", "blocks_dual", ("quant_blocks_dual",)),
        )
    }
    many = replace(block, name="fp8_grouped", overrides=FP8_GROUPED[0], points=FP8_GROUPED[1:])
    experts = groups(family, {"fp8_grouped": many}, _seeds("k_grouped"))
    layers = serving(family, few)
    return {**products, **quantisers, **layers, **experts}


def _seeds(*names: str) -> Mapping[str, SeedKernel]:
    """Seed kernels by name from this family's ``kernels`` folder."""
    return MappingProxyType({name: SeedKernel(name, inlined(_KERNELS / f"{name}.py")) for name in names})
