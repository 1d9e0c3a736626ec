"""The blockwise FP8 recipe in plain torch: what a promoted kernel must equal, and what stands in for one.

    amax = max(|x| over the block, 1e-4)   scale = 448 / amax   q = e4m3(clamp(x * scale, +-448))   s = 1 / scale
Blocks are 1 x 128 (scales stored [C/128, R]) or 128 x 128 (scales [R/128, C/128]); all scales float32.
"""

from collections.abc import Callable, Mapping

import torch

BLOCK = 128
FP8_MAX = 448.0
AMAX_FLOOR = 1e-4

Tensors = tuple[torch.Tensor, ...]
Named = Mapping[str, torch.Tensor]


def _scales(amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # torch writes ``448 / amax`` as a product with the reciprocal, which rounds twice
    scale = torch.div(torch.full_like(amax, FP8_MAX), amax.clamp_min(AMAX_FLOOR))
    return scale, torch.div(torch.ones_like(scale), scale)


def _cast(scaled: torch.Tensor) -> torch.Tensor:
    return scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def quantise_rows(x: torch.Tensor) -> Tensors:
    """``x`` [R, C] -> (q [R, C] e4m3, s [C/128, R])."""
    rows, cols = x.shape
    blocks = x.float().reshape(rows, cols // BLOCK, BLOCK)
    scale, inverse = _scales(blocks.abs().amax(dim=2))
    return _cast(blocks * scale[:, :, None]).reshape(rows, cols), inverse.t().contiguous()


def quantise_blocks(x: torch.Tensor) -> Tensors:
    """``x`` [R, C] -> (q [R, C] e4m3, s [R/128, C/128], rounded up)."""
    rows, cols = x.shape
    if short := -rows % BLOCK:
        q, s = quantise_blocks(torch.nn.functional.pad(x, (0, 0, 0, short)))
        return q[:rows], s
    blocks = x.float().reshape(rows // BLOCK, BLOCK, cols // BLOCK, BLOCK)
    scale, inverse = _scales(blocks.abs().amax(dim=(1, 3)))
    return _cast(blocks * scale[:, None, :, None]).reshape(rows, cols), inverse


def dequantise_rows(q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """(q [R, C], s [C/128, R]) -> float32 [R, C]."""
    rows, cols = q.shape
    return (q.float().reshape(rows, cols // BLOCK, BLOCK) * s.t()[:, :, None]).reshape(rows, cols)


def dequantise_blocks(q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """(q [R, C], s [R/128, C/128], rounded up) -> float32 [R, C]."""
    rows, cols = q.shape
    if rows % BLOCK:
        return q.float() * s.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)
    blocks = q.float().reshape(rows // BLOCK, BLOCK, cols // BLOCK, BLOCK)
    return (blocks * s[:, None, :, None]).reshape(rows, cols)


def _product(a: torch.Tensor, b: torch.Tensor) -> Tensors:
    if a.device.type != "cpu":
        a, b = a.bfloat16(), b.bfloat16()
    return ((a @ b.t()).bfloat16(),)


def product(inputs: Named) -> Tensors:
    """a . b^T [M, N] in bf16 from the dequantised operands, b in 128 x 128 blocks.

    In float32 on a CPU; from operands rounded to bf16 elsewhere (51 dB against float64, where a kernel reads 55).
    """
    a = dequantise_rows(inputs["a_q"], inputs["a_s"])
    return _product(a, dequantise_blocks(inputs["b_q"], inputs["b_s"]))


def product_rows(inputs: Named) -> Tensors:
    """As ``product``, with b in 1 x 128 blocks."""
    a = dequantise_rows(inputs["a_q"], inputs["a_s"])
    return _product(a, dequantise_rows(inputs["b_q"], inputs["b_s"]))


def serving_linear(inputs: Named) -> Tensors:
    """x . w^T [M, N] in bf16, x quantised in rows, w in 128 x 128 blocks before."""
    q, s = quantise_rows(inputs["x"])
    return product({"a_q": q, "a_s": s, "b_q": inputs["w_q"], "b_s": inputs["w_s"]})


def _dual(quantise: Callable[[torch.Tensor], Tensors], x: torch.Tensor) -> Tensors:
    return (*quantise(x), *quantise(x.t().contiguous()))


FAMILY = "gemm_fp8_blockwise"
REFERENCES: dict[str, Callable[[Named], Tensors]] = {
    f"{FAMILY}/gemm_nt": product,
    f"{FAMILY}/gemm_nt_rows": product_rows,
    f"{FAMILY}/linear": serving_linear,
    f"{FAMILY}/quant_1x128": lambda inputs: quantise_rows(inputs["x"]),
    f"{FAMILY}/quant_128x128": lambda inputs: quantise_blocks(inputs["x"]),
    f"{FAMILY}/quant_dual": lambda inputs: _dual(quantise_rows, inputs["x"]),
    f"{FAMILY}/quant_128x128_dual": lambda inputs: _dual(quantise_blocks, inputs["x"]),
}
"""Operator to a function of its operands by name: what any promoted kernel of it must compute."""
