"""``torch.nn.functional.linear`` in blockwise FP8 for listed shapes. Changes numerics."""

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from .launch_replacement import standing
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
        """By weight: its address and version, both quantised copies, which live as long as it does, and its stream."""
        self._stand_ins: dict[Any, Any] = {}
        self.installed = False
        self.calls = self.others = 0

    def __repr__(self) -> str:
        return f"LinearLayers({sorted(self._shapes)}, kept={self._kept is not None})"

    def install(self) -> None:
        original = F.linear
        if not self.installed:
            F.linear = self._stand_ins.get(original) or self._stand_in(original)
            self._stand_ins[original], self.installed = F.linear, True

    def uninstall(self) -> None:
        """Other layers that were installed since stay, and do not give back what is installed no longer."""
        self.installed = False
        F.linear = standing(F.linear)

    def _stand_in(self, original: Any) -> Any:
        def linear(input: Any, weight: Any, bias: Any = None) -> Any:
            # what torch.compile traces would be compiled again for each other count
            if torch.compiler.is_compiling() or not self.installed:
                return original(input, weight, bias)
            if not self._takes(input, weight, bias):
                self.others += 1
                return original(input, weight, bias)
            self.calls += 1
            copies = None if self._kept is None else self._copies(input, weight)
            if copies is None:
                y = multiply(input, weight)
            else:
                y = linear_infer(input.reshape(-1, input.shape[-1]), weight, copies)
                y = y.view(*input.shape[:-1], len(weight))
            return y if bias is None else y + bias

        vars(linear).update(_original=original, _replacement=self)
        return linear

    def _copies(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor | None:
        """Those of w; None where it has to be quantised in the call."""
        differentiated = torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)
        if differentiated or w.is_inference():
            return None
        seen, found = (w.data_ptr(), w._version), self._kept.get(w)
        stream, capturing = torch.cuda.current_stream(w.device), torch.cuda.is_current_stream_capturing()
        if found is None or found[0] != seen:
            # where other streams may read them, the one that made them makes them anew
            if capturing or (found is not None and found[2] != stream):
                return None
            with torch.inference_mode(False), torch.no_grad():  # they may change outside of it
                made = quantise_weight(w.detach().contiguous())
            made = made if found is None else found[1].copy_(made)
            found = self._kept[w] = seen, made, stream, stream.record_event()
        elif found[2] != stream and not capturing:  # a capture begins when all is done
            stream.wait_event(found[3])
        copies: torch.Tensor = found[1]
        return copies

    def _takes(self, x: Any, w: Any, bias: Any) -> bool:
        if type(x) is not torch.Tensor or not unwatched(x, w):
            return False
        fits = w.dim() == 2 and x.shape[-1:] == w.shape[1:] and x.device == w.device
        if not (fits and x.is_cuda and x.numel()):
            return False
        kinds = [torch.get_autocast_dtype("cuda")] if torch.is_autocast_enabled("cuda") else []
        kinds += [t.dtype for t in (x, w, bias) if t is not None]
        size = (x.numel() // x.shape[-1], *w.shape)
        return size in self._shapes and all(kind is torch.bfloat16 for kind in kinds)
