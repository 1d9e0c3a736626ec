"""The user's function with its calls: recorded at any sizes, and its reference asked beside it."""

import contextlib
import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tilewright.workers.intake.calls.call_text import Call, Place, accepted_keywords, python_value
from tilewright.workers.intake.calls.dimensions import argument_at, permutation_text, reference_calls
from tilewright.workers.intake.calls.objects import scope_of
from tilewright.workers.intake.calls.sizes import label_of, size_code, size_of, size_text
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.judge.inputs import draw
from tilewright.workers.intake.judge.oracles import CompletedOracle, OwnAnswers
from tilewright.workers.intake.judge.reference import BACKWARD, function_of, reference_results, run_reference
from tilewright.workers.intake.judge.self_reference import SELF
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.source.traced_numbers import traced
from tilewright.workers.intake.triton.autograd_pair import GRADIENT, AutogradPair, sets_up
from tilewright.workers.intake.triton.interpreter_run import Interpreter
from tilewright.workers.intake.triton.kernel_module import KernelModule, Origin, ResultTypes
from tilewright.workers.intake.triton.module_writer import module_of
from tilewright.workers.intake.triton.recorder import record
from tilewright.workers.intake.triton.stub_device import device_numbers, stub_device
from tilewright.workers.intake.triton.trace import Trace

MOST_ZEROS = 1 << 20
"""Elements of operands up to which a reference that wants data is asked with zeros."""


@dataclass
class CallSite:
    """The function, its calls, and the names and dimensions of its operands.

    ``part``: figures of the target's device. ``keeps_arguments``: see ``Origin``.
    """

    function: Callable[..., Any]
    path: str
    name: str
    calls: list[Call]
    reference: str = SELF
    operands: list[Operand] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    dims: list[dict[str, int]] = field(default_factory=list)
    part: Mapping[str, Any] = field(default_factory=dict)
    keeps_arguments: bool = False
    pair: AutogradPair | None = None
    """``function``, where it is the two halves of an autograd Function."""

    settings: dict[str, Any] = field(default_factory=dict)
    """See ``source.settings.SettingsRead.found``."""

    followed: dict[Place, str] = field(default_factory=dict)
    """Numbers among the arguments that are a size, a product of sizes, or no more than it, as texts of dimensions."""

    until: float = 0.0
    """By the interpreter's clock, after which one small shape will do."""

    @functools.cached_property
    def judge(self) -> Callable[..., Any]:
        """The reference's function, loaded once. Raises Refusal."""
        try:
            return function_of(self.reference)
        except LookupError as error:
            raise Refusal(str(error)) from error

    def follow(self, parts: bool) -> bool:
        """Take numbers of the calls that are sizes, products of sizes or, where ``parts``, parts of them, as those;
        whether there are any."""
        self.followed.clear()
        for key, number in (*enumerate(self.calls[0].arguments), *self.calls[0].keywords.items()):
            if type(number) is int and number > 1:
                with contextlib.suppress(LookupError):
                    text = str(size_text([(dims, number) for dims in self.dims], constant=False))
                    divisors = [int(by) for by in re.findall(r"/(\d+)", text)]
                    # what is less than its divisor is a number of its own
                    if self._size_code(text) and all(parts and by <= number for by in divisors):
                        self.followed[(key,)] = text
        return bool(self.followed)

    def follow_longest(self) -> bool:
        """Take numbers of the calls that bound how long a part between offsets is for no more than what those add up
        to, as in a call of fewer rows; whether there are any."""
        for key, number in (*enumerate(self.calls[0].arguments), *self.calls[0].keywords.items()):
            known = [o for o in self.operands if type(number) is int and o.longest <= number < 2 * o.longest]
            if text := "+".join(dict.fromkeys(o.total for o in known if isinstance(o.total, str))):
                self.followed[(key,)] = text
        return bool(self.followed)

    def _followed(self, place: Place, dims: Mapping[str, int]) -> tuple[int, str]:
        """A number at these dimensions, and its text over the operands."""
        number, text = int(argument_at(self.calls[0], place)), self.followed[place]
        own, code = size_of(text, self.dims[0]), self._size_code(text)
        return min(number, size_of(text, dims)), code if own == number else f"min({number}, {code})"

    def join_equal(self) -> bool:
        """Take dimensions of one size in every call for one; whether there are any."""
        firsts: dict[tuple[int, ...], str] = {}
        names = {n: firsts.setdefault(tuple(d[n] for d in self.dims), n) for n in self.dims[0]}

        def put(size: Any) -> Any:
            return re.sub(r"\w+", lambda f: names.get(f[0], f[0]), size) if isinstance(size, str) else size

        self.operands = [
            replace(o, shape=tuple(map(put, o.shape)), below=put(o.below), total=put(o.total)) for o in self.operands
        ]
        self.dims = [{n: size for n, size in d.items() if names[n] == n} for d in self.dims]
        return len(firsts) < len(names)

    def _size_code(self, text: str) -> str:
        """A size as Python over the operands; empty where it is none of theirs."""
        axes = [(size, f"{o.name}.shape[{axis}]") for o in self.operands for axis, size in enumerate(o.shape)]
        return size_code(text, {size: code for size, code in reversed(axes) if isinstance(size, str)})

    def reference_calls(self) -> list[str]:
        codes = {place: self._followed(place, self.dims[0])[1] for place in self.followed}
        if self.pair is None:
            return reference_calls(self.calls[0], self.operands, self.places, texts=codes)
        own = [(o, p) for o, p in zip(self.operands, self.places, strict=True) if not o.name.startswith(GRADIENT)]
        given = [o.name for o in self.operands if o.name.startswith(GRADIENT)]
        leaves = [next(o.name for o, p in own if p == (n,)) for n in self.pair.wanted]
        call = replace(self.calls[0], keywords={k: v for k, v in self.calls[0].keywords.items() if k not in given})
        halves = f"{BACKWARD}({''.join(f'{n}, ' for n in leaves)}), ({''.join(f'{n}, ' for n in given)})"
        texts = reference_calls(call, [o for o, _ in own], [p for _, p in own], texts=codes)
        return [text + halves for text in texts]

    def elements(self, dims: Mapping[str, int]) -> int:
        """Elements of all operands at a shape."""
        return sum(math.prod(operand.sizes(dims)) for operand in self.operands)

    def module_at(self, dims: Mapping[str, int], results: ResultTypes) -> KernelModule:
        """The module of the first call, recorded at these dimensions. Raises Refusal, and what the function raises."""
        origin = Origin(
            f"{Path(self.path).name}:{self.name}",
            {o.name: o.shape for o in self.operands},
            {f"D{name}_": value for name, value in device_numbers(self.part).items()},
            self.keeps_arguments,
        )
        return module_of(self.trace_at(dims), origin, results)

    def trace_at(self, dims: Mapping[str, int]) -> Trace:
        """The first call, recorded at these dimensions. Raises Refusal, and what the function raises."""
        tensors, by_place = {}, {}
        views: list[tuple[torch.Tensor, str, str]] = []
        for operand, place in zip(self.operands, self.places, strict=True):
            tensor = torch.empty(operand.sizes(dims), dtype=getattr(torch, operand.dtype), device="meta")
            tensors[operand.name] = by_place[place] = tensor
            order = argument_at(self.calls[0], place).order
            if order:
                by_place[place] = tensor.permute(order)
                views.append((by_place[place], operand.name, permutation_text(operand.name, order)))
        given: dict[Place, Any] = dict(by_place)
        for at in self.followed:
            given[at] = traced(*self._followed(at, dims), frozenset(["shape"]))
        arguments, keywords = _with_tensors(self.calls[0], given)
        trace = record(
            self.function, arguments, accepted_keywords(self.function, keywords), tensors, [self.path], views
        )
        # the winner is given the number, and must not take it for another size
        trace.conditions.update({given[at].code: int(given[at]) for at in self.followed})
        return trace

    def result_types(self, dims: Mapping[str, int]) -> ResultTypes:
        """Shapes and dtypes of the reference's results; None where it cannot be asked without data."""
        if self.reference == SELF:
            return None
        function = self.judge
        devices = ["meta"]
        if self.elements(dims) <= MOST_ZEROS:
            devices.append("cpu")  # for a reference that cannot be asked without data
        for device, call in itertools.product(devices, self.reference_calls()):
            given = {o.name: _blank(o, dims, device) for o in self.operands}
            try:
                with torch.no_grad(), torch.device(device):
                    result = reference_results(call, {**scope_of(call), "torch": torch, "reference": function, **given})
            except Exception:  # noqa: BLE001 - another way to call it may work
                continue
            found = [(tuple(t.shape), t.dtype) for t in result]
            if found:
                return found
        return None

    def reference_takes(self, dims: Mapping[str, int], operands: Sequence[Operand]) -> bool:
        """Whether the reference takes operands of these dimensions with values: shapes alone may pass too easily.

        It is asked with an eighth of each size, and where it refuses those, with the sizes themselves if they are
        small.
        """
        function = self.judge
        with torch.device("cpu"):
            for small in ({name: max(1, size // 8) for name, size in dims.items()}, dims):
                if sum(math.prod(o.sizes(small)) for o in operands) > MOST_ZEROS:
                    return True
                rng = np.random.default_rng(1)
                inputs = {o.name: draw(o, small, "randn", 1, rng) for o in operands}
                for precision, call in itertools.product(("float64", ""), self.reference_calls()):
                    try:
                        if run_reference(function, call, inputs, precision):
                            return True
                    except Exception:  # noqa: BLE001 - another way to call it may work
                        continue
        return False


@dataclass
class Seed:
    """The kernel module that was written for a call, loaded, with the reference that it is compared with."""

    site: CallSite
    text: KernelModule
    module: ModuleType
    reference: CompletedOracle | OwnAnswers
    interpreter: Interpreter
    _unlike: dict[str, str] = field(default_factory=dict)

    @property
    def defaults(self) -> dict[str, Any]:
        return {knob.name: knob.default for knob in self.text.knobs}

    def unlike_at(self, dims: Mapping[str, int]) -> str:
        """Why the function does something else at a shape; empty where its recording is the same."""
        known = label_of(dims)
        if known not in self._unlike:
            self._unlike[known] = self._compared_at(dims)
        return self._unlike[known]

    def _compared_at(self, dims: Mapping[str, int]) -> str:
        try:
            with stub_device(self.site.part):
                results = self.site.result_types(self.site.dims[0]) and self.site.result_types(dims)
                again = self.site.module_at(dims, results)
        except Refusal as refusal:
            return refusal.what
        except Exception as error:  # noqa: BLE001 - a shape the function does not take
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return "" if again.outline == self.text.outline else "the function launches other kernels there"


def argument_names(function: Callable[..., Any], call: Call) -> list[str]:
    """Names of a call's positional arguments."""
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") == "apply" and isinstance(owner, type):
        names = list(inspect.signature(owner.forward).parameters)[0 if sets_up(owner) else 1 :]  # type: ignore[attr-defined]
    elif hasattr(function, "rewriter") or type(function).__name__ == "JITFunction":
        raise Refusal(
            f"{function.__name__} is a kernel, and how it is launched is not said: name the function that launches it"
        )
    else:
        try:
            parameters = inspect.signature(function).parameters
            names = [name for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
        except (TypeError, ValueError):
            names = []
    return [names[n] if n < len(names) else f"x{n}" for n in range(len(call.arguments))]


def _with_tensors(call: Call, tensors: Mapping[Place, Any]) -> tuple[list[object], dict[str, object]]:
    """The call's arguments and keywords as values. The caller's own numbers are told from the wrapper's."""

    def value(given: Any, place: Place) -> Any:
        made = python_value(given, place, tensors)
        return traced(made, repr(made), frozenset(["given"])) if type(made) is int else made

    arguments = [value(v, (n,)) for n, v in enumerate(call.arguments)]
    return arguments, {k: value(v, (k,)) for k, v in call.keywords.items()}


def _blank(operand: Operand, dims: Mapping[str, int], device: str) -> torch.Tensor:
    """An operand of zeros; on the host its integers are as the call bounds them, which may decide a result's shape."""
    dtype = getattr(torch, operand.dtype)
    if device == "cpu" and not (dtype.is_floating_point or dtype == torch.bool):
        return torch.from_numpy(draw(operand, dims, "randn", 1, np.random.default_rng(1)))
    return torch.zeros(operand.sizes(dims), dtype=dtype, device=device)
