"""``gemm_fp8_blockwise(x, w)``: a linear layer whose three products run in blockwise FP8, as torch custom ops.

    forward  y  = x . w^T      dgrad  dx = dy . w      wgrad  dw = dy^T . x
Each step quantises its bf16 operands by the recipe of ``torch_contract`` and keeps only e4m3 copies for the
backward pass. The ops are opaque to torch.compile (they have fake implementations and a registered gradient)
and launch nothing but kernels on the current stream, so that CUDA graphs can hold them.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from . import store
from .torch_contract import BLOCK, FAMILY, REFERENCES, Operands, Tensors

NAMESPACE = (__package__ or "tilewright_library").replace(".", "_")
E4M3 = torch.float8_e4m3fn

_DISPATCHER = store.Dispatcher()
_CHOSEN: dict[tuple[Any, ...], Callable[[Operands], Tensors]] = {}


def gemm_fp8_blockwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x`` [..., K] and ``w`` [N, K] in bfloat16 -> [..., N] in bfloat16, differentiable in both.

    The recipe needs N and K in multiples of 128, and, for a gradient, the product of the leading dimensions of x
    as well; other shapes are multiplied in bf16, with one warning. Raises TypeError for other dtypes and
    ValueError for shapes that do not fit each other.
    """
    _require_operands(x, w)
    rows = x.reshape(-1, x.shape[-1])
    trains = torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)
    unfit = w.shape[0] % BLOCK or w.shape[1] % BLOCK or rows.shape[0] % (BLOCK if trains else 4)
    if unfit or rows.shape[0] == 0:
        _note_unfit()
        return torch.nn.functional.linear(x, w)
    y = _OPS.linear(rows, w)[0] if trains else _OPS.linear_forward_only(rows, w)
    return y.reshape(*x.shape[:-1], w.shape[0])


def _require_operands(x: torch.Tensor, w: torch.Tensor) -> None:
    if x.dtype is not torch.bfloat16 or w.dtype is not torch.bfloat16:
        raise TypeError(f"gemm_fp8_blockwise takes bfloat16 operands, not {x.dtype} and {w.dtype}")
    if w.dim() != 2 or x.dim() < 1 or x.shape[-1] != w.shape[1]:
        raise ValueError(
            f"gemm_fp8_blockwise takes x [..., K] and w [N, K], not {list(x.shape)} and {list(w.shape)}"
        )


@torch.compiler.assume_constant_result
def _note_unfit() -> int:
    """Runs while tracing, too; returns something that can be a constant."""
    _DISPATCHER.warn("shape", "a shape that is no multiple of the recipe's blocks is multiplied in bf16")
    return 0


# -- dispatch ----------------------------------------------------------------------------------------


def run(name: str, dims: tuple[int, ...], inputs: Operands) -> Tensors:
    """Operator ``name`` of the family on contiguous ``inputs``: the kernel that serves ``dims``, or the reference."""
    device = next(iter(inputs.values())).device
    key = (name, dims, device)
    chosen = _CHOSEN.get(key)
    if chosen is None:
        chosen = _CHOSEN[key] = _choose(f"{FAMILY}/{name}", dims, device)
    return chosen(inputs)


def _choose(operator: str, dims: tuple[int, ...], device: torch.device) -> Callable[[Operands], Tensors]:
    return _DISPATCHER.resolve(
        operator, device_key(device), dims, lambda kernel: load(kernel, device), REFERENCES[operator]
    )


def device_key(device: torch.device) -> str:
    """``cuda:9.0`` (compute capability); ``interpret`` on a CPU under TRITON_INTERPRET=1; else the device's type."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"cuda:{major}.{minor}"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return store.INTERPRET
    return device.type


class _TorchOn:
    """``torch`` as a kernel module sees it: what it allocates lies on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("empty", "zeros", "ones", "full"):
            return found
        made: Callable[..., Any] = lambda *sizes, **options: found(*sizes, device=self._device, **options)  # noqa: E731
        setattr(self, name, made)
        return made


def load(kernel: store.Kernel, device: torch.device) -> Callable[[Operands], Tensors]:
    """A promoted Triton or Gluon kernel as a function of its operands by name. Raises NotServed."""
    launch = _namespace(kernel, device)["launch"]
    params = dict(kernel.params)
    if device.type != "cuda":
        return lambda inputs: tuple(launch(inputs, params))

    def on_device(inputs: Operands) -> Tensors:
        with torch.cuda.device(device):
            return tuple(launch(inputs, params))

    return on_device


def _namespace(kernel: store.Kernel, device: torch.device) -> dict[str, Any]:
    """The kernel module's namespace, for one device. Raises NotServed when it cannot be imported."""
    name = f"{__package__}.loaded_{kernel.sha256[:16]}_{device.type}{device.index or 0}"
    if name in sys.modules:
        return sys.modules[name].__dict__
    module = types.ModuleType(name)
    module.__file__ = str(kernel.path)
    sys.modules[name] = module
    try:
        exec(compile(kernel.source(), str(kernel.path), "exec"), module.__dict__)
    except ImportError as error:
        del sys.modules[name]
        raise store.NotServed(f"{kernel.name} cannot be imported: {error}") from error
    except store.NotServed:
        del sys.modules[name]
        raise
    if "torch" in module.__dict__:
        module.__dict__["torch"] = _TorchOn(device)
    return module.__dict__


# -- the ops -----------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_LIBRARY.define("linear(Tensor x, Tensor w) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define("linear_forward_only(Tensor x, Tensor w) -> Tensor")
_LIBRARY.define(
    "linear_backward(Tensor dy, Tensor xt_q, Tensor xt_s, Tensor wt_q, Tensor wt_s, bool need_x, bool need_w)"
    " -> (Tensor, Tensor)"
)
_OPS = getattr(torch.ops, NAMESPACE)


def _product(name: str, a: Tensors, b: Tensors) -> torch.Tensor:
    operands = {"a_q": a[0], "a_s": a[1], "b_q": b[0], "b_s": b[1]}
    return run(name, (a[0].shape[0], b[0].shape[0], a[0].shape[1]), operands)[0]


def _quantise(name: str, x: torch.Tensor) -> Tensors:
    return run(name, (x.shape[0], x.shape[1]), {"x": x})


def _linear(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    """y, and the transposed e4m3 copies of x and w that the backward pass multiplies."""
    x_q, x_s, xt_q, xt_s = _quantise("quant_dual", x.contiguous())
    w_q, w_s, wt_q, wt_s = _quantise("quant_128x128_dual", w.contiguous())
    return _product("gemm_nt", (x_q, x_s), (w_q, w_s)), xt_q, xt_s, wt_q, wt_s


def _linear_forward_only(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = _quantise("quant_1x128", x.contiguous())
    return _product("gemm_nt", a, _quantise("quant_128x128", w.contiguous()))


def _linear_backward(
    dy: torch.Tensor,
    xt_q: torch.Tensor,
    xt_s: torch.Tensor,
    wt_q: torch.Tensor,
    wt_s: torch.Tensor,
    need_x: bool,
    need_w: bool,
) -> Tensors:
    """dx [M, K] and dw [N, K] in bf16; empty where not needed."""
    nothing = dy.new_empty(0)
    dy_q, dy_s, dyt_q, dyt_s = _quantise("quant_dual", dy.contiguous())
    dx = _product("gemm_nt", (dy_q, dy_s), (wt_q, wt_s)) if need_x else nothing
    dw = _product("gemm_nt_rows", (dyt_q, dyt_s), (xt_q, xt_s)) if need_w else nothing.clone()
    return dx, dw


def _fake_linear(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    (m, k), n = x.shape, w.shape[0]
    return (
        x.new_empty((m, n)),
        x.new_empty((k, m), dtype=E4M3),
        x.new_empty((m // BLOCK, k), dtype=torch.float32),
        x.new_empty((k, n), dtype=E4M3),
        x.new_empty((k // BLOCK, n // BLOCK), dtype=torch.float32),
    )


def _fake_backward(
    dy: torch.Tensor,
    xt_q: torch.Tensor,
    xt_s: torch.Tensor,
    wt_q: torch.Tensor,
    wt_s: torch.Tensor,
    need_x: bool,
    need_w: bool,
) -> Tensors:
    (m, n), k = dy.shape, xt_q.shape[0]
    dx = dy.new_empty((m, k)) if need_x else dy.new_empty(0)
    return dx, dy.new_empty((n, k)) if need_w else dy.new_empty(0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dy: torch.Tensor | None, *unused: Any) -> tuple[torch.Tensor | None, ...]:
    need_x, need_w = ctx.needs_input_grad
    if dy is None:
        return None, None
    dx, dw = _OPS.linear_backward(dy, *ctx.saved_tensors, need_x, need_w)
    return dx if need_x else None, dw if need_w else None


_IMPLEMENTATIONS: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("linear", _linear, _fake_linear),
    ("linear_forward_only", _linear_forward_only, lambda x, w: x.new_empty((x.shape[0], w.shape[0]))),
    ("linear_backward", _linear_backward, _fake_backward),
)
for _name, _real, _fake in _IMPLEMENTATIONS:
    _LIBRARY.impl(_name, _real, "CPU")
    _LIBRARY.impl(_name, _real, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_LIBRARY)
torch.library.register_autograd(f"{NAMESPACE}::linear", _differentiate, setup_context=_save, lib=_LIBRARY)
