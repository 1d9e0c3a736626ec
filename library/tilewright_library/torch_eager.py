"""The linear layer in eager mode on a CUDA device: launch plans in a row, nothing else between torch and the driver.

What a shape needs (plans, addresses within allocations, sizes) is worked out once and kept in a ``Layer``. A further
call allocates what comes back, what is kept, and one workspace, which goes back to the allocator as soon as the kernels
that use it are queued, and queues three kernels. Used where nothing watches
the call: no torch.compile, no dispatch mode, no functorch transform, no tensor subclass; the registered ops do the
rest.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from . import torch_ops as ops
from .store import NotServed
from .torch_contract import BLOCK, FAMILY, OPERANDS, REFERENCES, Tensors
from .torch_launch import Chain, Layout, Place, Served, aligned

_X, _W, _Y, _KEPT_X, _KEPT_W, _WORK = range(6)


class Layer:
    """y = x . w^T at M, N, K on one device, its backward, and its inference form. Raises NotServed."""

    def __init__(self, m: int, n: int, k: int, device: torch.device) -> None:
        self.m, self.n, self.k = m, n, k
        self._device, self._index = device, device.index or 0
        self._stream = torch._C._cuda_getCurrentRawStream
        with torch.inference_mode(False):
            self._results = torch.empty(0, dtype=torch.bfloat16, device=device).new_empty
            self._bytes = torch.empty(0, dtype=torch.uint8, device=device).new_empty
        self._lock = threading.Lock()
        self._chains: dict[str, tuple[Chain, int]] = {}
        self.trains = m % BLOCK == 0
        self._kept_x, self._kept_w = ops.kept_bytes(m, k), ops.kept_weight_bytes(n, k)
        self._joint = -(-self._kept_x // 256) * 256

    def _serve(self, name: str, dims: tuple[int, ...]) -> Served:
        operator = f"{FAMILY}/{name}"
        return ops.LAUNCHER.serve(operator, dims, self._device, REFERENCES[operator], OPERANDS[operator])

    def _chain(self, name: str) -> tuple[Chain, int]:
        """A chain, and the bytes of its workspace."""
        found = self._chains.get(name)
        if found is None:
            with self._lock:
                found = self._chains.get(name)
                if found is None:
                    found = self._chains[name] = getattr(self, f"_made_{name}")()
        return found

    # -- what each pass is made of -------------------------------------------------------------------

    def _made_forward(self) -> tuple[Chain, int]:
        m, n, k = self.m, self.n, self.k
        chain, work = Chain(), Layout()
        room = _room(work)
        x_q, x_s = room(m * k), room(4 * m * (k // BLOCK))
        w_q, w_s = room(n * k), room(4 * (n // BLOCK) * (k // BLOCK))
        kept_x = ((_KEPT_X, 0), (_KEPT_X, m * k))
        kept_w = ((_KEPT_W, 0), (_KEPT_W, n * k))
        chain.add(self._serve("quant_dual", (m, k)), [(_X, 0)], [x_q, x_s, *kept_x], room)
        chain.add(self._serve("quant_128x128_dual", (n, k)), [(_W, 0)], [w_q, w_s, *kept_w], room)
        chain.add(self._serve("gemm_nt", (m, n, k)), [x_q, x_s, w_q, w_s], [(_Y, 0)], room)
        return chain, work.bytes

    def _made_forward_kept(self) -> tuple[Chain, int]:
        m, n, k = self.m, self.n, self.k
        chain, work = Chain(), Layout()
        room = _room(work)
        x_q, x_s = room(m * k), room(4 * m * (k // BLOCK))
        start = -(-self._kept_w // 16) * 16
        plain = ((_KEPT_W, start), (_KEPT_W, start + n * k))
        kept_x = ((_KEPT_X, 0), (_KEPT_X, m * k))
        chain.add(self._serve("quant_dual", (m, k)), [(_X, 0)], [x_q, x_s, *kept_x], room)
        chain.add(self._serve("gemm_nt", (m, n, k)), [x_q, x_s, *plain], [(_Y, 0)], room)
        return chain, work.bytes

    def _made_infer(self) -> tuple[Chain, int]:
        m, n, k = self.m, self.n, self.k
        chain, work = Chain(), Layout()
        room = _room(work)
        x_q, x_s = room(m * k), room(4 * m * (k // BLOCK))
        w_q, w_s = room(n * k), room(4 * (n // BLOCK) * (k // BLOCK))
        chain.add(self._serve("quant_1x128", (m, k)), [(_X, 0)], [x_q, x_s], room)
        chain.add(self._serve("quant_128x128", (n, k)), [(_W, 0)], [w_q, w_s], room)
        chain.add(self._serve("gemm_nt", (m, n, k)), [x_q, x_s, w_q, w_s], [(_Y, 0)], room)
        return chain, work.bytes

    def _made_infer_kept(self) -> tuple[Chain, int]:
        m, n, k = self.m, self.n, self.k
        chain, work = Chain(), Layout()
        room = _room(work)
        x_q, x_s = room(m * k), room(4 * m * (k // BLOCK))
        start = -(-self._kept_w // 16) * 16
        plain = ((_KEPT_W, start), (_KEPT_W, start + n * k))
        chain.add(self._serve("quant_1x128", (m, k)), [(_X, 0)], [x_q, x_s], room)
        chain.add(self._serve("gemm_nt", (m, n, k)), [x_q, x_s, *plain], [(_Y, 0)], room)
        return chain, work.bytes

    def _made_backward(self, need_x: bool = True, need_w: bool = True) -> tuple[Chain, int]:
        # dy stands in the place of x, dx in that of y, dw in that of w
        m, n, k = self.m, self.n, self.k
        chain, work = Chain(), Layout()
        room = _room(work)
        dy_q, dy_s = room(m * n), room(4 * m * (n // BLOCK))
        dyt_q, dyt_s = room(m * n), room(4 * (m // BLOCK) * n)
        chain.add(self._serve("quant_dual", (m, n)), [(_X, 0)], [dy_q, dy_s, dyt_q, dyt_s], room)
        if need_x:
            kept_w = ((_KEPT_W, 0), (_KEPT_W, n * k))
            chain.add(self._serve("gemm_nt", (m, k, n)), [dy_q, dy_s, *kept_w], [(_Y, 0)], room)
        if need_w:
            kept_x = ((_KEPT_X, 0), (_KEPT_X, m * k))
            chain.add(self._serve("gemm_nt_rows", (n, k, m)), [dyt_q, dyt_s, *kept_x], [(_W, 0)], room)
        return chain, work.bytes

    def _made_backward_x(self) -> tuple[Chain, int]:
        return self._made_backward(need_w=False)

    def _made_backward_w(self) -> tuple[Chain, int]:
        return self._made_backward(need_x=False)

    def ready(self, training: bool) -> None:
        """Resolve what a pass needs. Raises NotServed."""
        if not training:
            self._chain("infer")
            return
        for name in ("forward", "forward_kept", "backward"):
            self._chain(name)

    # -- the passes ----------------------------------------------------------------------------------

    def _queue(self, chain: Chain, size: int, bases: tuple[int, ...]) -> None:
        """Queue a pass whose workspace has ``size`` bytes on the current stream."""
        stream = self._stream(self._index)
        if torch._C._cuda_getDevice() != self._index:
            room = self._bytes(size)
            chain((*bases, room.data_ptr()), stream)
            return
        work = torch._C._cuda_cudaCachingAllocator_raw_alloc(size, stream)
        try:
            chain((*bases, work), stream)
        finally:
            torch._C._cuda_cudaCachingAllocator_raw_delete(work)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> Tensors:
        """y, and what is kept of x and of w, from contiguous operands."""
        m, n, k = self.m, self.n, self.k
        chain, size = self._chain("forward")
        y = self._results(m, n)
        kept_x, kept_w = self._bytes(ops.kept_bytes(m, k)), self._bytes(ops.kept_weight_bytes(n, k))
        bases = (x.data_ptr(), w.data_ptr(), y.data_ptr(), kept_x.data_ptr(), kept_w.data_ptr())
        self._queue(chain, size, bases)
        return y, kept_x, kept_w

    def forward_jointly(self, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """y, and one tensor that holds what is kept of x and of w."""
        chain, size = self._chain("forward")
        y, kept = self._results(self.m, self.n), self._bytes(self._joint + self._kept_w)
        at = kept.data_ptr()
        self._queue(chain, size, (x.data_ptr(), w.data_ptr(), y.data_ptr(), at, at + self._joint))
        return y, kept

    def backward_jointly(self, dy: torch.Tensor, kept: torch.Tensor, need_x: bool, need_w: bool) -> Tensors:
        """As ``backward``, of ``forward_jointly``."""
        at = kept.data_ptr()
        return self._backward(dy, at, at + self._joint, need_x, need_w)

    def parts(self, kept: torch.Tensor) -> Tensors:
        """What is kept of x and of w, of ``forward_jointly``."""
        return kept[: self._kept_x], kept[self._joint :]

    def forward_kept(self, x: torch.Tensor, kept_w: torch.Tensor) -> Tensors:
        """y and what is kept of x; ``kept_w`` holds both copies of w."""
        m, n, k = self.m, self.n, self.k
        chain, size = self._chain("forward_kept")
        y, kept_x = self._results(m, n), self._bytes(ops.kept_bytes(m, k))
        self._queue(chain, size, (x.data_ptr(), 0, y.data_ptr(), kept_x.data_ptr(), kept_w.data_ptr()))
        return y, kept_x

    def infer(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """y alone."""
        chain, size = self._chain("infer")
        y = self._results(self.m, self.n)
        self._queue(chain, size, (x.data_ptr(), w.data_ptr(), y.data_ptr(), 0, 0))
        return y

    def infer_kept(self, x: torch.Tensor, kept_w: torch.Tensor) -> torch.Tensor:
        """y alone; ``kept_w`` holds both copies of w."""
        chain, size = self._chain("infer_kept")
        y = self._results(self.m, self.n)
        self._queue(chain, size, (x.data_ptr(), 0, y.data_ptr(), 0, kept_w.data_ptr()))
        return y

    def backward(
        self, dy: torch.Tensor, kept_x: torch.Tensor, kept_w: torch.Tensor, need_x: bool, need_w: bool
    ) -> Tensors:
        """dx and dw, empty where not needed, from a contiguous dy."""
        return self._backward(dy, kept_x.data_ptr(), kept_w.data_ptr(), need_x, need_w)

    def _backward(self, dy: torch.Tensor, kept_x: int, kept_w: int, need_x: bool, need_w: bool) -> Tensors:
        m, n, k = self.m, self.n, self.k
        name = "backward" if need_x and need_w else "backward_x" if need_x else "backward_w"
        chain, size = self._chain(name)
        dx = self._results(m, k) if need_x else self._bytes(0)
        dw = self._results(n, k) if need_w else self._bytes(0)
        self._queue(chain, size, (dy.data_ptr(), dw.data_ptr(), dx.data_ptr(), kept_x, kept_w))
        return dx, dw


def _room(work: Layout) -> Any:
    def room(size: int) -> Place:
        return (_WORK, work.add(size))

    return room


# -- layers by shape ---------------------------------------------------------------------------------

_LAYERS: dict[tuple[int, int, int, torch.device, bool], Layer | None] = {}
_LOCK = threading.RLock()


def entry(m: int, n: int, k: int, device: torch.device, training: bool | None = None) -> Layer | None:
    """The layer at a shape; None where one of its operators has no plan. ``training`` None: if the shape allows it."""
    trains = m % BLOCK == 0 if training is None else training
    key = (m, n, k, device, trains)
    try:
        return _LAYERS[key]
    except KeyError:
        pass
    with _LOCK:
        if key not in _LAYERS:
            layer: Layer | None = Layer(m, n, k, device)
            try:
                assert layer is not None
                layer.ready(trains)
            except NotServed:
                layer = None
            _LAYERS[key] = layer
    return _LAYERS[key]


class _Linear(torch.autograd.Function):
    """The layer for autograd."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, layer: Layer) -> torch.Tensor:
        y, kept = layer.forward_jointly(x, w)
        ctx.save_for_backward(kept)
        ctx.layer = layer
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        need_x, need_w, _ = ctx.needs_input_grad
        (kept,) = ctx.saved_tensors
        layer = ctx.layer
        if torch.is_grad_enabled():  # a second derivative is asked for, which the op refuses in words
            dx, dw = ops.OPS.linear_backward(dy, *layer.parts(kept), layer.k, need_x, need_w)
        else:
            dx, dw = layer.backward_jointly(aligned(dy), kept, need_x, need_w)
        return dx if need_x else None, dw if need_w else None, None


class _LinearKept(torch.autograd.Function):
    """The layer for autograd, with w quantised before; the gradient is w's all the same."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, kept_w: torch.Tensor) -> torch.Tensor:
        y, kept_x = ops.linear_kept(x, kept_w, w.shape[0])
        ctx.save_for_backward(kept_x, kept_w)
        ctx.k = x.shape[1]
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        need_x, need_w, _ = ctx.needs_input_grad
        dx, dw = ops.OPS.linear_backward(dy, *ctx.saved_tensors, ctx.k, need_x, need_w)
        return dx if need_x else None, dw if need_w else None, None


_apply = super(torch.autograd.Function, _Linear).apply
"""``_Linear.apply`` less what it does for functorch's transforms, none of which is active where it is called."""

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def unwatched(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether nothing but autograd looks at operations on these tensors."""
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    return type(x) in _PLAIN and type(w) in _PLAIN


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
    if n % BLOCK or k % BLOCK or not ops.takes_rows(m, trains) or not n:
        return None
    layer = entry(m, n, k, x.device, trains)
    if layer is None:
        return None
    rows = aligned(x if flat else x.reshape(m, k))
    if trains:
        y: torch.Tensor = _apply(rows, aligned(w), layer)
    else:
        y = layer.infer(rows, aligned(w))
    return y if flat else y.view(*shape[:-1], n)


def multiply_kept(x: torch.Tensor, w: torch.Tensor, kept_w: torch.Tensor) -> torch.Tensor:
    """y [..., N] of x [..., K], with both copies of w quantised before; differentiable in x and w."""
    rows = aligned(x.reshape(-1, x.shape[-1]))
    y: torch.Tensor = _LinearKept.apply(rows, w, kept_w)
    return y.view(*x.shape[:-1], w.shape[0])


def infer_kept(x: torch.Tensor, n: int, kept_w: torch.Tensor) -> torch.Tensor:
    """y [..., N] of x [..., K], with both copies of w [N, K] quantised before; not differentiable."""
    shape = x.shape
    k = shape[-1]
    flat = len(shape) == 2
    rows = aligned(x if flat else x.reshape(-1, k))
    m = rows.shape[0]
    layer = entry(m, n, k, x.device, False) if x.is_cuda else None
    y = layer.infer_kept(rows, kept_w) if layer is not None else ops.linear_infer_kept(rows, kept_w, n)
    return y if flat else y.view(*shape[:-1], n)
