"""The user's function with its calls: recorded at any sizes, and its reference asked beside it."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tilewright.workers.intake.calls import dimensions
from tilewright.workers.intake.calls.call_text import Call, Literal
from tilewright.workers.intake.judge.inputs import draw
from tilewright.workers.intake.judge.reference import flat, function_of, run_reference
from tilewright.workers.intake.judge.self_reference import ITSELF
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.source.literals import Literals
from tilewright.workers.intake.triton.kernel_module import Origin, Taken
from tilewright.workers.intake.triton.module_writer import emit
from tilewright.workers.intake.triton.recorder import record
from tilewright.workers.intake.triton.stub_device import device_numbers
from tilewright.workers.intake.triton.trace import Refusal

MOST_ZEROS = 1 << 20
"""Elements of operands up to which a reference that wants data is asked with zeros."""


@dataclass
class Site:
    """The function, its calls, and the names and dimensions of what it is given."""

    function: Callable[..., Any]
    path: str
    name: str
    calls: list[Call]
    operands: list[Operand] = field(default_factory=list)
    places: list[tuple[Any, ...]] = field(default_factory=list)
    dims: list[dict[str, int]] = field(default_factory=list)
    literals: Literals = field(default_factory=Literals)
    part: Mapping[str, Any] = field(default_factory=dict)
    keeps: bool = False
    """See ``Origin.keeps``."""


def signature_names(function: Any, call: Call) -> list[str]:
    if getattr(function, "__name__", "") == "apply" and isinstance(getattr(function, "__self__", None), type):
        names = list(inspect.signature(function.__self__.forward).parameters)[1:]
    elif hasattr(function, "rewriter") or type(function).__name__ == "JITFunction":
        raise Refusal(
            f"{function.__name__} is a kernel, and how it is launched is not said: name the function that launches it"
        )
    else:
        try:
            names = [
                n for n, p in inspect.signature(function).parameters.items() if p.kind not in (p.VAR_KEYWORD,)
            ]
        except (TypeError, ValueError):
            names = []
    return [names[n] if n < len(names) else f"x{n}" for n in range(len(call.arguments))]


def filled(call: Call, values: Mapping[tuple[Any, ...], Any]) -> tuple[list[Any], dict[str, Any]]:
    """The call with tensors put in."""

    def put(value: Any, place: tuple[Any, ...]) -> Any:
        if place in values:
            return values[place]
        if isinstance(value, tuple):
            return [put(part, (*place, n)) for n, part in enumerate(value)]
        if isinstance(value, Literal):
            return eval(value.text, {"torch": torch})
        return value

    return [put(v, (n,)) for n, v in enumerate(call.arguments)], {
        k: put(v, (k,)) for k, v in call.keywords.items()
    }


def viewed(name: str, order: Sequence[int]) -> str:
    """A tensor with its dimensions in another order, as text."""
    return f"{name}.permute({', '.join(map(str, order))})" if order else name


def accepted(function: Any, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that the wrapper takes; the others are the reference's alone."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(keywords)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(keywords)
    return {k: v for k, v in keywords.items() if k in parameters}


def traced_at(site: Site, dims: Mapping[str, int], wanted: Any) -> Taken:
    tensors = {}
    by_place = {}
    views: list[tuple[torch.Tensor, str, str]] = []
    for operand, place in zip(site.operands, site.places, strict=True):
        tensor = torch.empty(operand.sizes(dims), dtype=getattr(torch, operand.dtype), device="meta")
        tensors[operand.name] = tensor
        given = dimensions.at(site.calls[0], place)
        by_place[place] = tensor
        if given.order:
            view = tensor.permute(given.order)
            by_place[place] = view
            views.append((view, operand.name, viewed(operand.name, given.order)))
    arguments, keywords = filled(site.calls[0], by_place)
    keywords = accepted(site.function, keywords)
    trace = record(site.function, arguments, keywords, tensors, [site.path], views)
    origin = f"{Path(site.path).name}:{site.name}"
    shapes = {o.name: o.shape for o in site.operands}
    device = {f"D{name}_": value for name, value in device_numbers(site.part).items()}
    return emit(
        trace, Origin(origin, site.literals.found, site.literals.names, shapes, device, site.keeps), wanted
    )


def reference_calls(site: Site) -> list[str]:
    """Ways to call the reference with the operands, the most complete first."""
    call = site.calls[0]
    by_place = {
        p: viewed(o.name, dimensions.at(call, p).order)
        for o, p in zip(site.operands, site.places, strict=True)
    }

    def text(value: Any, place: tuple[Any, ...]) -> str:
        if place in by_place:
            return by_place[place]
        if isinstance(value, tuple):
            return "[" + ", ".join(text(v, (*place, n)) for n, v in enumerate(value)) + "]"
        return value.text if isinstance(value, Literal) else repr(value)

    positional = [text(v, (n,)) for n, v in enumerate(call.arguments)]
    keyword = [f"{k}={text(v, (k,))}" for k, v in call.keywords.items()]
    tensors = list(by_place.values())
    ways = [[*positional, *keyword], positional, [*tensors, *keyword], tensors]
    return list(dict.fromkeys(", ".join(w) for w in ways))


def wanted_of(request: Mapping[str, Any], site: Site) -> Any:
    """Shapes and dtypes of the reference's results; None where it cannot be asked without data."""
    if request["reference"] == ITSELF:
        return None
    try:
        function = function_of(request["reference"])
    except LookupError as error:
        raise Refusal(str(error)) from error
    shapes = {o.name: o.sizes(site.dims[0]) for o in site.operands}
    devices = ["meta"]
    if sum(math.prod(shape) for shape in shapes.values()) <= MOST_ZEROS:
        devices.append("cpu")  # for a reference that cannot be asked without data
    for device, call in itertools.product(devices, reference_calls(site)):
        given = {o.name: _blank(o, site.dims[0], device) for o in site.operands}
        try:
            with torch.no_grad(), torch.device(device):
                result = eval(f"reference({call})", {"torch": torch, "reference": function, **given})
        except Exception:  # noqa: BLE001 - the next way may do
            continue
        found = [(tuple(t.shape), t.dtype) for t in flat(result)]
        if found:
            return found
    return None


def _blank(operand: Operand, dims: Mapping[str, int], device: str) -> torch.Tensor:
    """An operand of zeros; on the host of integers as the call bounds them, which may decide a result's shape."""
    dtype = getattr(torch, operand.dtype)
    if device == "cpu" and not (dtype.is_floating_point or dtype == torch.bool):
        return torch.from_numpy(draw(operand, dims, "randn", 1, np.random.default_rng(1)))
    return torch.zeros(operand.sizes(dims), dtype=dtype, device=device)


def computes(
    function: Callable[..., Any], site: Site, dims: Mapping[str, int], operands: Sequence[Operand]
) -> bool:
    """Whether the reference takes operands of these dimensions with numbers in them: shapes alone may pass too easily.

    It is asked with an eighth of each size, and where it refuses those, with the sizes themselves if that is little.
    """
    with torch.device("cpu"):
        for small in ({name: max(1, size // 8) for name, size in dims.items()}, dims):
            if sum(math.prod(o.sizes(small)) for o in operands) > MOST_ZEROS:
                return True
            rng = np.random.default_rng(1)
            inputs = {o.name: draw(o, small, "randn", 1, rng) for o in operands}
            for precision, call in itertools.product(("float64", ""), reference_calls(site)):
                try:
                    if run_reference(function, call, inputs, precision):
                        return True
                except Exception:  # noqa: BLE001 - the next way may do
                    continue
    return False


@dataclass
class Oracle:
    """The reference, as it can be called."""

    function: Callable[..., Any]
    call: str = ""
    precision: str = "float64"

    def settle(self, site: Site, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        errors = []
        for precision in ("float64", "float32", ""):
            for call in reference_calls(site):
                try:
                    values = run_reference(self.function, call, inputs, precision)
                except Exception as error:  # noqa: BLE001 - the next way may do
                    errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
                    continue
                if values:
                    self.call, self.precision = call, precision
                    return values
        why = errors[0] if errors else "it returns no tensor"
        raise Refusal(f"the reference cannot be called with these arguments: {why}")

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return run_reference(self.function, self.call, inputs, self.precision)


def wanted_at(request: Mapping[str, Any], site: Site, dims: Mapping[str, int]) -> Any:
    before = site.dims
    site.dims = [dict(dims)]
    try:
        return wanted_of(request, site)
    finally:
        site.dims = before
