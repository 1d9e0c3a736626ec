"""``gemm_fp8_blockwise(x, w)``: a linear layer whose three products run in blockwise FP8, for torch.

    forward  y  = x . w^T      dgrad  dx = dy . w      wgrad  dw = dy^T . x
Each step quantises its bf16 operands by the recipe of ``torch_contract`` and keeps only e4m3 copies for the backward
pass. The whole forward is one op and the whole backward another, opaque to torch.compile (they have fake
implementations and a registered gradient). They launch nothing but kernels on the current stream, so that CUDA graphs
can hold them. Eager code that nothing watches (no torch.compile, no dispatch mode, no functorch transform, no tensor
subclass) skips torch's dispatcher and queues a ``Layer``'s plans.
"""

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .layer_rows import takes_rows, whole_rows
from .plans.format import ALIGNMENT
from .torch_contract import BLOCK, Tensors
from .torch_launch import aligned
from .torch_layer import (
    AGAIN_ROWS,
    LAUNCHER,
    NAMESPACE,
    Layer,
    both_weight_bytes,
    entry,
    first_rows,
    kept_bytes,
    kept_rows,
    kept_weight,
    kept_weight_bytes,
    plain_rows,
    plain_weight,
    run,
    serving_rows,
)


def _packed(q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.cat([q.reshape(-1).view(torch.uint8), s.reshape(-1).view(torch.uint8)])


# -- the steps, operator by operator -----------------------------------------------------------------


def _product(name: str, a: Tensors, b: Tensors) -> torch.Tensor:
    operands = {"a_q": a[0], "a_s": a[1], "b_q": b[0], "b_s": b[1]}
    return run(name, (a[0].shape[0], b[0].shape[0], a[0].shape[1]), operands)[0]


def _quantise(name: str, x: torch.Tensor) -> Tensors:
    return run(name, (x.shape[0], x.shape[1]), {"x": aligned(x)})


def _entry(device: torch.device, m: int, n: int, k: int, trains: bool = True) -> Layer | None:
    """The launch plans of the whole layer, None where one of its operators has none."""
    return entry(m, n, k, device, trains) if device.type == "cuda" else None


def _filled(x: torch.Tensor, trains: bool = True) -> torch.Tensor:
    """x with rows of zeros up to what kernels work on: a copy where rows are missing."""
    short = whole_rows(x.shape[0], trains) - x.shape[0]
    return torch.nn.functional.pad(x, (0, 0, 0, short)) if short else x


def quantised(x: torch.Tensor) -> Tensors:
    """Codes and scales of x, and what is kept of it, for all layers that read it: compilers do it once."""
    layer = _entry(x.device, x.shape[0], 0, x.shape[1])
    if layer is not None:
        return layer.quantise(aligned(x))
    x_q, x_s, xt_q, xt_s = _quantise("quant_dual", _filled(x))
    return _packed(x_q, x_s), _packed(xt_q, xt_s)


def _multiplied(x: torch.Tensor, w: torch.Tensor, plain: torch.Tensor, again: bool) -> Tensors:
    """y [M, N], and what is kept of w: nothing where the gradient quantises it ``again``."""
    (m, k), n = x.shape, w.shape[0]
    layer = _entry(x.device, m, n, k)
    if layer is not None:
        y, kept_w = layer.forward(plain, aligned(w), again)
    else:
        w_q, w_s, wt_q, wt_s = _quantise("quant_128x128_dual", w)
        y = first_rows(_product("gemm_nt", plain_rows(plain, m, k), (w_q, w_s)), m)
        kept_w = _packed(wt_q, wt_s)
    return y, _bytes(x, 0) if again else kept_w


def linear(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    """y [M, N], and what is kept of x and of w."""
    plain, kept_x = quantised(x)
    y, kept_w = _multiplied(x, w, plain, False)
    return y, kept_x, kept_w


def linear_trained(x: torch.Tensor, w: torch.Tensor, plain: torch.Tensor, kept_x: torch.Tensor) -> Tensors:
    """y and what is kept of w, of x that is ``quantised``; from ``AGAIN_ROWS`` on nothing."""
    return _multiplied(x, w, plain, x.shape[0] >= AGAIN_ROWS)


def linear_forward_only(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """y [M, N]; nothing is kept for a gradient. A weight in ``KEPT`` is quantised once."""
    kept, copies = KEPT.get(w.data_ptr()), None
    if kept is not None and kept.holds(w):
        call = kept.calls.get(x.shape)
        if call is not None and (y := call(x, kept.weight, None)) is not None:
            return y
        copies = kept.copies()
        if copies is not None and x.is_cuda and x.shape not in kept.calls:
            kept.calls[x.shape] = served_call(x, kept.weight, kept)
    return linear_infer(x, w, copies)


def linear_infer(x: torch.Tensor, w: torch.Tensor, copies: torch.Tensor | None) -> torch.Tensor:
    """y [M, N] alone; ``copies``: both of w, quantised before."""
    n, k = w.shape
    rows = x if x.shape[0] <= serving_rows(x.device) else _filled(x, False)
    layer = _entry(x.device, rows.shape[0], n, k, False)
    if layer is not None:
        chain, given = ("infer", w) if copies is None else ("infer_kept", copies)
        rows, given = aligned(rows), aligned(given)
        y = layer.infer_at(chain, rows.data_ptr(), given.data_ptr(), (layer.m, n))
    else:
        weight = _quantise("quant_128x128", w) if copies is None else plain_weight(copies, n, k)
        y = _product("gemm_nt", _quantise("quant_1x128", _filled(x, False)), weight)
    return first_rows(y, x.shape[0])


def quantise_weight(w: torch.Tensor) -> torch.Tensor:
    """Both copies of w [N, K] in one uint8 tensor."""
    n, k = w.shape
    w_q, w_s, wt_q, wt_s = _quantise("quant_128x128_dual", w)
    parts = [_packed(wt_q, wt_s), _packed(w_q, w_s)]
    gap = both_weight_bytes(n, k) - sum(p.numel() for p in parts)
    return torch.cat([parts[0], parts[0].new_zeros(gap), parts[1]])


def _captures() -> bool:
    """Whether a graph of the current stream is being captured."""
    return torch.backends.cuda.is_built() and torch.cuda.is_current_stream_capturing()


class KeptWeight:
    """A weight [N, K] with both quantised copies, made at their first use and when autograd sees the weight change."""

    __slots__ = ("_copies", "calls", "version", "weight")

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.version = weight, -1
        self._copies = torch.empty(0, dtype=torch.uint8, device=weight.device)
        self.calls: dict[torch.Size, ServedCall | None] = {}

    def holds(self, w: torch.Tensor) -> bool:
        """Whether the operand at this weight's address still is the weight."""
        weight = self.weight
        return weight.data_ptr() == w.data_ptr() and weight.shape == w.shape and weight.dtype is w.dtype

    def copies(self) -> torch.Tensor | None:
        """Both, in one uint8 tensor, which stays where it is: graphs and prepared launches know its address.

        None for a weight that has changed while a graph is captured, which alone would make them, at each replay.
        """
        weight = self.weight
        if self.version != weight._version:
            if _captures():
                return None
            with torch.no_grad():
                made = quantise_weight(weight.detach().to(torch.bfloat16).contiguous())
            self._copies = self._copies.copy_(made) if self._copies.numel() else made
            self.version = weight._version
        return self._copies


KEPT: dict[int, KeptWeight] = {}
"""By address, weights that ``torch_modules.kept_weights`` holds, for compiled code, which sees operands only."""


def linear_kept(x: torch.Tensor, kept_w: torch.Tensor, n: int) -> Tensors:
    """y [M, N] and what is kept of x, with w quantised before."""
    m, k = x.shape
    plain, kept_x = quantised(x)
    layer = _entry(x.device, m, n, k)
    if layer is not None:
        return layer.forward_kept(plain, kept_w), kept_x
    return first_rows(_product("gemm_nt", plain_rows(plain, m, k), plain_weight(kept_w, n, k)), m), kept_x


def linear_backward(
    dy: torch.Tensor, kept_x: torch.Tensor, kept_w: torch.Tensor, k: int, need_x: bool, need_w: bool
) -> Tensors:
    """dx [M, K] and dw [N, K] in bf16; empty where not needed. In the place of what is kept of w may be w itself."""
    m, n = dy.shape
    again = kept_w.dim() == 2
    layer = _entry(dy.device, m, n, k)
    if layer is not None:
        return layer.backward(aligned(dy), kept_x, aligned(kept_w), need_x, need_w, again)
    dy_q, dy_s, dyt_q, dyt_s = _quantise("quant_dual", _filled(dy))
    nothing = dy.new_empty(0)
    w_t = _quantise("quant_128x128_dual", kept_w)[2:] if again else kept_weight(kept_w, n, k)
    dx = first_rows(_product("gemm_nt", (dy_q, dy_s), w_t), m) if need_x else nothing
    dw = _product("gemm_nt_rows", (dyt_q, dyt_s), kept_rows(kept_x, m, k)) if need_w else nothing.clone()
    return dx, dw


# -- the ops -----------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_LIBRARY.define("linear(Tensor x, Tensor w) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define("quantised(Tensor x) -> (Tensor, Tensor)")
_LIBRARY.define("linear_trained(Tensor x, Tensor w, Tensor plain, Tensor kept_x) -> (Tensor, Tensor)")
_LIBRARY.define("linear_forward_only(Tensor x, Tensor w) -> Tensor")
_LIBRARY.define(
    "linear_backward(Tensor dy, Tensor kept_x, Tensor kept_w, SymInt k, bool need_x, bool need_w) -> (Tensor, Tensor)"
)
OPS = getattr(torch.ops, NAMESPACE)


def _bytes(like: torch.Tensor, size: int) -> torch.Tensor:
    return like.new_empty(size, dtype=torch.uint8)


def _fake_linear(x: torch.Tensor, w: torch.Tensor) -> Tensors:
    (m, k), n = x.shape, w.shape[0]
    return x.new_empty((m, n)), _bytes(x, kept_bytes(m, k)), _bytes(x, kept_weight_bytes(n, k))


def _fake_backward(
    dy: torch.Tensor, kept_x: torch.Tensor, kept_w: torch.Tensor, k: int, need_x: bool, need_w: bool
) -> Tensors:
    m, n = dy.shape
    dx = dy.new_empty((m, k)) if need_x else dy.new_empty(0)
    return dx, dy.new_empty((n, k)) if need_w else dy.new_empty(0)


def _fake_quantised(x: torch.Tensor) -> Tensors:
    m, k = x.shape
    return _bytes(x, whole_rows(m) * (k + 4 * (k // BLOCK))), _bytes(x, kept_bytes(m, k))


def _fake_trained(x: torch.Tensor, w: torch.Tensor, plain: torch.Tensor, kept_x: torch.Tensor) -> Tensors:
    y, _, kept_w = _fake_linear(x, w)
    return y, kept_w if x.shape[0] < AGAIN_ROWS else _bytes(x, 0)


def _fake_forward_only(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    lowering = sys.modules.get("torch._inductor.lowering")
    if lowering is not None and OPS.linear_forward_only.default not in lowering.lowerings:
        lowering.register_lowering(OPS.linear_forward_only.default, type_promotion_kind=None)(_lowered)
    return x.new_empty((x.shape[0], w.shape[0]))


def _lowered(x: Any, w: Any) -> Any:
    """Inductor's node for ``linear_forward_only``: its code calls the function itself, past torch's dispatcher, which
    would cost a call of few rows ten microseconds of the host."""
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler
    from torch._inductor.virtualized import V

    op = OPS.linear_forward_only
    if V.graph.cpp_wrapper:
        return fallback_handler(op.default, add_to_fallback_set=False)(x, w)
    x, w = (ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(t)) for t in (x, w))
    layout = ir.FixedLayout(x.get_device(), x.get_dtype(), [x.get_size()[0], w.get_size()[0]])
    name = f"torch.ops.{NAMESPACE}.linear_forward_only.direct"
    return ir.TensorBox.create(ir.ExternKernelAlloc(layout, [x, w], python_kernel_name=name, op_overload=op.default))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    x, w, _, kept_x = inputs
    ctx.k = x.shape[1]
    ctx.save_for_backward(kept_x, w if x.shape[0] >= AGAIN_ROWS else output[1])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dy: torch.Tensor | None, *unused: Any) -> tuple[torch.Tensor | None, ...]:
    need_x, need_w, *_ = ctx.needs_input_grad
    if dy is None:
        return None, None, None, None
    dx, dw = OPS.linear_backward(dy, *ctx.saved_tensors, ctx.k, need_x, need_w)
    return dx if need_x else None, dw if need_w else None, None, None


_IMPLEMENTATIONS: tuple[tuple[str, Any, Any], ...] = (
    ("linear", linear, _fake_linear),
    ("quantised", quantised, _fake_quantised),
    ("linear_trained", linear_trained, _fake_trained),
    ("linear_forward_only", linear_forward_only, _fake_forward_only),
    ("linear_backward", linear_backward, _fake_backward),
)
for _name, _real, _fake in _IMPLEMENTATIONS:
    _LIBRARY.impl(_name, _real, "CPU")
    _LIBRARY.impl(_name, _real, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_LIBRARY)
OPS.linear_forward_only.direct = linear_forward_only  # by which compiled code finds it
torch.library.register_autograd(f"{NAMESPACE}::linear_trained", _differentiate, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd(
    f"{NAMESPACE}::quantised",
    lambda ctx, *unused: None,
    setup_context=lambda ctx, inputs, output: ctx.mark_non_differentiable(*output),
    lib=_LIBRARY,
)


# -- eager calls that nothing watches --------------------------------------------------------------


class _Linear(torch.autograd.Function):
    """The layer for autograd, with x quantised before; the gradient is x's all the same."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, quantised: Tensors, layer: Layer) -> torch.Tensor:
        y, kept_w = layer.forward(quantised[0], w, layer.again)
        ctx.save_for_backward(quantised[1], kept_w)
        ctx.layer = layer
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        need_x, need_w, *_ = ctx.needs_input_grad
        (kept_x, w), layer = ctx.saved_tensors, ctx.layer
        if torch.is_grad_enabled():  # a second derivative is asked for, which the op refuses in words
            dx, dw = OPS.linear_backward(dy, kept_x, w.detach(), layer.k, need_x, need_w)
        else:
            dx, dw = layer.backward(aligned(dy), kept_x, w, need_x, need_w, layer.again)
        return dx if need_x else None, dw if need_w else None, None, None


class SharedInput(threading.local):
    """The input that was quantised last: layers that read one tensor in turn, such as q, k and v, quantise it once."""

    def __init__(self) -> None:
        self._of: Callable[[], torch.Tensor | None] = lambda: None
        self._key: tuple[int, ...] = ()
        self._quantised: Tensors = ()

    def quantised(self, x: torch.Tensor, rows: torch.Tensor, layer: Layer) -> Tensors:
        """Of x, whose rows are ``rows``. Autograd's version says whether it was changed since: not of a leaf that a
        kernel fills again, nor of a tensor of inference; and a graph that is replayed alone has to hold the kernel."""
        if x.is_leaf or torch.cuda.is_current_stream_capturing() or x.is_inference():
            return layer.quantise(rows)
        key = (x._version, x.data_ptr(), torch._C._cuda_getCurrentRawStream(x.device.index))
        if self._of() is not x or self._key != key:
            self._quantised = layer.quantise(rows)
            self._of, self._key = weakref.ref(x, self._end), key
        return self._quantised

    def _end(self, gone: object) -> None:
        self._of, self._quantised = (lambda: None), ()


INPUT = SharedInput()


class LinearKept(torch.autograd.Function):
    """The layer for autograd, with w quantised before; the gradient is w's all the same."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, kept_w: torch.Tensor) -> torch.Tensor:
        y, kept_x = linear_kept(x, kept_w, w.shape[0])
        ctx.save_for_backward(kept_x, kept_w)
        ctx.k = x.shape[1]
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        need_x, need_w, _ = ctx.needs_input_grad
        dx, dw = OPS.linear_backward(dy, *ctx.saved_tensors, ctx.k, need_x, need_w)
        return dx if need_x else None, dw if need_w else None, None


_apply = super(torch.autograd.Function, _Linear).apply
"""``_Linear.apply`` less what it does for functorch's transforms, none of which is active where it is called."""

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_BFLOAT16 = torch.bfloat16
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch = torch._C._are_functorch_transforms_active
_autocast = torch._C._is_any_autocast_enabled


def unwatched(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether nothing but autograd looks at operations on these tensors."""
    return not _dispatch_modes() and not _functorch() and type(x) in _PLAIN and type(w) in _PLAIN


def straight(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor | None:
    """y where plans serve the shape and nothing watches the call; None otherwise, and for operands that do not fit."""
    if not x.is_cuda or x.device != w.device or not unwatched(x, w):
        return None
    bfloat16 = torch.bfloat16
    if x.dtype is not bfloat16 or w.dtype is not bfloat16:
        return None
    shape, (n, k) = x.shape, w.shape if w.dim() == 2 else (0, 0)
    if not shape or shape[-1] != k or not k:
        return None
    flat = len(shape) == 2
    m = shape[0] if flat else x.numel() // k
    trains = torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)
    if n % BLOCK or k % BLOCK or not takes_rows(m, trains) or not n:
        return None
    rows = x if flat else x.reshape(m, k)
    if not trains:
        y = linear_forward_only(rows, w)
    elif (layer := entry(m, n, k, x.device, True)) is None:
        return None
    else:
        rows = aligned(rows)
        y = _apply(rows, aligned(w), INPUT.quantised(x, rows, layer), layer)
    return y if flat else y.view(*shape[:-1], n)


class ServedCall:
    """y [..., N] of an x and a weight of one shape each, w quantised before or in the call; not differentiable."""

    __slots__ = ("_copies", "_kept", "_layer", "_shape", "_weight", "index")

    def __init__(
        self, layer: Layer, x: torch.Tensor, weight: torch.Tensor, kept: KeptWeight | None, copies: torch.Tensor | None
    ) -> None:
        self._layer, self._kept, self.index = layer, kept, x.get_device()
        self._shape, self._weight = (*x.shape[:-1], layer.n), weight.shape
        self._copies = 0 if copies is None else copies.data_ptr()

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """None for what ``multiply`` has to see: a changed weight, an operand that needs a copy, another dtype, whoever
        watches."""
        kept, address = self._kept, x.data_ptr()
        if (
            address % ALIGNMENT
            or not x.is_contiguous()
            or x.dtype is not _BFLOAT16
            or type(x) not in _PLAIN
            or _dispatch_modes()
            or _functorch()
            or _autocast()
            or x.get_device() != self.index
        ):
            return None
        if kept is not None:
            if kept.weight is not weight or kept.version != weight._version:
                return None
            y = self._layer.infer_at("infer_kept", address, self._copies, self._shape)
        else:
            at = weight.data_ptr()
            fits = weight.shape == self._weight and weight.dtype is _BFLOAT16 and type(weight) in _PLAIN
            if not fits or at % ALIGNMENT or not weight.is_contiguous():
                return None
            y = self._layer.infer_at("infer", address, at, self._shape)
        return y if bias is None else y + bias.to(y.dtype)


def served_call(x: torch.Tensor, weight: torch.Tensor, kept: KeptWeight | None) -> ServedCall | None:
    """What serves x's shape without a copy of x; None where no plans do."""
    n, k = weight.shape
    m = x.numel() // k
    if m > serving_rows(x.device) and whole_rows(m, False) != m:
        return None
    layer, copies = _entry(x.device, m, n, k, False), None if kept is None else kept.copies()
    if layer is None or (kept is not None and copies is None):
        return None
    return ServedCall(layer, x, weight, kept, copies)


# -- the function ------------------------------------------------------------------------------------


def gemm_fp8_blockwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x`` [..., K] and ``w`` [N, K] in bfloat16 -> [..., N] in bfloat16, differentiable in both.

    The recipe needs N and K in multiples of 128. For a gradient, the product of the leading dimensions of x has to be a
    multiple of 128 or at least 1,024. Other shapes are multiplied in bf16, with one warning. Raises TypeError for other
    dtypes and ValueError for shapes that do not fit each other.
    """
    if not torch.compiler.is_compiling():
        y = straight(x, w)
        if y is not None:
            return y
    _require_operands(x, w)
    rows = x.reshape(-1, x.shape[-1])
    trains = torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)
    if w.shape[0] % BLOCK or w.shape[1] % BLOCK or not takes_rows(rows.shape[0], trains):
        _note_unfit()
        return torch.nn.functional.linear(x, w)
    y = OPS.linear_trained(rows, w, *OPS.quantised(rows))[0] if trains else OPS.linear_forward_only(rows, w)
    return y.reshape(*x.shape[:-1], w.shape[0])


def _require_operands(x: torch.Tensor, w: torch.Tensor) -> None:
    if x.dtype is not torch.bfloat16 or w.dtype is not torch.bfloat16:
        raise TypeError(f"gemm_fp8_blockwise takes bfloat16 operands, not {x.dtype} and {w.dtype}")
    if w.dim() != 2 or x.dim() < 1 or x.shape[-1] != w.shape[1]:
        raise ValueError(f"gemm_fp8_blockwise takes x [..., K] and w [N, K], not {list(x.shape)} and {list(w.shape)}")


def _note_unfit() -> int:
    """Runs while tracing, too; returns something that can be a constant."""
    LAUNCHER.dispatcher.warn("shape", "a shape that is no multiple of the recipe's blocks is multiplied in bf16")
    return 0


# what torch.compiler.assume_constant_result sets, which for that imports the whole compiler: seconds
_note_unfit._dynamo_marked_constant = True  # type: ignore[attr-defined]
