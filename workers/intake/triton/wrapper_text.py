"""What a wrapper does around its kernels, as text: what it decides by sizes, and what it returns."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilewright.workers.intake.calls.call_values import order_of
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.source import traced_numbers
from tilewright.workers.intake.triton.autograd_pair import GRADIENT
from tilewright.workers.intake.triton.kernel_module import PairText, WrapperText
from tilewright.workers.intake.triton.results import Results, forward_results, root_of, root_uses
from tilewright.workers.intake.triton.trace import Trace, Var

MADE = re.compile(r"\b[tvur]\d+\b")
"""Names of tensors that the wrapper makes."""

RESULTS = "tilewright_results"


class _Unknown(Exception):
    """A value that no text can stand for."""


def wrapper_text(trace: Trace, results: Results, plain: Callable[[str], str], left_out: list[str]) -> WrapperText:
    """The text of a recording. ``plain``: an expression without atoms. ``left_out`` is added to."""
    conditions, made, exact = _conditions(trace, plain)
    paired = trace.split is not None
    writes = {} if paired else {v.name: n for n, v in enumerate(results.chosen) if v.name in results.replaced}
    lost = sorted(set(results.replaced) - set(writes))
    left_out += [f"argument {name} is not written" for name in lost]
    try:
        returned = _value(trace.returned, trace, results, writes, plain)
    except _Unknown as unknown:
        left_out.append(f"the call returns {unknown}; the winner returns its results as a tuple")
        returned = ""
    pair = _pair(trace, results) if paired else None
    return WrapperText(tuple(conditions), tuple(made), returned, writes, exact, pair, trace.asks_gradients)


def _pair(trace: Trace, results: Results) -> PairText:
    """What the halves of a pair return. Raises Refusal where results of both cannot be told apart."""
    outputs = forward_results(trace, results.chosen)
    returned = trace.returned if isinstance(trace.returned, tuple) else (trace.returned,)
    given = [name for name in trace.inputs if name.startswith(GRADIENT)]
    floats = [trace.find(t) for t in returned if t.is_floating_point()]
    order = [next((n for n, var in enumerate(results.chosen) if var is known), -1) for known in floats]
    leaves = [name for name, var in trace.inputs.items() if any(var.tensor is t for t in trace.wanted)]
    gradients = [n for n in range(len(results.chosen)) if n not in outputs]
    complete = len(order) == len(given) and len(leaves) == len(gradients) and -1 not in order
    if not complete:
        raise Refusal("its gradients cannot be told from its outputs")
    before = {id(step) for step in trace.steps[: trace.split] if isinstance(step, Var)}
    before |= {id(var) for name, var in trace.inputs.items() if name not in given}
    once = any(use != "read" and root in before for root, use in root_uses(trace, trace.steps[trace.split :]).items())
    return PairText(
        tuple(outputs), dict(zip(leaves, gradients, strict=True)), dict(zip(given, order, strict=True)), once
    )


def _conditions(trace: Trace, plain: Callable[[str], str]) -> tuple[list[str], list[str], bool]:
    by_name = {step.name: step for step in trace.steps if isinstance(step, Var)}
    made: dict[str, str] = {}

    def define(code: str) -> bool:
        for name in MADE.findall(code):
            if name in made or name in trace.inputs:
                continue
            var = by_name.get(name)
            if var is None or not var.text or not define(var.text):
                return False
            text = plain(var.text)
            made[name] = f"{name} = {text[:-1]}, device='meta')" if text.startswith("torch.") else f"{name} = {text}"
        return True

    found, exact = [], False
    for code, value in trace.conditions.items():
        if "read" in code or not define(code):
            exact = True
        elif isinstance(value, bool):
            found.append(plain(code) if value else f"not {plain(code)}")
        else:
            found.append(f"{plain(code)} == {value}")
    return found, list(made.values()), exact


def _value(value: Any, trace: Trace, results: Results, writes: Mapping[str, int], plain: Callable[[str], str]) -> str:
    """A returned value as text. Raises _Unknown."""

    def text(part: Any) -> str:
        if isinstance(part, torch.Tensor):
            return _tensor(part, trace, results, writes, plain)
        known = isinstance(part, traced_numbers.Traced) and "read" not in part.atoms
        if known and not MADE.search(part.code):
            return plain(part.code)
        if part is None or isinstance(part, str | bool | int | float):
            return traced_numbers.number_text(traced_numbers.plain(part))
        if isinstance(part, torch.dtype):
            return str(part)
        if type(part) is dict:
            return "{" + ", ".join(f"{text(key)}: {text(of)}" for key, of in part.items()) + "}"
        if type(part) is list:
            return "[" + ", ".join(map(text, part)) + "]"
        if type(part) in (tuple, torch.Size):
            return "(" + "".join(f"{text(of)}, " for of in part) + ")"
        raise _Unknown(f"an object of {type(part).__name__}")

    return text(value)


def _view(var: Var, plain: Callable[[str], str]) -> str:
    """A view of an argument, which holds by then what kernels write there, as an expression of it. Raises _Unknown."""
    if var.base is None:
        return var.name
    if not var.text:  # another tensor of the same memory
        return f"{_view(var.base, plain)}.view_as({_view(var.base, plain)})"
    made = plain(var.text.removeprefix(var.base.name))
    if MADE.search(made) or "read" in made:
        raise _Unknown("a view by sizes that are not known")
    return f"{_view(var.base, plain)}{made}"


def _tensor(
    tensor: torch.Tensor, trace: Trace, results: Results, writes: Mapping[str, int], plain: Callable[[str], str]
) -> str:
    var, chosen, replaced = trace.find(tensor), results.chosen, results.replaced
    if var is None:
        raise _Unknown("a tensor that no kernel makes")
    if var.kind == "input":
        return var.name
    root = root_of(var)
    if root.kind == "input" and (root.name in writes or root.name not in replaced):
        return _view(var, plain)
    number = next((n for n, known in enumerate(chosen) if known is var), None)
    if number is None or root.kind == "input":
        raise _Unknown("a tensor that is not judged")
    order = order_of(tensor)
    if order == sorted(order):
        return f"{RESULTS}[{number}]"
    back = [order.index(n) for n in range(tensor.dim())]
    return f"{RESULTS}[{number}].permute({order}).contiguous().permute({back})"
