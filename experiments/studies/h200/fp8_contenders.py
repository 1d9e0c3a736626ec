"""What the FP8 benchmark compares: bf16, vendor, torchao and this project's kernels, as callables on one GPU.

Everything takes torch tensors on the current CUDA device. Peers that cannot be imported are left out.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

from testkit import ROOT

KERNELS = ROOT / "seeds" / "gemm_fp8_blockwise" / "kernels"

Params = dict[str, Any]
Operands = dict[str, torch.Tensor]

_LOADED: dict[str, ModuleType] = {}


def loaded(source: str) -> ModuleType:
    """A kernel's module, loaded once, from a real file: Triton reads a kernel's source again."""
    if source not in _LOADED:
        path = Path(tempfile.mkdtemp()) / "kernel.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"kernel_{len(_LOADED)}", path)
        assert spec is not None and spec.loader is not None
        _LOADED[source] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_LOADED[source])
    return _LOADED[source]


@cache
def _seed_source(name: str) -> str:
    return (KERNELS / f"{name}.py").read_text(encoding="utf-8")


def kernel(name: str, params: Params | None = None) -> Callable[[Operands], tuple[torch.Tensor, ...]]:
    """The seed kernel ``name`` of the blockwise family, with ``params`` over its DEFAULTS."""
    module = loaded(_seed_source(name))
    full = {**module.DEFAULTS, **(params or {})}
    return lambda inputs: module.launch(inputs, full)


def chosen(table: dict[str, Any], dims: Mapping[str, int]) -> str:
    """The genome of a shape that a campaign's dispatch table lists. Raises StopIteration for another shape."""
    entries = table["entries"]
    return str(next(e["genome"] for e in entries if all(e["workload"][n] == s for n, s in dims.items())))


def dispatched(
    table: Mapping[str, Any], dims: Mapping[str, int]
) -> Callable[[Operands], tuple[torch.Tensor, ...]]:
    """What a campaign's dispatch table (``evolve.campaign.dispatch_table``) chooses for a shape."""
    genome = table["genomes"][chosen(table, dims)]
    module = loaded(genome["source"])
    return lambda inputs: module.launch(inputs, genome["params"])


def scaled_product(x: Operands) -> torch.Tensor:
    """The vendor's blockwise product (``scaled_mm``), B scales per 128 x 128 block or per row of B.

    B's block scales are padded to a multiple of 4 along K/128: unpadded they give silently wrong results.
    """
    kinds = F.ScalingType
    if x["b_s"].shape[1] == x["b_q"].shape[0]:
        b_scale, kind = x["b_s"].T, kinds.BlockWise1x128
    else:
        b_scale, kind = F.pad(x["b_s"], (0, -x["b_s"].shape[1] % 4)).T, kinds.BlockWise128x128
    return F.scaled_mm(
        x["a_q"],
        x["b_q"].T,
        scale_a=x["a_s"].T,
        scale_recipe_a=kinds.BlockWise1x128,
        scale_b=b_scale,
        scale_recipe_b=kind,
        output_dtype=torch.bfloat16,
    )


def deepgemm_product() -> Callable[[Operands], torch.Tensor] | None:
    """DeepGEMM's product with B scales per 128 x 128 block; None if it is not importable.

    It compiles a kernel at the first call of a shape, and takes A's scales as they are: along M, M a multiple of 4.
    """
    try:
        import deep_gemm
    except ImportError:
        return None

    def product(x: Operands) -> torch.Tensor:
        out = torch.empty((x["a_q"].shape[0], x["b_q"].shape[0]), dtype=torch.bfloat16)
        deep_gemm.fp8_gemm_nt((x["a_q"], x["a_s"].T), (x["b_q"], x["b_s"]), out)
        return out

    return product


def per_tensor_product(x: Operands) -> torch.Tensor:
    """Another, coarser recipe: one scale per operand. The practical ceiling of an fp8 product here."""
    one = torch.ones((), dtype=torch.float32)
    return torch._scaled_mm(x["a_q"], x["b_q"].T, one, one, out_dtype=torch.bfloat16)


def bf16_step(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """y, dx, dw of a linear layer through autograd in bf16."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = F.linear(x, w)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    return y.detach(), dx, dw


def fp8_step(
    x: torch.Tensor,
    w: torch.Tensor,
    dy: torch.Tensor,
    *,
    product: Callable[[Operands], torch.Tensor],
    wgrad: Callable[[Operands], torch.Tensor],
    quantise: Mapping[str, Params],
) -> tuple[torch.Tensor, ...]:
    """y, dx, dw with every quantisation: x, dy and w in both directions from one read each, three NT products.

    ``quantise``: kernels of "rows" (dy), "blocks" (w) and "activations" (x; as dy without).
    """
    dual, blocks = quantise["rows"], quantise["blocks"]
    rows_kernel = kernel(dual["kernel"], dual["params"])
    activations = quantise.get("activations", dual)
    x_q, x_s, xt_q, xt_s = kernel(activations["kernel"], activations["params"])({"x": x})
    w_q, w_s, wt_q, wt_s = kernel(blocks["kernel"], blocks["params"])({"x": w})
    y = product({"a_q": x_q, "a_s": x_s, "b_q": w_q, "b_s": w_s})
    dy_q, dy_s, dyt_q, dyt_s = rows_kernel({"x": dy})
    dx = product({"a_q": dy_q, "a_s": dy_s, "b_q": wt_q, "b_s": wt_s})
    dw = wgrad({"a_q": dyt_q, "a_s": dyt_s, "b_q": xt_q, "b_s": xt_s})
    return y, dx, dw


def torchao_step(use_triton: bool) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    """torchao's blockwise training product with the vendor's or its own Triton GEMMs; None if not importable."""
    try:
        from torchao.prototype.blockwise_fp8_training.linear import fp8_blockwise_mm
    except ImportError:
        return None

    def step(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = fp8_blockwise_mm.apply(x, w, 128, torch.bfloat16, use_triton)
        dx, dw = torch.autograd.grad(y, (x, w), dy)
        return y.detach(), dx, dw

    return step


def quantised_operands(m: int, n: int, k: int, *, rows: bool = False) -> Operands:
    """Fresh random operands of one product, quantised by this family's kernels (held to their gates elsewhere)."""
    a = torch.randn(m, k, dtype=torch.bfloat16)
    b = torch.randn(n, k, dtype=torch.bfloat16)
    a_q, a_s = kernel("quant_rows")({"x": a})
    b_q, b_s = kernel("quant_rows" if rows else "quant_blocks")({"x": b})
    return {"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s}


def sampled_snr(x: Operands, out: torch.Tensor, seed: int, samples: int = 48) -> float:
    """SNR in dB of ``out`` against the float64 product of the dequantised operands, on random rows and columns."""
    m, n = out.shape
    rng = torch.Generator("cpu").manual_seed(seed)
    rows = torch.randint(0, m, (samples,), generator=rng, device="cpu").cuda()
    cols = torch.randint(0, n, (samples,), generator=rng, device="cpu").cuda()
    signal = noise = torch.zeros((), dtype=torch.float64)
    a, b = _dequantised(x, "a", rows), _dequantised(x, "b", cols)
    for start in range(0, n, 8192):
        some = torch.arange(start, min(n, start + 8192))
        reference = a @ _dequantised(x, "b", some).T
        signal = signal + reference.square().sum()
        noise = noise + (reference - out[rows][:, some].double()).square().sum()
    for start in range(0, m, 8192):
        some = torch.arange(start, min(m, start + 8192))
        reference = _dequantised(x, "a", some) @ b.T
        signal = signal + reference.square().sum()
        noise = noise + (reference - out[some][:, cols].double()).square().sum()
    return float(10 * torch.log10(signal / noise))


def _dequantised(x: Operands, side: str, rows: torch.Tensor) -> torch.Tensor:
    """Rows of operand ``a`` or ``b`` in float64."""
    q, s = x[f"{side}_q"], x[f"{side}_s"]
    per_row = side == "a" or s.shape[1] == q.shape[0]
    scales = s.T[rows] if per_row else s[rows // 128]
    return q[rows].double() * scales.double().repeat_interleave(128, dim=1)
