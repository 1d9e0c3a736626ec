"""The two halves of a ``torch.autograd.Function`` as one call: what its forward returns, and the gradients that its
backward makes of gradients of that."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from tilewright.workers.intake.calls.call_text import Call, TensorArgument
from tilewright.workers.intake.calls.dtypes import is_float
from tilewright.workers.intake.child_program import Refusal, first_line
from tilewright.workers.intake.triton.trace import Trace, current

GRADIENT = "tilewright_grad"
"""Keywords of a pair's call that are the gradients of its outputs begin with this, and so do the operands' names."""


class _Context(FunctionCtx):
    """The ``ctx`` that torch would give a Function's halves, where every float needs a gradient."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(map(_differentiable, arguments))
        self.to_save: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.materialize_grads = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return self.to_save


class AutogradPair:
    """The pair of a Function ``kind``. Called as its ``apply``, with a gradient for each float output as
    ``tilewright_grad0`` and so on, it returns the outputs and, of tensors that have one, the gradients.

    ``wanted``: numbers of the arguments that get a gradient, as the last call had them; ``outputs``: the tensors that
    forward returned, those that get a gradient first.
    """

    __name__ = "apply"

    def __init__(self, kind: type[torch.autograd.Function]) -> None:
        self.__self__ = kind
        self.wanted: tuple[int, ...] = ()
        self.outputs: list[torch.Tensor] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        kind: Any = self.__self__
        asked = sorted(name for name in keywords if name.startswith(GRADIENT))
        given = [keywords.pop(name) for name in asked]
        parameters = inspect.signature(kind.forward).parameters
        known = {k: v for k, v in keywords.items() if k in parameters}
        for value in arguments:
            if _differentiable(value):
                value.requires_grad_()
        context = _Context(arguments)
        if sets_up(kind):
            returned = kind.forward(*arguments, **known)
            kind.setup_context(context, arguments, returned)
        else:
            returned = kind.forward(context, *arguments, **known)
        found = returned if isinstance(returned, tuple) else (returned,)
        if not all(isinstance(part, torch.Tensor) for part in found):
            raise Refusal("its forward returns something that is no tensor")
        if context.dirty_tensors or any(part is value for part in found for value in arguments):
            raise Refusal("its forward changes an argument in place")
        fixed = context.non_differentiable
        floats = [t for t in found if t.is_floating_point() and all(t is not o for o in fixed)]
        if not context.materialize_grads and len(floats) > 1:
            raise Refusal("its backward may be called without some of the gradients")
        self.outputs = floats
        gradients = given or [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in floats]
        trace = current()
        if trace is not None:
            trace.split, trace.returned = len(trace.steps), returned
        after = iter(gradients)
        every = [next(after) if any(t is f for f in floats) else None for t in found]
        back = kind.backward(context, *every)
        back = back if isinstance(back, tuple) else (back,)
        pairs = list(zip(arguments, back, strict=False))
        self.wanted = tuple(n for n, (a, g) in enumerate(pairs) if g is not None and _differentiable(a))
        if trace is not None:
            trace.wanted = [arguments[n] for n in self.wanted]
        return (returned, tuple(back[n] for n in self.wanted))


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def sets_up(kind: Any) -> bool:
    """Whether forward is written without ``ctx``, beside a ``setup_context``."""
    return kind.setup_context is not torch.autograd.Function.setup_context


def pair_of(function: Any) -> AutogradPair | None:
    """The pair that an ``apply`` belongs to; None for any other function."""
    kind: Any = getattr(function, "__self__", None)
    known = isinstance(kind, type) and issubclass(kind, torch.autograd.Function)
    if not known or getattr(function, "__name__", "") != "apply" or "backward" not in vars(kind):
        return None
    return AutogradPair(kind)


def with_gradients(pair: AutogradPair, calls: Sequence[Call], record: Callable[[Call], Trace]) -> list[Call]:
    """The calls with the gradients of their outputs as further arguments. ``record``: makes one call of the pair.
    Raises Refusal where the backward cannot be taken in beside the forward."""
    found = []
    for call in calls:
        if any(tensor.order for tensor in call.tensors()):
            raise Refusal("an argument's dimensions are in another order than in memory")
        try:
            record(call)
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(f"its backward raises {first_line(error)}") from error
        if not pair.wanted:
            raise Refusal("its backward returns no gradient")
        tensors: Mapping[str, TensorArgument] = {
            f"{GRADIENT}{n}": TensorArgument(str(t.dtype).removeprefix("torch."), tuple(map(int, t.shape)))
            for n, t in enumerate(pair.outputs)
        }
        if not all(is_float(t.dtype) for t in tensors.values()):
            raise Refusal("an output is of a dtype that has no gradient")
        found.append(replace(call, keywords={**call.keywords, **tensors}))
    return found
