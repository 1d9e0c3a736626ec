"""FP8 products as published for AMD's matrix cores, to be compiled for them: row-major operands, no transposed copies.

``wgrad``: dw [N, K] = dy^T . x, contracted over tokens; operands quantised in 128 x 1 blocks. ``forward``: y [M, N] =
x [M, K] . w [N, K]^T, scales as in ``gemm_fp8_blockwise``. They exist for what a compiler makes of them
(``experiments/studies/compile_only/compile_only.py``).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tilewright.seeds.gemm_fp8_blockwise.operator import BlockwiseGemm, dequantise_rows
from tilewright.seeds.gemm_fp8_blockwise.operator import operators as blockwise
from tilewright.seeds.operator import Arrays, SeedKernel, Suite, TensorSpec, Workload

KERNELS = Path(__file__).parent / "kernels"

SUITES = {
    "isa": Suite(
        "isa",
        (Workload("1024^3", {"M": 1024, "N": 1024, "K": 1024}),),
        check=(Workload("check", {"M": 256, "N": 128, "K": 256}),),
    )
}


@dataclasses.dataclass(frozen=True)
class RowMajorWgrad(BlockwiseGemm):
    """dw [N, K] in bf16 from ``x_q`` [M, K] and ``dy_q`` [M, N] with scales [M/128, K] and [M/128, N]."""

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        m, n, k = (workload.dims[name] for name in "MNK")
        return (
            TensorSpec("x_q", (m, k), "float8_e4m3fn"),
            TensorSpec("x_s", (m // 128, k), "float32"),
            TensorSpec("dy_q", (m, n), "float8_e4m3fn"),
            TensorSpec("dy_s", (m // 128, n), "float32"),
        )

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        return (TensorSpec("c", (workload.dims["N"], workload.dims["K"]), "bfloat16"),)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """The operands of the NT product dy^T . (x^T)^T, turned to lie along the tokens."""
        turned = {"M": workload.dims["N"], "N": workload.dims["K"], "K": workload.dims["M"]}
        made = super().make_inputs(Workload(workload.id, turned), seed, kind)
        return {
            "x_q": made["b_q"].T.copy(),
            "x_s": made["b_s"],
            "dy_q": made["a_q"].T.copy(),
            "dy_s": made["a_s"],
        }

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        x = dequantise_rows(inputs["x_q"].T, inputs["x_s"])
        dy = dequantise_rows(inputs["dy_q"].T, inputs["dy_s"])
        return {"exact": {"c": dy @ x.T}}


def operators() -> dict[str, BlockwiseGemm]:
    """``wgrad`` and ``forward``."""

    def seeds(name: str) -> dict[str, SeedKernel]:
        return {name: SeedKernel(name, (KERNELS / f"{name}.py").read_text(encoding="utf-8"))}

    forward = dataclasses.replace(blockwise()["gemm_nt"], suites=SUITES, kernels=seeds("forward"))
    return {
        "wgrad": RowMajorWgrad("isa_findings/wgrad", 1, SUITES, seeds("wgrad")),
        "forward": dataclasses.replace(forward, name="isa_findings/forward"),
    }
