"""A reference's arithmetic as a compiler may do it: sums in two orders, and what is used twice computed twice.

A kernel that is right in one order may lose all digits in another: where scores are thousands, their last place turns
a softmax, and a compiler that computes them once under the sum of weights and once beside the values gives weights that
do not add up to one. Inputs on which that happens tell nothing of a kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

aten = torch.ops.aten


def _softmax(x: torch.Tensor, dim: int, *_: Any) -> torch.Tensor:
    weights = (x - x.amax(dim, True)).exp()
    return weights / weights.sum(dim, True)


def _log_softmax(x: torch.Tensor, dim: int, *_: Any) -> torch.Tensor:
    low = x - x.amax(dim, True)
    return low - low.exp().sum(dim, True).log()


PARTS: Mapping[Any, Callable[..., torch.Tensor]] = {
    aten._softmax.default: _softmax,
    aten._safe_softmax.default: _softmax,
    aten._log_softmax.default: _log_softmax,
}
"""Operations that a kernel does in several steps."""


def _products_turned(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return a.flip(-1), b.flip(-2)


def _sum_turned(x: torch.Tensor, dim: Sequence[int] | None = None, *rest: Any) -> tuple[Any, ...]:
    return (x.flip(list(dim) if dim else list(range(x.ndim))), *([dim] if dim is not None else []), *rest)


TURNED: Mapping[Any, Callable[..., tuple[Any, ...]]] = {
    aten.mm.default: _products_turned,
    aten.bmm.default: _products_turned,
    aten.sum.dim_IntList: _sum_turned,
    aten.sum.default: _sum_turned,
    aten.mean.dim: _sum_turned,
}
"""By operation, its operands with the elements that are summed in reversed order."""


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch, as TwoOrders computes it, attention in its parts."""

    def twice(*values: Any, **named: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH), TwoOrders():
            return function(*values, **named)

    return twice


class TwoOrders(TorchDispatchMode):
    """While open, torch's values have twins whose sums go the other way round, and every second use of one takes the
    other."""

    def __init__(self) -> None:
        super().__init__()
        self._twins: Any = WeakIdKeyDictionary()
        self._uses: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in PARTS:
            with self:
                return PARTS[func](*args, **options)
        pairs = [self._pair(arg) for arg in args]
        if func._schema.is_mutable and isinstance(args[0], torch.Tensor):  # it and its twin are written to
            pairs[0] = args[0], self._twins.get(args[0], args[0]).clone()
        mine, twins = [one for one, _ in pairs], [other for _, other in pairs]
        made = func(*mine, **options)
        if isinstance(made, torch.Tensor) and made.is_floating_point():
            self._twins[made] = func(*TURNED[func](*twins) if func in TURNED else twins, **options)
        return made

    def _pair(self, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, torch.Tensor) or value not in self._twins:
            return value, value
        self._uses[value] = uses = self._uses.get(value, 0) + 1
        pair = value, self._twins[value]
        return pair if uses % 2 else pair[::-1]
