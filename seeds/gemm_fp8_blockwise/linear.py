"""A linear layer that serves: bf16 x and a weight quantised before to bf16 y, with the quantisation of x in between.

    y [M, N] = q(x) . w^T        x in 1 x 128 blocks, w [N, K] in 128 x 128 blocks

x is quantised as ``contract`` says, code for code. One candidate is all of it: one launch that quantises the few rows
it reads, or a quantiser whose end the product does not wait for to fetch weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import ml_dtypes
import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import (
    BLOCK,
    INPUT_KINDS,
    PRODUCT_GATES,
    dequantise_blocks,
    dequantise_rows,
    draw,
    generator,
    operand,
    product_tables,
    quantise_blocks,
    quantise_rows,
    usual_sizes,
)
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import Elements, Sample, normal_table, spread_picks
from tilewright.seeds.shaped import Product, gemm, suites_of

SAMPLED = 96
"""Rows, and columns, of a big product that are checked."""

LAYERS = ((4096, 4096), (59136, 8192), (8192, 29568), (7168, 2048), (5120, 5120), (2048, 2048))
"""(N, K) of projections of Llama 3, Qwen 2.5 and DeepSeek-V3, the largest among them, and a small one."""

ROWS = (1, 16, 64, 192, 320, 2048)

MOST = (8192, 4096, 4096)
"""M, N and K of the largest batch."""


@dataclass(frozen=True)
class ServingLinear(Product):
    """bf16 ``x`` [M, K], ``w_q`` [N, K] in e4m3 and ``w_s`` [N/128, K/128] -> bf16 ``y`` [M, N]."""

    name: str
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = PRODUCT_GATES
    input_kinds: tuple[str, ...] = INPUT_KINDS
    matrix_kind: str = "f8"

    @property
    def suites(self) -> Mapping[str, Suite]:
        """``serving``: 1 to 8192 rows. Checks have odd rows, and N that is no multiple of a tile."""
        check = (gemm(37, 200, 640, "check/"), gemm(1, 320, 640, "check/"), gemm(203, 384, 1280, "check/"))
        timed = [gemm(m, n, k) for n, k in LAYERS for m in ROWS]
        return suites_of({"serving": [*timed, gemm(*MOST)]}, check)

    constants = MappingProxyType({"block": BLOCK, "columns": 0, "ahead": 1, "groups": 0})
    multiples = MappingProxyType({"K": BLOCK})

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``x``, ``w_q``, ``w_s``."""
        m, n, k = dims
        return (TensorSpec("x", (m, k), "bfloat16"), *operand("w", n, k, blocks=True))

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``y`` in bfloat16."""
        m, n, _ = dims
        return (TensorSpec("y", (m, n), "bfloat16"),)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands, of matrices that ``draw`` distributes as ``kind``."""
        m, n, k = self.dims(workload)
        rng = generator(seed, kind)
        x = draw(rng, m, k, kind)
        w_q, w_s = quantise_blocks(draw(rng, n, k, kind))
        return {"x": x, "w_q": w_q, "w_s": w_s}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``exact``: the float64 product of the dequantised operands; ``usual``: how large its elements usually are."""
        x = dequantise_rows(*quantise_rows(inputs["x"]))
        w = dequantise_blocks(inputs["w_q"], inputs["w_s"])
        return {"exact": {"y": x @ w.T}, "usual": {"y": usual_sizes(x, w)}}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Standard normal x; payloads and scales of w as quantised normal data has them."""
        product = product_tables()
        x = normal_table(1.0).astype(ml_dtypes.bfloat16)
        return {"x": x, "w_q": product["b_q"], "w_s": product["b_s"]}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``exact`` at crossing rows and columns, in nearly every tile row and column."""
        m, n, k = self.dims(workload)
        rows, columns = spread_picks(m, SAMPLED, rng), spread_picks(n, SAMPLED, rng)
        depth, steps = np.arange(k), np.arange(k // BLOCK)
        x = dequantise_rows(*quantise_rows(elements.at("x", rows, depth)))
        w_s = elements.at("w_s", columns // BLOCK, steps).T
        w = dequantise_rows(elements.at("w_q", columns, depth), w_s)
        return Sample({"y": (rows, columns)}, {"exact": {"y": x @ w.T}})


def serving(family: str, kernels: Mapping[str, SeedKernel]) -> Mapping[str, ServingLinear]:
    """The operators by recipe name."""
    return MappingProxyType({"linear": ServingLinear(f"{family}/linear", kernels)})
