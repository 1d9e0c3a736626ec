"""Tensors of an emulated program: behind pointers, and behind the maps that bulk copies go by."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl

from tilewright.workers.runners.gluon_emulator.values import EmulationError, StrayAccess, Tensor, lift, rounded, storage

_TORCH = {
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2: tl.float8e5,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bool: tl.int1,
    **{getattr(torch, f"int{n}"): getattr(tl, f"int{n}") for n in (8, 16, 32, 64)},
    torch.uint8: tl.uint8,
}


class Global:
    """The elements a tensor spans, as one line of memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.dtype not in _TORCH:
            raise EmulationError(f"the emulator has no tensors of {tensor.dtype}")
        self.dtype = _TORCH[tensor.dtype]
        span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        span = span if tensor.numel() else 0
        flat = tensor.as_strided((span,), (1,))
        raw = flat.view(torch.uint8).numpy() if tensor.element_size() == 1 else flat.view(_bits(tensor)).numpy()
        self.line = raw.view(storage(self.dtype))

    def check(self, at: np.ndarray, what: str) -> None:
        if at.size and (at.min() < 0 or at.max() >= self.line.size):
            raise StrayAccess(f"{what} outside of its tensor: element {int(at.max())} of {self.line.size}")


def _bits(tensor: torch.Tensor) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]


class Pointer:
    """Addresses of elements of one tensor: ``at`` [...] int64, in elements."""

    def __init__(self, memory: Global, at: np.ndarray, layout: Any = None) -> None:
        self.memory, self.at, self.layout = memory, at, layout

    @property
    def shape(self) -> tuple[int, ...]:
        return self.at.shape

    @property
    def dtype(self) -> Any:
        return tl.pointer_type(self.memory.dtype)

    def __add__(self, other: Any) -> "Pointer":
        offset = lift(other)
        return Pointer(self.memory, self.at + offset.data.astype(np.int64), self.layout or offset.layout)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Pointer":
        return self + (-lift(other))

    def __getitem__(self, where: Any) -> "Pointer":
        return Pointer(self.memory, self.at[where])

    def load(self, mask: Any, other: Any) -> Tensor:
        kept = np.broadcast_to(True if mask is None else lift(mask).data, self._whole(mask))
        at = np.broadcast_to(self.at, kept.shape)
        self.memory.check(at[kept], "a load")
        found = np.zeros(kept.shape, self.memory.line.dtype)
        found[kept] = self.memory.line[at[kept]]
        if other is not None and not kept.all():
            filled = np.broadcast_to(rounded(lift(other).data, self.memory.dtype), kept.shape)
            found[~kept] = filled[~kept]
        return Tensor(found, self.memory.dtype, self.layout)

    def store(self, value: Any, mask: Any) -> None:
        kept = np.broadcast_to(True if mask is None else lift(mask).data, self._whole(mask))
        at = np.broadcast_to(self.at, kept.shape)
        self.memory.check(at[kept], "a store")
        values = np.broadcast_to(rounded(lift(value).data, self.memory.dtype), kept.shape)
        self.memory.line[at[kept]] = values[kept]

    def add_atomically(self, value: Any, mask: Any) -> Tensor:
        before = self.load(mask, None)
        kept = np.broadcast_to(True if mask is None else lift(mask).data, self._whole(mask))
        at, values = np.broadcast_to(self.at, kept.shape), np.broadcast_to(lift(value).data, kept.shape)
        np.add.at(self.memory.line, at[kept], values[kept].astype(self.memory.line.dtype))
        return before

    def _whole(self, mask: Any) -> tuple[int, ...]:
        return np.broadcast_shapes(self.at.shape, lift(mask).shape if mask is not None else ())


class Descriptor:
    """A tensor map: rows of a tensor in boxes; outside of the tensor reads are zero and writes are nothing."""

    def __init__(self, made: Any) -> None:
        base = made.base
        self.shape = [int(n) for n in made.shape]
        strides = [int(n) for n in made.strides]
        self.block_shape, self.layout = [int(n) for n in made.block_shape], made.layout
        self.dtype = _TORCH[base.dtype]
        self.strides = strides
        width = base.element_size()
        if strides[-1] != 1 or any(s * width % 16 for s in strides[:-1]):
            raise EmulationError("a descriptor's rows do not begin at 16 bytes")
        if any(not 1 <= n <= 256 for n in self.block_shape):
            raise EmulationError("a side of a descriptor's box is longer than 256")
        # what TMA can take at once: the swizzle's width along the last dimension is the compiler's to split
        self.array = base.as_strided(self.shape, strides).view(torch.uint8 if width == 1 else _bits(base)).numpy()
        self.array = self.array.view(storage(self.dtype))

    @property
    def block_type(self) -> Any:
        kind = storage(self.dtype)
        size = int(np.prod(self.block_shape))
        return type("block", (), {"nbytes": size * kind.itemsize, "shape": self.block_shape})

    def window(self, coordinates: Sequence[Any]) -> tuple[list[slice], list[slice]]:
        """Where a box lies in the tensor, and which part of the box that is."""
        starts = [int(c) for c in coordinates]
        if len(starts) != len(self.shape):
            raise EmulationError(f"{len(starts)} coordinates for {len(self.shape)} dimensions")
        if starts[-1] * storage(self.dtype).itemsize % 16:
            raise EmulationError(f"a copy's innermost coordinate {starts[-1]} does not lie at 16 bytes")
        low = [min(max(s, 0), n) for s, n in zip(starts, self.shape, strict=True)]
        high = [min(max(s + b, 0), n) for s, b, n in zip(starts, self.block_shape, self.shape, strict=True)]
        outside = [slice(a, max(a, b)) for a, b in zip(low, high, strict=True)]
        inside = [slice(w.start - s, w.stop - s) for w, s in zip(outside, starts, strict=True)]
        return outside, inside

    def read(self, coordinates: Sequence[Any]) -> np.ndarray:
        outside, inside = self.window(coordinates)
        box = np.zeros(self.block_shape, storage(self.dtype))
        if all(w.stop > w.start for w in outside):
            box[tuple(inside)] = self.array[tuple(outside)]
        return box

    def write(self, coordinates: Sequence[Any], box: np.ndarray) -> None:
        outside, inside = self.window(coordinates)
        if all(w.stop > w.start for w in outside):
            self.array[tuple(outside)] = box.reshape(self.block_shape)[tuple(inside)]
