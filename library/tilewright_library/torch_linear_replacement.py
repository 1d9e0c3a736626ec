"""``torch.nn.functional.linear`` in blockwise FP8 for listed shapes. Changes numerics."""

from collections.abc import Collection
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .torch_modules import multiply
from .torch_operators import linear_infer, quantise_weight, unwatched


class LinearLayers:
    """While installed, bf16 linear layers of the listed shapes (M, N, K) multiply in FP8; all others as before.

    ``kept``: where nothing is differentiated, a weight is quantised once, and again where autograd saw it change. A
    CUDA graph multiplies by what it was captured with.
    """

    label = "torch.nn.functional.linear"

    def __init__(self, shapes: Collection[tuple[int, int, int]], kept: bool = False) -> None:
        self._shapes = frozenset(tuple(shape) for shape in shapes)
        self._kept: Any = WeakTensorKeyDictionary() if kept else None
        """By weight: its address and version, and both quantised copies, which live as long as it does."""
        self._original: Any = None
        self.calls = self.others = 0

    def __repr__(self) -> str:
        return f"LinearLayers({sorted(self._shapes)}, kept={self._kept is not None})"

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
        copies = None if self._kept is None else self._copies(input, weight)
        if copies is None:
            y = multiply(input, weight)
        else:
            y = linear_infer(input.reshape(-1, input.shape[-1]), weight, copies)
            y = y.view(*input.shape[:-1], len(weight))
        return y if bias is None else y + bias

    def _copies(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor | None:
        """Those of w; None where it has to be quantised in the call."""
        differentiated = torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)
        if differentiated or w.is_inference() or not unwatched(x, w):
            return None
        seen, found = (w.data_ptr(), w._version), self._kept.get(w)
        if found is None or found[0] != seen:
            if torch.cuda.is_current_stream_capturing():
                return None
            with torch.inference_mode(False), torch.no_grad():  # they may change outside of it
                made = quantise_weight(w.detach().contiguous())
            found = self._kept[w] = seen, made if found is None else found[1].copy_(made)
        copies: torch.Tensor = found[1]
        return copies

    def _takes(self, x: Any, w: Any) -> bool:
        if type(x) is not torch.Tensor or type(w) not in (torch.Tensor, torch.nn.Parameter) or w.dim() != 2:
            return False
        if x.dtype is not torch.bfloat16 or w.dtype is not torch.bfloat16 or not x.is_cuda or not x.numel():
            return False
        return (x.numel() // x.shape[-1], w.shape[0], w.shape[1]) in self._shapes
