"""Calls of a function in a step, made again: results and gradients, apart from what the rest of the step does to them.

A step may be thrown elsewhere by any last bit, so that nothing can be told of a function by the step's gradients.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tilewright.library.launch_replacement import Counted, Signature, call_signature, untraced
from tilewright.workers.program.launches import Values, short, stored_bytes
from tilewright.workers.program.step import LAST_BIT, SEED, real

MOST_CALLS, MOST_CALL_BYTES = 4, 2 << 30
"""Kinds of calls that are kept at once, and the bytes of one."""


@dataclass(frozen=True)
class Call:
    """A call of ``function`` as a step made it: the leaves of its arguments, a ``tree``, of which ``memory`` holds the
    tensors and ``wanted`` are differentiated, and the ``modes`` of autograd and autocast."""

    function: Callable[..., Any]
    leaves: list[Any]
    tree: Any
    modes: tuple[Any, ...]
    memory: Values
    wanted: list[int]

    def arguments(self, tensors: Mapping[Any, torch.Tensor]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """With these tensors, by their places among the leaves."""
        args, kwargs = tree_unflatten([tensors.get(n, v) for n, v in enumerate(self.leaves)], self.tree)
        return args, kwargs

    def __str__(self) -> str:
        """As ``tilewright tune --args`` takes it."""
        args, kwargs = self.arguments(self.memory.tensors(self.memory.storages))
        return ", ".join([*map(short, args), *(f"{name}={short(value)}" for name, value in kwargs.items())])


@dataclass(eq=False)
class Watch(Counted):
    """Stands for a function of a step and notes its calls."""

    keep: bool = True
    """Whether with copies of their tensors, one of each kind."""
    known: set[Signature] = field(default_factory=set)
    """Kinds that need not be kept."""
    seen: set[Signature] = field(default_factory=set, init=False)
    kept: dict[Signature, Call] = field(default_factory=dict, init=False)
    unkept: bool = field(default=False, init=False)
    """Whether tensors of a call are too large to be kept, or lie in no memory."""

    def stand_in(self, original: Any) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if (signature := call_signature(args, kwargs)) is None:
                self.unkept = True
                return original(*args, **kwargs)
            self.seen.add(signature)
            if self.keep and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                try:
                    self._note(signature, original, *tree_flatten((args, kwargs)))
                except (RuntimeError, TypeError):  # a tensor's class has no such call, or memory is short
                    self.unkept = True
            return original(*args, **kwargs)

        found = untraced(called)
        vars(found).update(_original=original, _replacement=self)
        return found

    def _note(self, signature: Signature, original: Callable[..., Any], leaves: list[Any], tree: Any) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        cast = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        modes = (torch.is_grad_enabled(), device, *cast)
        tensors: dict[Any, torch.Tensor] = {n: v for n, v in enumerate(leaves) if torch.is_tensor(v)}
        wanted = [n for n, t in tensors.items() if t.requires_grad and modes[0]]
        if signature in self.known or signature in self.kept or len(self.kept) == MOST_CALLS:
            return
        if stored_bytes(tensors.values()) > MOST_CALL_BYTES:
            self.unkept = True
            return
        others = [None if torch.is_tensor(v) else v for v in leaves]
        self.kept[signature] = Call(original, others, tree, modes, Values.of(tensors), wanted)


class _Given(torch.autograd.Function):
    """A tensor with the gradients of a leaf: a function may write over it."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of floats as they are, of complex numbers as pairs. Integers, such as tokens, become scattered floats: two
    that differ are far apart, however near the integers are."""
    tensor = real(tensor)
    if tensor.is_floating_point():
        return tensor.clone()
    return ((tensor.long() * 2654435761 >> 7) % 65536 - 32768).float()


def answers(of: Call, call: Callable[..., Any], nudged: bool = False) -> dict[str, Any]:
    """What a function returns and changes when it is called so, and the gradients of its tensors, by a name of each.
    ``nudged``: with the last bit of bfloat16 of every number changed, up or down or not."""
    grad, device, dtype, enabled = of.modes
    storages = [s.clone() for s in of.memory.storages]
    torch.manual_seed(SEED)
    for n, storage in enumerate(storages):
        kind, *mixed = {dtype for of_storage, dtype, *_ in of.memory.views.values() if of_storage == n}
        if nudged and not mixed and kind.is_floating_point and kind.itemsize > 1:
            numbers_in = storage.view(kind)
            numbers_in.mul_(1 + LAST_BIT * torch.randint_like(numbers_in, -1, 2))
    given: dict[Any, torch.Tensor] = {n: t.detach() for n, t in of.memory.tensors(storages).items()}
    wanted = {n: given[n].detach().requires_grad_() for n in of.wanted}
    given |= {n: _Given.apply(leaf, given[n]) for n, leaf in wanted.items()}
    args, kwargs = of.arguments(given)
    with torch.set_grad_enabled(grad), torch.autocast(device, dtype, enabled):
        returned = tree_map(_opened, tree_map(_opened, call(*args, **kwargs)))
    every, form = tree_flatten(returned)
    every = [torch.tensor(v) if isinstance(v, float | complex) else v for v in every]
    tensors = [t for t in every if torch.is_tensor(t)]
    found = {f"result {n} {short(t)}": numbers(t.detach()) for n, t in enumerate(tensors)}
    others = " ".join(repr(v) for v in every if not torch.is_tensor(v))
    found[f"result as {form} {others}".strip()] = torch.ones(())
    found |= {f"result in argument {n}": numbers(t.detach()) for n, t in given.items()}
    roots = [t for t in tensors if t.requires_grad]
    if roots and wanted:
        torch.manual_seed(SEED)
        upstream = [torch.randn_like(t) for t in roots]
        gradients = torch.autograd.grad(roots, [*wanted.values()], upstream, allow_unused=True)
        pairs = zip(wanted, gradients, strict=True)
        found |= {f"argument {n}": numbers(g) for n, g in pairs if g is not None}
    return found


def _opened(value: Any) -> Any:
    """What a generator yields, the attributes of an object, or the value."""
    if torch.is_tensor(value) or isinstance(value, bool | int | float | complex | str | None):
        return value
    if isinstance(value, Iterator):
        return list(itertools.islice(value, 1000))  # some never end
    own = getattr(value, "__dict__", None)
    return {"": type(value).__name__, **own} if own else re.sub("0x[0-9a-f]+", "", repr(value))
