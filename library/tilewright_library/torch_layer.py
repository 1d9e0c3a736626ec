"""The linear layer in blockwise FP8, operator by operator and as chains of launch plans.

``run`` serves one operator. A ``Layer`` is the whole layer at one shape on a CUDA device, with nothing between torch
and the driver: what the shape needs (plans, addresses within allocations, sizes) is worked out once. A further call
allocates the results, what is kept for the backward pass, and one workspace, which goes back to the allocator as soon
as the kernels that use it are queued, and queues two or three kernels.

What is kept of an operand lies in one uint8 tensor: e4m3 codes of the transposed copy, then its scales.
"""

import threading
from collections.abc import Callable, Mapping

import torch

from .layer_rows import whole_rows
from .loaded import Dispatcher
from .store import NotServed
from .torch_contract import BLOCK, FAMILY, REFERENCES, Tensors
from .torch_launch import Chain, Launcher, Layout, Place, Served

NAMESPACE = (__package__ or "tilewright_library").replace(".", "_")
"""Of the package's operators in ``torch.ops``."""

LAUNCHER = Launcher(Dispatcher())

AGAIN_ROWS = 4096 - BLOCK + 1
"""From so many rows on, 4,096 in whole blocks, a gradient quantises weights again, 1 to 5 % of a layer's time there
(9 % at 1,024 rows, on an H200, measured), and keeps no copy of them until then."""


def run(name: str, dims: tuple[int, ...], inputs: Mapping[str, torch.Tensor]) -> Tensors:
    """Operator ``name`` of the family on contiguous ``inputs``: the kernel that serves ``dims``, or the reference."""
    return _served(name, dims, next(iter(inputs.values())).device).call(inputs)


def _served(name: str, dims: tuple[int, ...], device: torch.device, rows: int | None = None) -> Served:
    operator = f"{FAMILY}/{name}"
    return LAUNCHER.serve(operator, dims, device, REFERENCES[operator], rows)


def serving_rows(device: torch.device) -> int:
    """Up to so many rows one operator quantises x and multiplies, where there is no gradient; any number of them."""
    return LAUNCHER.verified(f"{FAMILY}/linear", "M", device)


def first_rows(result: torch.Tensor, rows: int) -> torch.Tensor:
    """A fresh result cut to its first rows, in place: a view would forbid autograd's users to change it in place."""
    return result.resize_(rows, result.shape[1])


# -- what is kept ------------------------------------------------------------------------------------


def kept_bytes(m: int, k: int) -> int:
    """Of the transposed copy of x [M, K] in 1 x 128 blocks, M in whole blocks: codes [K, M], scales [M/128, K]."""
    m = whole_rows(m)
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
    return kept[start:middle].view(torch.float8_e4m3fn).view(rows, cols), kept[middle:end].view(torch.float32).view(
        scales
    )


def kept_rows(kept: torch.Tensor, m: int, k: int) -> Tensors:
    """(codes [K, M], scales [M/128, K]) of what is kept of x, M in whole blocks."""
    m = whole_rows(m)
    return _cut(kept, 0, k, m, (m // BLOCK, k))


def plain_rows(plain: torch.Tensor, m: int, k: int) -> Tensors:
    """(codes [M, K], scales [K/128, M]) of x as it is multiplied, M in whole blocks."""
    m = whole_rows(m)
    return _cut(plain, 0, m, k, (k // BLOCK, m))


def kept_weight(kept: torch.Tensor, n: int, k: int) -> Tensors:
    """(codes [K, N], scales [K/128, N/128]) of what is kept of w."""
    return _cut(kept, 0, k, n, (k // BLOCK, n // BLOCK))


def plain_weight(kept: torch.Tensor, n: int, k: int) -> Tensors:
    """(codes [N, K], scales [N/128, K/128]) of both copies of w."""
    start = -(-kept_weight_bytes(n, k) // 16) * 16
    return _cut(kept, start, n, k, (n // BLOCK, k // BLOCK))


# -- a layer at one shape ----------------------------------------------------------------------------

_X, _W, _Y, _KEPT_X, _KEPT_W, _WORK = range(6)
"""Base addresses of a chain. The backward pass has dy in the place of x, dx in that of y, dw in that of w."""


class Layer:
    """y = x . w^T at M, N, K on one device, its backward, and its inference form. Raises NotServed.

    N of 0: the quantisation of x alone. ``trains``: kernels work on rows in whole blocks; those beyond x's and dy's are
    zeros that only the copy engine makes, and results are the first rows of what is allocated.
    """

    def __init__(self, m: int, n: int, k: int, device: torch.device, trains: bool | None = None) -> None:
        self.rows, self.n, self.k = m, n, k
        self.trains = m % BLOCK == 0 if trains is None else trains
        self.m = whole_rows(m) if self.trains else m
        self.again = m >= AGAIN_ROWS
        self._short = m if m != self.m else None
        self._device, self._index = device, device.index or 0
        self._stream = torch._C._cuda_getCurrentRawStream
        with torch.inference_mode(False):
            self._results = torch.empty(0, dtype=torch.bfloat16, device=device).new_empty
            self._bytes = torch.empty(0, dtype=torch.uint8, device=device).new_empty
        self._lock = threading.Lock()
        self._chains: dict[str, tuple[Chain, int]] = {}
        self._kept_x, self._kept_w = kept_bytes(m, k), kept_weight_bytes(n, k)

    def _chain(self, name: str) -> tuple[Chain, int]:
        """A chain, and the bytes of its workspace."""
        found = self._chains.get(name)
        if found is None:
            with self._lock:
                found = self._chains.get(name)
                if found is None:
                    found = self._chains[name] = self._made(name)
        return found

    def _made(self, name: str) -> tuple[Chain, int]:
        """``quantise``, or a pass and how: the weight ``kept`` or quantised ``again``, for ``x`` or ``w`` only."""
        which, *how = name.split("_")
        if which == "quantise":
            return self._quantise_chain()
        if which == "backward":
            return self._backward_chain(need_x="w" not in how, need_w="x" not in how, again="again" in how)
        return self._forward_chain(training=which == "forward", kept_weight="kept" in how, again="again" in how)

    # -- what each pass is made of -------------------------------------------------------------------

    def _quantise_chain(self) -> tuple[Chain, int]:
        """x in both forms, the plain one in the place of y."""
        m, k = self.m, self.k
        chain, work = Chain(), Layout()
        serve = _served("quant_dual", (m, k), self._device, self._short)
        results = [(_Y, 0), (_Y, m * k), (_KEPT_X, 0), (_KEPT_X, m * k)]
        chain.add(serve, [(_X, 0)], results, _room(work))
        return chain, work.bytes

    def _forward_chain(self, *, training: bool, kept_weight: bool, again: bool = False) -> tuple[Chain, int]:
        """``training``: the place of x holds its codes and scales. ``again``: nothing is kept of w."""
        m, n, k = self.m, self.n, self.k
        chain, work = Chain(), Layout()
        room = _room(work)
        one = None
        if not training and m <= serving_rows(self._device):
            one = _served("linear", (m, n, k), self._device)
        if training or (one is not None and one.plan is not None):
            x: list[Place] = [(_X, 0), (_X, m * k)] if training else [(_X, 0)]
        else:
            x = [room(m * k), room(4 * m * (k // BLOCK))]
            chain.add(_served("quant_1x128", (m, k), self._device, self._short), [(_X, 0)], x, room)
        if kept_weight:
            start = -(-self._kept_w // 16) * 16
            w = [(_KEPT_W, start), (_KEPT_W, start + n * k)]
        else:
            w = [room(n * k), room(4 * (n // BLOCK) * (k // BLOCK))]
            keeps = training and not again
            w_kept = [(_KEPT_W, 0), (_KEPT_W, n * k)] if keeps else []
            serve_w = _served("quant_128x128_dual" if keeps else "quant_128x128", (n, k), self._device)
            chain.add(serve_w, [(_W, 0)], [*w, *w_kept], room)
        if one is None or one.plan is None:
            one = _served("gemm_nt", (m, n, k), self._device)
        chain.add(one, [*x, *w], [(_Y, 0)], room)
        return chain, work.bytes

    def _backward_chain(self, *, need_x: bool, need_w: bool, again: bool = False) -> tuple[Chain, int]:
        """``again``: the place of what is kept of w holds w."""
        m, n, k, device = self.m, self.n, self.k, self._device
        chain, work = Chain(), Layout()
        room = _room(work)
        dy = [room(m * n), room(4 * m * (n // BLOCK))]
        dy_t = [room(m * n), room(4 * (m // BLOCK) * n)]
        chain.add(_served("quant_dual", (m, n), device, self._short), [(_X, 0)], [*dy, *dy_t], room)
        if need_x:
            w_t: list[Place] = [(_KEPT_W, 0), (_KEPT_W, n * k)]
            if again:
                plain, w_t = ([room(n * k), room(4 * (n // BLOCK) * (k // BLOCK))] for _ in range(2))
                chain.add(_served("quant_128x128_dual", (n, k), device), [(_KEPT_W, 0)], [*plain, *w_t], room)
            chain.add(_served("gemm_nt", (m, k, n), device), [*dy, *w_t], [(_Y, 0)], room)
        if need_w:
            x_t = [(_KEPT_X, 0), (_KEPT_X, m * k)]
            chain.add(_served("gemm_nt_rows", (n, k, m), device), [*dy_t, *x_t], [(_W, 0)], room)
        return chain, work.bytes

    def ready(self, training: bool) -> None:
        """Resolve what a pass needs. Raises NotServed."""
        if not training:
            self._chain("infer")
            return
        ways = ("forward_again", "backward_again") if self.again else ("forward", "backward")
        for name in ("quantise", *(ways if self.n else ())):
            self._chain(name)

    # -- the passes ----------------------------------------------------------------------------------

    def _given(self, result: torch.Tensor) -> torch.Tensor:
        """A result without the rows that the caller does not have."""
        return result if self._short is None else first_rows(result, self.rows)

    def _queue(self, chain: Chain, size: int, bases: tuple[int, ...]) -> None:
        """Queue a pass whose workspace has ``size`` bytes on the current stream."""
        stream = self._stream(self._index)
        if not size:
            chain((*bases, 0), stream)
            return
        if torch._C._cuda_getDevice() != self._index:
            room = self._bytes(size)
            chain((*bases, room.data_ptr()), stream)
            return
        work = torch._C._cuda_cudaCachingAllocator_raw_alloc(size, stream)
        try:
            chain((*bases, work), stream)
        finally:
            torch._C._cuda_cudaCachingAllocator_raw_delete(work)

    def quantise(self, x: torch.Tensor) -> Tensors:
        """Codes and scales of x, and what is kept of it, for every layer of these rows and K."""
        m, k = self.m, self.k
        chain, size = self._chain("quantise")
        plain, kept = self._bytes(m * k + 4 * m * (k // BLOCK)), self._bytes(self._kept_x)
        self._queue(chain, size, (x.data_ptr(), 0, plain.data_ptr(), kept.data_ptr(), 0))
        return plain, kept

    def forward(self, plain: torch.Tensor, w: torch.Tensor, again: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """y from ``quantise`` of x, and what is kept of w: w itself where it is quantised ``again``."""
        chain, size = self._chain("forward_again" if again else "forward")
        y, kept_w = self._results(self.m, self.n), w if again else self._bytes(self._kept_w)
        self._queue(chain, size, (plain.data_ptr(), w.data_ptr(), y.data_ptr(), 0, kept_w.data_ptr()))
        return self._given(y), kept_w

    def forward_kept(self, plain: torch.Tensor, kept_w: torch.Tensor) -> torch.Tensor:
        """As ``forward``; ``kept_w`` holds both copies of w."""
        chain, size = self._chain("forward_kept")
        y = self._results(self.m, self.n)
        self._queue(chain, size, (plain.data_ptr(), 0, y.data_ptr(), 0, kept_w.data_ptr()))
        return self._given(y)

    def infer_at(self, name: str, x: int, w: int, shape: tuple[int, ...]) -> torch.Tensor:
        """y alone, of addresses, in a shape of as many elements; by ``infer_kept`` w is the address of both copies."""
        found = self._chains.get(name)
        chain, size = self._chain(name) if found is None else found
        y = self._results(shape)
        if size > MOST_HELD or self._stream(self._index):
            self._queue(chain, size, (x, w, y.data_ptr(), 0, w))
        else:
            chain((x, w, y.data_ptr(), 0, w, HELD.address(self._device)), 0)
        return y

    def backward(
        self, dy: torch.Tensor, kept_x: torch.Tensor, w: torch.Tensor, need_x: bool, need_w: bool, again: bool = False
    ) -> Tensors:
        """dx and dw, empty where not needed, from a contiguous dy; ``again``: from w, not from what is kept of it."""
        m, n, k = self.m, self.n, self.k
        name = "backward_w" if not need_x else "backward" + "_again" * again + "_x" * (not need_w)
        chain, size = self._chain(name)
        dx = self._results(m, k) if need_x else self._bytes(0)
        dw = self._results(n, k) if need_w else self._bytes(0)
        self._queue(chain, size, (dy.data_ptr(), dw.data_ptr(), dx.data_ptr(), kept_x.data_ptr(), w.data_ptr()))
        return self._given(dx) if need_x else dx, dw


MOST_HELD = 1 << 22


class Held(threading.local):
    """``MOST_HELD`` bytes a thread and device, in which calls on the default stream work one after the other: asking
    torch's allocator for as much costs a call of few rows a microsecond. That stream is never captured."""

    def __init__(self) -> None:
        self._rooms: dict[torch.device, tuple[int, torch.Tensor]] = {}

    def address(self, device: torch.device) -> int:
        found = self._rooms.get(device)
        if found is None:
            room = torch.empty(MOST_HELD, dtype=torch.uint8, device=device)
            found = self._rooms[device] = room.data_ptr(), room
        return found[0]


HELD = Held()


def _room(work: Layout) -> Callable[[int], Place]:
    return lambda size: (_WORK, work.add(size))


# -- layers by shape ---------------------------------------------------------------------------------

_LAYERS: dict[tuple[int, int, int, torch.device, bool], Layer | None] = {}
_LOCK = threading.RLock()


def entry(m: int, n: int, k: int, device: torch.device, trains: bool) -> Layer | None:
    """The layer at a shape; None where one of its operators has no plan."""
    key = (m, n, k, device, trains)
    try:
        return _LAYERS[key]
    except KeyError:
        pass
    with _LOCK:
        if key not in _LAYERS:
            layer: Layer | None = Layer(m, n, k, device, trains)
            try:
                assert layer is not None
                layer.ready(trains)
            except NotServed:
                layer = None
            _LAYERS[key] = layer
    return _LAYERS[key]
