"""``torch.nn.functional.linear`` in blockwise FP8 for listed shapes. Changes numerics."""

from collections.abc import Collection
from typing import Any

import torch

from .torch_modules import multiply


class LinearLayers:
    """While installed, bf16 linear layers of the listed shapes (M, N, K) multiply in FP8; all others as before."""

    label = "torch.nn.functional.linear"

    def __init__(self, shapes: Collection[tuple[int, int, int]]) -> None:
        self._shapes = frozenset(tuple(shape) for shape in shapes)
        self._original: Any = None
        self.calls = self.others = 0

    def install(self) -> None:
        if self._original is None:
            self._original = torch.nn.functional.linear
            torch.nn.functional.linear = self._linear

    def uninstall(self) -> None:
        if self._original is not None:
            torch.nn.functional.linear, self._original = self._original, None

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        if not self._takes(input, weight):
            self.others += 1
            return self._original(input, weight, bias)
        self.calls += 1
        y = multiply(input, weight)
        return y if bias is None else y + bias

    def _takes(self, x: Any, w: Any) -> bool:
        if type(x) is not torch.Tensor or type(w) not in (torch.Tensor, torch.nn.Parameter) or w.dim() != 2:
            return False
        if x.dtype is not torch.bfloat16 or w.dtype is not torch.bfloat16 or not x.is_cuda or not x.numel():
            return False
        return (x.numel() // x.shape[-1], w.shape[0], w.shape[1]) in self._shapes
