"""``gemm_fp8_blockwise(x, w)``: a linear layer whose three products run in blockwise FP8, for torch.

    forward  y  = x . w^T      dgrad  dx = dy . w      wgrad  dw = dy^T . x
Each step quantises its bf16 operands by the recipe of ``torch_contract`` and keeps only e4m3 copies for the backward
pass. The whole forward is one op and the whole backward another, opaque to torch.compile (they have fake
implementations and a registered gradient); eager code that nothing watches skips the dispatcher (``torch_eager``). They
launch nothing but kernels on the current stream, so that CUDA graphs can hold them.

What is kept lies in one uint8 tensor an operand: e4m3 codes of the transposed copy, then its scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from . import store
from .serving import Dispatcher
from .torch_contract import BLOCK, FAMILY, OPERANDS, REFERENCES, Tensors
from .torch_launch import Launcher, aligned

NAMESPACE = (__package__ or "tilewright_library").replace(".", "_")
E4M3 = torch.float8_e4m3fn

LAUNCHER = Launcher(Dispatcher())


def run(name: str, dims: tuple[int, ...], inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """Operator ``name`` of the family on contiguous ``inputs``: the kernel that serves ``dims``, or the reference."""
    device = next(iter(inputs.values())).device
    return LAUNCHER.serve(
        f"{FAMILY}/{name}", dims, device, REFERENCES[f"{FAMILY}/{name}"], OPERANDS[f"{FAMILY}/{name}"]
    ).call(inputs)


# -- what is kept ------------------------------------------------------------------------------------


def kept_bytes(m: int, k: int) -> int:
    """Of the transposed copy of x [M, K] in 1 x 128 blocks: codes [K, M], scales [M/128, K] float32."""
    return m * k + 4 * (m // BLOCK) * k


def kept_weight_bytes(n: int, k: int) -> int:
    """Of the transposed copy of w [N, K] in 128 x 128 blocks: codes [K, N], scales [K/128, N/128] float32."""
    return n * k + 4 * (n // BLOCK) * (k // BLOCK)


def both_weight_bytes(n: int, k: int) -> int:
    """Of both copies of w: the transposed one, padded to 16 bytes, then codes [N, K], scales [N/128, K/128]."""
    return -(-kept_weight_bytes(n, k) // 16) * 16 + kept_weight_bytes(n, k)


def _cut(kept: torch.Tensor, start: int, rows: int, cols: int, scales: tuple[int, int]) -> Tensors:
    """Codes [rows, cols] and scales, from ``start`` in a kept tensor."""
    middle = start + rows * cols
    end = middle + 4 * scales[0] * scales[1]
    return kept[start:middle].view(E4M3).view(rows, cols), kept[middle:end].view(torch.float32).view(scales)


def kept_rows(kept: torch.Tensor, m: int, k: int) -> Tensors:
    """(codes [K, M], scales [M/128, K]) of what is kept of x."""
    return _cut(kept, 0, k, m, (m // BLOCK, k))


def kept_weight(kept: torch.Tensor, n: int, k: int) -> Tensors:
    """(codes [K, N], scales [K/128, N/128]) of what is kept of w."""
    return _cut(kept, 0, k, n, (k // BLOCK, n // BLOCK))


def plain_weight(kept: torch.Tensor, n: int, k: int) -> Tensors:
    """(codes [N, K], scales [N/128, K/128]) of both copies of w."""
    start = -(-kept_weight_bytes(n, k) // 16) * 16
    return _cut(kept, start, n, k, (n // BLOCK, k // BLOCK))


def _packed(q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.cat([q.reshape(-1).view(torch.uint8), s.reshape(-1).view(torch.uint8)])


# -- the steps, operator by operator -----------------------------------------------------------------


def _product(name: str, a: Tensors, b: Tensors) -> torch.Tensor:
    operands = {"a_q": a[0], "a_s": a[1], "b_q": b[0], "b_s": b[1]}
    return run(name, (a[0].shape[0], b[0].shape[0], a[0].shape[1]), operands)[0]


def _quantise(name: str, x: torch.Tensor) -> Tensors:
    return run(name, (x.shape[0], x.shape[1]), {"x": aligned(x)})


def _entry(device: torch.device, m: int, n: int, k: int) -> Any:
    """The launch plans of the whole layer, None where one of its operators has none."""
    if device.type != "cuda":
        return None
    from .torch_eager import entry

    return entry(m, n, k, device)


def linear(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    """y [M, N], and what is kept of x and of w."""
    (m, k), n = x.shape, w.shape[0]
    layer = _entry(x.device, m, n, k)
    if layer is not None:
        return layer.forward(aligned(x), aligned(w))
    x_q, x_s, xt_q, xt_s = _quantise("quant_dual", x)
    w_q, w_s, wt_q, wt_s = _quantise("quant_128x128_dual", w)
    return _product("gemm_nt", (x_q, x_s), (w_q, w_s)), _packed(xt_q, xt_s), _packed(wt_q, wt_s)


def linear_forward_only(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """y [M, N]; nothing is kept."""
    layer = _entry(x.device, x.shape[0], w.shape[0], x.shape[1])
    if layer is not None:
        return layer.infer(aligned(x), aligned(w))
    return _product("gemm_nt", _quantise("quant_1x128", x), _quantise("quant_128x128", w))


def quantise_weight(w: torch.Tensor) -> torch.Tensor:
    """Both copies of w [N, K] in one uint8 tensor."""
    n, k = w.shape
    w_q, w_s, wt_q, wt_s = _quantise("quant_128x128_dual", w)
    parts = [_packed(wt_q, wt_s), _packed(w_q, w_s)]
    gap = both_weight_bytes(n, k) - sum(p.numel() for p in parts)
    return torch.cat([parts[0], parts[0].new_zeros(gap), parts[1]])


def linear_kept(x: torch.Tensor, kept_w: torch.Tensor, n: int) -> Tensors:
    """y [M, N] and what is kept of x, with w quantised before."""
    m, k = x.shape
    layer = _entry(x.device, m, n, k)
    if layer is not None:
        return layer.forward_kept(aligned(x), kept_w)
    x_q, x_s, xt_q, xt_s = _quantise("quant_dual", x)
    return _product("gemm_nt", (x_q, x_s), plain_weight(kept_w, n, k)), _packed(xt_q, xt_s)


def linear_infer_kept(x: torch.Tensor, kept_w: torch.Tensor, n: int) -> torch.Tensor:
    """y [M, N] alone, with w quantised before."""
    return _product("gemm_nt", _quantise("quant_1x128", x), plain_weight(kept_w, n, x.shape[1]))


def linear_backward(
    dy: torch.Tensor, kept_x: torch.Tensor, kept_w: torch.Tensor, k: int, need_x: bool, need_w: bool
) -> Tensors:
    """dx [M, K] and dw [N, K] in bf16; empty where not needed."""
    m, n = dy.shape
    layer = _entry(dy.device, m, n, k)
    if layer is not None:
        return layer.backward(aligned(dy), kept_x, kept_w, need_x, need_w)
    dy_q, dy_s, dyt_q, dyt_s = _quantise("quant_dual", dy)
    nothing = dy.new_empty(0)
    dx = _product("gemm_nt", (dy_q, dy_s), kept_weight(kept_w, n, k)) if need_x else nothing
    dw = _product("gemm_nt_rows", (dyt_q, dyt_s), kept_rows(kept_x, m, k)) if need_w else nothing.clone()
    return dx, dw


# -- the ops -----------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_LIBRARY.define("linear(Tensor x, Tensor w) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define("linear_forward_only(Tensor x, Tensor w) -> Tensor")
_LIBRARY.define("quantise_weight(Tensor w) -> Tensor")
_LIBRARY.define("linear_kept(Tensor x, Tensor kept_w, SymInt n) -> (Tensor, Tensor)")
_LIBRARY.define(
    "linear_backward(Tensor dy, Tensor kept_x, Tensor kept_w, SymInt k, bool need_x, bool need_w)"
    " -> (Tensor, Tensor)"
)
OPS = getattr(torch.ops, NAMESPACE)


def _bytes(like: torch.Tensor, size: int) -> torch.Tensor:
    return like.new_empty(size, dtype=torch.uint8)


def _fake_linear(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    (m, k), n = x.shape, w.shape[0]
    return x.new_empty((m, n)), _bytes(x, kept_bytes(m, k)), _bytes(x, kept_weight_bytes(n, k))


def _fake_kept(x: torch.Tensor, kept_w: torch.Tensor, n: int) -> Tensors:
    return x.new_empty((x.shape[0], n)), _bytes(x, kept_bytes(*x.shape))


def _fake_backward(
    dy: torch.Tensor, kept_x: torch.Tensor, kept_w: torch.Tensor, k: int, need_x: bool, need_w: bool
) -> Tensors:
    m, n = dy.shape
    dx = dy.new_empty((m, k)) if need_x else dy.new_empty(0)
    return dx, dy.new_empty((n, k)) if need_w else dy.new_empty(0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.k = inputs[0].shape[1]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dy: torch.Tensor | None, *unused: Any) -> tuple[torch.Tensor | None, ...]:
    need_x, need_w = ctx.needs_input_grad
    if dy is None:
        return None, None
    dx, dw = OPS.linear_backward(dy, *ctx.saved_tensors, ctx.k, need_x, need_w)
    return dx if need_x else None, dw if need_w else None


_IMPLEMENTATIONS: tuple[tuple[str, Any, Any], ...] = (
    ("linear", linear, _fake_linear),
    ("linear_forward_only", linear_forward_only, lambda x, w: x.new_empty((x.shape[0], w.shape[0]))),
    ("quantise_weight", quantise_weight, lambda w: _bytes(w, both_weight_bytes(*w.shape))),
    ("linear_kept", linear_kept, _fake_kept),
    ("linear_backward", linear_backward, _fake_backward),
)
for _name, _real, _fake in _IMPLEMENTATIONS:
    _LIBRARY.impl(_name, _real, "CPU")
    _LIBRARY.impl(_name, _real, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_LIBRARY)
torch.library.register_autograd(f"{NAMESPACE}::linear", _differentiate, setup_context=_save, lib=_LIBRARY)


# -- the function ------------------------------------------------------------------------------------


def gemm_fp8_blockwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x`` [..., K] and ``w`` [N, K] in bfloat16 -> [..., N] in bfloat16, differentiable in both.

    The recipe needs N and K in multiples of 128. The product of the leading dimensions of x has to be one as well for a
    gradient, else a multiple of 4 or at most 256. Other shapes are multiplied in bf16, with one warning. Raises
    TypeError for other dtypes and ValueError for shapes that do not fit each other.
    """
    if not torch.compiler.is_compiling():
        from .torch_eager import straight

        y = straight(x, w)
        if y is not None:
            return y
    _require_operands(x, w)
    rows = x.reshape(-1, x.shape[-1])
    trains = torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)
    if _unfit(rows, w, trains):
        _note_unfit()
        return torch.nn.functional.linear(x, w)
    y = OPS.linear(rows, w)[0] if trains else OPS.linear_forward_only(rows, w)
    return y.reshape(*x.shape[:-1], w.shape[0])


FEW_ROWS = 256
"""Up to so many rows any number is multiplied in FP8 where no gradient is due; more have to be a multiple of 4."""


def takes_rows(m: int, trains: bool) -> bool:
    """Whether the recipe, and kernels for it, take so many rows."""
    if trains:
        return bool(m) and m % BLOCK == 0
    return bool(m) and (m % 4 == 0 or m <= FEW_ROWS)


def _unfit(rows: torch.Tensor, w: torch.Tensor, trains: bool) -> bool:
    return bool(w.shape[0] % BLOCK or w.shape[1] % BLOCK) or not takes_rows(rows.shape[0], trains)


def _require_operands(x: torch.Tensor, w: torch.Tensor) -> None:
    if x.dtype is not torch.bfloat16 or w.dtype is not torch.bfloat16:
        raise TypeError(f"gemm_fp8_blockwise takes bfloat16 operands, not {x.dtype} and {w.dtype}")
    if w.dim() != 2 or x.dim() < 1 or x.shape[-1] != w.shape[1]:
        raise ValueError(
            f"gemm_fp8_blockwise takes x [..., K] and w [N, K], not {list(x.shape)} and {list(w.shape)}"
        )


def _note_unfit() -> int:
    """Runs while tracing, too; returns something that can be a constant."""
    LAUNCHER.dispatcher.warn(
        "shape", "a shape that is no multiple of the recipe's blocks is multiplied in bf16"
    )
    return 0


# what torch.compiler.assume_constant_result sets, which for that imports the whole compiler: seconds
_note_unfit._dynamo_marked_constant = True  # type: ignore[attr-defined]


__all__ = ["E4M3", "LAUNCHER", "NAMESPACE", "OPS", "gemm_fp8_blockwise", "run", "store"]
