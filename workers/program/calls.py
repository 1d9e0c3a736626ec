"""Calls of a function in a step, made again: results and gradients, apart from what the rest of the step does to them.

A step may be thrown elsewhere by any last bit, so that nothing can be told of a function by the step's gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tilewright.library.launch_replacement import Counted, Signature, call_signature, untraced
from tilewright.workers.program.launches import short
from tilewright.workers.program.step import LAST_BIT, SEED

MOST_CALLS, MOST_CALL_BYTES = 4, 2 << 30


@dataclass(eq=False)
class Watch(Counted):
    """Stands for a function of a step and notes its calls."""

    keep: bool = True
    """Whether with copies of their tensors: one of each kind, by what is differentiated, too."""
    seen: set[Signature] = field(default_factory=set, init=False)
    kept: dict[Any, tuple[Any, ...]] = field(default_factory=dict, init=False)

    def stand_in(self, original: Any) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.seen.add(signature := call_signature(args, kwargs))
            if self.keep and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                values, tree = tree_flatten((args, kwargs))
                tensors = {n: v for n, v in enumerate(values) if torch.is_tensor(v)}
                kind = (signature, torch.is_grad_enabled(), *(v.requires_grad for v in tensors.values()))
                size = sum(v.numel() * v.element_size() for v in tensors.values())
                if kind not in self.kept and len(self.kept) < MOST_CALLS and size <= MOST_CALL_BYTES:
                    self.kept[kind] = (original, list(map(_copied, values)), tree)
            return original(*args, **kwargs)

        found = untraced(called)
        vars(found).update(_original=original, _replacement=self)
        return found


def _copied(value: Any) -> Any:
    if not torch.is_tensor(value):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad and torch.is_grad_enabled())


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of floats or complex numbers as it is. Integers, such as tokens, become scattered floats: two that
    differ are far apart, however near the integers are."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor
    return ((tensor.long() * 2654435761 >> 7) % 65536 - 32768).float()


def call_text(values: list[Any], tree: Any) -> str:
    """A call as ``tilewright tune --args`` takes it."""
    args, kwargs = tree_unflatten(values, tree)
    return ", ".join([*map(short, args), *(f"{name}={short(value)}" for name, value in kwargs.items())])


def answers(call: Callable[..., Any], values: list[Any], tree: Any, nudged: bool = False) -> dict[str, Any]:
    """What a call returns and changes, and the gradients of its tensors, by a name of each. ``nudged``: with the last
    bit of bfloat16 of every number changed, up or down or not."""
    leaves = {n: _copied(v) for n, v in enumerate(values) if torch.is_tensor(v)}
    given = {n: leaf.clone() for n, leaf in leaves.items()}  # some functions write over what they are given
    if nudged:
        torch.manual_seed(SEED)
        for n, t in given.items():
            if t.is_floating_point() and t.element_size() > 1:
                given[n] = t * (1 + LAST_BIT * torch.randint_like(t, -1, 2))
    args, kwargs = tree_unflatten([given.get(n, v) for n, v in enumerate(values)], tree)
    every, form = tree_flatten(call(*args, **kwargs))
    every = [torch.tensor(v) if isinstance(v, float) else v for v in every]
    returned = [t for t in every if torch.is_tensor(t)]
    found = {f"result {n} {short(t)}": numbers(t.detach()) for n, t in enumerate(returned)}
    others = [
        repr(v) if isinstance(v, int | str | None) else type(v).__name__
        for v in every
        if not torch.is_tensor(v)
    ]
    found[f"result as {form} {' '.join(others)}".strip()] = torch.ones(())
    found |= {f"result in argument {n}": numbers(t.detach()) for n, t in given.items()}
    roots = [t for t in returned if t.requires_grad]
    wanted = {n: leaf for n, leaf in leaves.items() if leaf.requires_grad}
    if roots and wanted:
        torch.manual_seed(SEED)
        upstream = [torch.randn_like(t) for t in roots]
        gradients = torch.autograd.grad(roots, [*wanted.values()], upstream, allow_unused=True)
        found |= {f"argument {n}": g for n, g in zip(wanted, gradients, strict=True) if g is not None}
    return found
