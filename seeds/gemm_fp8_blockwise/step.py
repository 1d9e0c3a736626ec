"""The whole training step of a linear layer: bf16 x, w, dy to bf16 y, dx, dw with every quantisation in between.

    y  [M, N] = q(x)    . q(w)^T        x, dy in 1 x 128 blocks along the contracted dimension,
    dx [M, K] = q(dy)   . q(w^T)^T      w in 128 x 128 blocks
    dw [N, K] = q(dy^T) . q(x^T)^T

One candidate is all of it, so that evolution can trade a quantiser's layout against a product's loads. The seeds are
composed from the family's kernels (``seeds.composition``): each product and quantiser keeps genes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np

from tilewright.seeds.composition import Part, compose
from tilewright.seeds.gemm_fp8_blockwise.contract import (
    BLOCK,
    INPUT_KINDS,
    dequantise_blocks,
    dequantise_rows,
    draw,
    generator,
    quantise_blocks,
    quantise_rows,
)
from tilewright.seeds.inlined import inlined
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, SnrGate, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import Elements, Sample, members, normal_table, spread_picks
from tilewright.seeds.shaped import Product

SAMPLED = 96
"""Rows, and columns, of each product that are checked."""

SAMPLED_BLOCKS = 8
"""Blocks of w (rows for y, columns for dx) the checked columns lie in: a block's scale needs all of the block."""

LAUNCH = """
def launch(inputs, params):
    x, w, dy = inputs["x"], inputs["w"], inputs["dy"]
    x_q, x_s, xt_q, xt_s = activations_launch({"x": x}, params)
    w_q, w_s, wt_q, wt_s = weights_launch({"x": w}, params)
    dy_q, dy_s, dyt_q, dyt_s = gradients_launch({"x": dy}, params)
    (y,) = forward_launch({"a_q": x_q, "a_s": x_s, "b_q": w_q, "b_s": w_s}, params)
    (dx,) = dgrad_launch({"a_q": dy_q, "a_s": dy_s, "b_q": wt_q, "b_s": wt_s}, params)
    (dw,) = wgrad_launch({"a_q": dyt_q, "a_s": dyt_s, "b_q": xt_q, "b_s": xt_s}, params)
    return (y, dx, dw)
"""

PARTS: Mapping[str, Mapping[str, str | int]] = {
    "activations": {},
    "weights": {"M": "N"},
    "gradients": {"K": "N"},
    "forward": {"columns": 0},
    "dgrad": {"N": "K", "K": "N", "columns": 0},
    "wgrad": {"M": "N", "N": "K", "K": "M", "columns": 1},
}
"""Each part's dimensions in those of the step."""

SEEDS = {
    "plain": ("quant_dual_plain", "quant_dual_plain", "quant_blocks_dual_plain", "pointer", "pointer"),
    "gluon": ("quant_dual_tma", "quant_dual_tma", "quant_blocks_dual", "gluon_skew", "gluon_skew"),
}
"""Seed to its modules: quantisers of x, of dy, of w; product of forward and dgrad, of wgrad."""

_KERNELS = Path(__file__).parent / "kernels"


def _step_seed(name: str, modules: Mapping[str, str]) -> SeedKernel:
    """A seed whose parts are the family's modules named by ``modules``, part to module."""
    parts = [
        Part(part, module, inlined(_KERNELS / f"{module}.py"), PARTS[part])
        for part, module in modules.items()
    ]
    used = ", ".join(dict.fromkeys(modules.values()))
    doc = f"The training step of a linear layer in blockwise FP8.\n\nComposed of {used}.\n"
    return SeedKernel(name, compose(doc, parts, LAUNCH))


@dataclass(frozen=True)
class TrainingStep(Product):
    """bf16 ``x`` [M, K], ``w`` [N, K], ``dy`` [M, N] -> bf16 ``y`` [M, N], ``dx`` [M, K], ``dw`` [N, K]."""

    name: str
    suites: Mapping[str, Suite]
    gates: tuple[Gate, ...] = (SnrGate("field", "exact", 25.0), SnrGate("exact", "exact", 45.0))
    input_kinds: tuple[str, ...] = INPUT_KINDS
    matrix_kind: str = "f8"

    @cached_property
    def kernels(self) -> Mapping[str, SeedKernel]:
        """Plain Triton throughout, and the family's fastest kernels; composed when first asked for."""
        seeds = {}
        for name, (x, dy, w, product, wgrad) in SEEDS.items():
            modules = {"activations": x, "weights": w, "gradients": dy}
            modules |= {"forward": product, "dgrad": product, "wgrad": wgrad}
            seeds[name] = _step_seed(name, modules)
        return MappingProxyType(seeds)

    @property
    def constants(self) -> Mapping[str, int]:
        """The block edge."""
        return {"block": BLOCK}

    @property
    def multiples(self) -> Mapping[str, int]:
        """Every dimension is contracted by some product."""
        return dict.fromkeys("MNK", BLOCK)

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``x``, ``w``, ``dy`` in bfloat16."""
        m, n, k = dims
        return tuple(TensorSpec(s, d, "bfloat16") for s, d in (("x", (m, k)), ("w", (n, k)), ("dy", (m, n))))

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``y``, ``dx``, ``dw`` in bfloat16."""
        m, n, k = dims
        return tuple(TensorSpec(s, d, "bfloat16") for s, d in (("y", (m, n)), ("dx", (m, k)), ("dw", (n, k))))

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh matrices, each distributed as ``kind``."""
        rng = generator(seed, kind)
        shapes = {spec.name: spec.shape for spec in self.inputs(workload)}
        return {name: draw(rng, rows, columns, kind) for name, (rows, columns) in shapes.items()}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``exact``: float64 products of what the contract's quantisers make of the inputs."""
        x, w, dy = inputs["x"], inputs["w"], inputs["dy"]
        weights = dequantise_blocks(*quantise_blocks(w))
        turned = _turned_rows(dy).T @ _turned_rows(x)
        y = dequantise_rows(*quantise_rows(x)) @ weights.T
        dx = dequantise_rows(*quantise_rows(dy)) @ weights
        return {"exact": {"y": y, "dx": dx, "dw": turned}}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Standard normal values in bf16."""
        normal = normal_table(1.0).astype(ml_dtypes.bfloat16)
        return {"x": normal, "w": normal, "dy": normal}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``exact`` at crossing rows and columns; those of y and dx that meet w lie in a few of its blocks."""
        m, n, k = self.dims(workload)
        all_m, all_n, all_k = np.arange(m), np.arange(n), np.arange(k)
        rows, wide, deep = spread_picks(m, SAMPLED, rng), _in_blocks(n, rng), _in_blocks(k, rng)
        n_blocks, n_at = _whole_blocks(wide)
        k_blocks, k_at = _whole_blocks(deep)
        w_rows = dequantise_blocks(*quantise_blocks(elements.at("w", n_blocks, all_k)))[n_at]
        w_columns = dequantise_blocks(*quantise_blocks(elements.at("w", all_n, k_blocks)))[:, k_at]
        y = dequantise_rows(*quantise_rows(elements.at("x", rows, all_k))) @ w_rows.T
        dx = dequantise_rows(*quantise_rows(elements.at("dy", rows, all_n))) @ w_columns
        n_any, k_any = spread_picks(n, SAMPLED, rng), spread_picks(k, SAMPLED, rng)
        columns = _turned_rows(elements.at("x", all_m, k_any))
        dw = _turned_rows(elements.at("dy", all_m, n_any)).T @ columns
        where = {"y": (rows, wide), "dx": (rows, deep), "dw": (n_any, k_any)}
        return Sample(where, {"exact": {"y": y, "dx": dx, "dw": dw}})

    def flops(self, workload: Workload) -> int:
        """6 M N K: three products."""
        return 3 * super().flops(workload)


def step_suites(suites: Mapping[str, Suite]) -> Mapping[str, Suite]:
    """The forward product's training suites, with checks whose every dimension is a multiple of 128."""
    check = (
        Workload("check/odd", {"M": 256, "N": 384, "K": 640}),
        Workload("check/even", {"M": 512, "N": 512, "K": 1024}),
    )
    training = ("primus84", "primus-core", "primus-few")
    return MappingProxyType({name: Suite(name, suites[name].workloads, check) for name in training})


def _turned_rows(x: np.ndarray) -> np.ndarray:
    """``x`` [R, C] quantised in 128 x 1 blocks and back, float64."""
    return dequantise_rows(*quantise_rows(np.ascontiguousarray(x.T))).T


def _in_blocks(size: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted distinct indices below ``size`` that lie in ``SAMPLED_BLOCKS`` blocks at most."""
    blocks = spread_picks(size // BLOCK, SAMPLED_BLOCKS, rng)
    each = SAMPLED // SAMPLED_BLOCKS
    return np.concatenate([block * BLOCK + spread_picks(BLOCK, each, rng) for block in blocks])


def _whole_blocks(picks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All indices of the blocks that ``picks`` lie in, and where among them the picks are."""
    blocks = np.unique(picks // BLOCK)
    every = members(blocks, BLOCK)
    return every, np.searchsorted(every, picks)
