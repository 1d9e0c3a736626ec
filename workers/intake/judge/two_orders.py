"""A reference's arithmetic as a compiler may do it: sums in two orders, and what is used twice computed twice.

Where scores are thousands, their last place turns a softmax. A compiler that sums them once for the sum of weights and
once beside the values makes weights that do not add up to one: such inputs tell nothing of a kernel.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

aten = torch.ops.aten


def _turned(func: Any, args: list[Any]) -> list[Any]:
    """An operation's operands with what is summed in reversed order."""
    if func in (aten.mm.default, aten.bmm.default):
        return [args[0].flip(-1), args[1].flip(-2)]
    if func in (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim):
        return [args[0].flip((args[1:] or [None])[0] or list(range(args[0].ndim))), *args[1:]]
    return args


def called_twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch under ``TwoOrders``, attention in its parts."""

    def called(*values: Any, **named: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH), TwoOrders():
            return function(*values, **named)

    return called


class TwoOrders(TorchDispatchMode):
    """While open, torch's values have twins, summed in reversed order; each second use of one takes the other."""

    def __init__(self) -> None:
        super().__init__()
        self._twins, self._uses = WeakIdKeyDictionary(), WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten._softmax.default, aten._safe_softmax.default, aten._log_softmax.default):
            with self:
                low = args[0] - args[0].amax(args[1], True)
                total = (weights := low.exp()).sum(args[1], True)
                return low - total.log() if func is aten._log_softmax.default else weights / total
        pairs = [self._pair(arg) for arg in args]
        if func._schema.is_mutable and isinstance(args[0], torch.Tensor):  # it and its twin are written to
            pairs[0] = args[0], self._twins.get(args[0], args[0]).clone()
        made = func(*(one for one, _ in pairs), **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.is_floating_point():
            self._twins[made] = func(*_turned(func, [other for _, other in pairs]), **(kwargs or {}))
        return made

    def _pair(self, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, torch.Tensor) or value not in self._twins:
            return value, value
        self._uses[value] = uses = self._uses.get(value, 0) + 1
        return (value, self._twins[value]) if uses % 2 else (self._twins[value], value)
