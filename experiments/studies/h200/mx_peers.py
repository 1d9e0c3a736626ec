"""Peers of ``h200.mx``: a device copy, cuBLAS, torchao's casts and a bf16 product's quantiser through torch.compile."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from experiments.studies.h200 import fp8_contenders as contenders

Call = Callable[[], Any]


def copied(m: int, k: int) -> tuple[Call, int]:
    """A device copy of a bf16 matrix, and the bytes it moves."""
    x, y = torch.empty(m, k, dtype=torch.bfloat16), torch.empty(m, k, dtype=torch.bfloat16)
    return (lambda: y.copy_(x)), 4 * m * k


def quantise(c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 [M, N] -> e4m3 [M, N] and exponents uint8 [M, N/32], 1 x 32 by RCEIL, as one would write it in torch."""
    x = c.float().view(c.shape[0], -1, 32)
    bits = (x.abs().amax(-1) * (1.0 / 448.0)).view(torch.int32)
    e = ((bits >> 23) + ((bits & 0x7FFFFF) != 0).int()).clamp(max=254)
    factor = ((254 - e) << 23).view(torch.float32)
    q = (x * factor[..., None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return q.view(c.shape), e.to(torch.uint8)


def compiled_quantise(m: int, n: int) -> Callable[[torch.Tensor], Any]:
    """The same, compiled for this shape."""
    torch._dynamo.config.recompile_limit = 64
    cast = torch.compile(quantise, fullgraph=True, dynamic=False)
    cast(torch.zeros(m, n, dtype=torch.bfloat16))
    return cast


def compiled_mx(x: torch.Tensor, what: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
    """torchao's casts of ``x``, compiled, where torchao is installed: ``floor``, ``rceil``, ``swizzled``, ``dim1``."""
    if importlib.util.find_spec("torchao") is None:
        return {}
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    e4m3 = torch.float8_e4m3fn
    forms: dict[str, Callable[[torch.Tensor], Any]] = {
        "floor": lambda t: to_mx(t, e4m3, 32, ScaleCalculationMode.FLOOR),
        "rceil": lambda t: to_mx(t, e4m3, 32, ScaleCalculationMode.RCEIL),
        "swizzled": lambda t: to_mx(t, e4m3, 32, ScaleCalculationMode.FLOOR, True),
        "dim1": lambda t: to_mx(t.t().contiguous(), e4m3, 32, ScaleCalculationMode.FLOOR),
    }
    found = {}
    for name in what:
        cast = torch.compile(forms[name], fullgraph=True, dynamic=False)
        cast(x)
        found[name] = lambda cast=cast: cast(x)
    return found


def vendor_product(m: int, n: int, k: int) -> Call:
    """cuBLAS with 1 x 128 and 128 x 128 scales, bf16 out, on payloads of normal data. M is a multiple of 4."""
    x = {
        "a_q": (torch.randn(m, k) * 60).to(torch.float8_e4m3fn),
        "a_s": torch.rand(k // 128, m) + 0.5,
        "b_q": (torch.randn(n, k) * 60).to(torch.float8_e4m3fn),
        "b_s": torch.rand(n // 128, k // 128) + 0.5,
    }
    return lambda: contenders.scaled_product(x)
