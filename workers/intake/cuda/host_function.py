"""A function around kernels in CUDA C++ with its calls: Python over ``load_inline``, or host code of a ``.cu`` file."""

import ast
import contextlib
import copy
import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from tilewright.workers.intake.calls.call_text import SHORT, Call, TensorArgument, accepted_keywords, parse
from tilewright.workers.intake.calls.dimensions import operands, tensor_places
from tilewright.workers.intake.child_program import Refusal, Request, first_line
from tilewright.workers.intake.cuda.device_code import DeviceCode
from tilewright.workers.intake.cuda.host_code import HostCode, Launch, Numbers
from tilewright.workers.intake.cuda.launch_text import COPY, Dims, LaunchWriter, launched, pointers, written
from tilewright.workers.intake.cuda.torch_steps import FUNCTIONS
from tilewright.workers.intake.judge.reference import function_of
from tilewright.workers.intake.operator import Operand
from tilewright.workers.intake.source.load import load
from tilewright.workers.intake.triton.call_site import CallSite, argument_names
from tilewright.workers.intake.triton.program import function_in
from tilewright.workers.intake.triton.results import root_of
from tilewright.workers.intake.triton.stub_device import stub_device
from tilewright.workers.intake.triton.trace import Trace, Work

FASTMATH = "FASTMATH"
_FUNCTIONS = re.compile(r"(exp|log|sqrt|pow|tanh|sin|cos|erf|sigmoid)\w*\(| / ")
"""What the compiler's fast arithmetic changes."""
_BOUND = re.compile(r'\.def\(\s*"(\w+)"\s*,\s*&?\s*(?:\w+::)*(\w+)')


class Extension:
    """What ``load_inline`` returns: the host functions of a source, followed when they are called."""

    def __init__(self, source: str, numbers: Numbers, used: "list[Extension]", fast: bool) -> None:
        self.source, self._numbers, self._used, self.fast = source, numbers, used, fast

    @functools.cached_property
    def _code(self) -> DeviceCode:
        return DeviceCode(self.source)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        own = dict(_BOUND.findall(self.source)).get(name, name)

        def called(*given: Any, **named: Any) -> Any:
            if all(self is not one for one in self._used):
                self._used.append(self)
            try:
                return HostCode(self._code, self._numbers).call(own, given, named)
            except Refusal as refusal:  # a file may catch it, and go on with torch
                self._numbers.refused.append(refusal)
                raise

        return called


def read_extensions(folder: Path, numbers: Numbers, used: list[Extension]) -> None:
    """From now on extensions are read and not compiled; ``used`` gets those that are called. ``folder``: where files
    without a folder lie."""

    def inline(name: Any, cpp_sources: Any, cuda_sources: Any = (), *_: Any, **more: Any) -> Extension:
        given = [[some] if isinstance(some, str) else some or () for some in (cuda_sources, cpp_sources)]
        fast = any("fast_math" in flag for flag in more.get("extra_cuda_cflags") or ())
        return Extension("\n".join(text for some in given for text in some), numbers, used, fast)

    def of_files(name: Any, sources: Any, *_: Any, **more: Any) -> Extension:
        files = [folder / file for file in ([sources] if isinstance(sources, str) else sources)]
        return inline(name, [file.read_text(encoding="utf-8") for file in files], **more)

    vars(cpp_extension).update(load_inline=inline, load=of_files)


def found_function(path: Path, function: str, reference: str) -> Callable[..., Any]:
    """The function, of a file whose extensions are read. Raises Refusal."""
    if path.suffix == ".cu":
        made: Any = cpp_extension.load("", str(path))
        code, known = DeviceCode(made.source), inspect.Parameter.POSITIONAL_OR_KEYWORD
        found: Callable[..., Any] = getattr(made, function)
        named = [inspect.Parameter(own, known) for own in code.parameters(function)]
        found.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        return found
    module, _ = load(path, None)
    if not hasattr(module, "get_init_inputs"):  # an answer of KernelBench, made as its problem says
        with contextlib.suppress(OSError, AttributeError, SyntaxError):
            problem, _ = load(Path(reference.rpartition(":")[0]), None, traced=False)
            vars(module)["get_init_inputs"] = problem.get_init_inputs
    return function_in(module, function, path.name)


def weights_of(
    function: Callable[..., Any], reference: str, used: Collection[str] | None = None
) -> dict[str, tuple[str, torch.Tensor]]:
    """The weights of a layer whose ``forward`` it is, of ``used`` alone, with their names there, by what the reference
    calls those of their names and shapes or, where both have as many of a shape left, those in their order."""
    layer = getattr(function, "__self__", None)
    weights = dict(layer.state_dict()) if isinstance(layer, torch.nn.Module) else {}
    weights = {n: t for n, t in weights.items() if used is None or n in used}
    known = dict(getattr(function_of(reference), "weights", {})) if weights else {}
    found = {n: name for n, t in weights.items() if known.get(name := n.replace(".", "_")) == t.shape}
    for shape in {t.shape for n, t in weights.items() if n not in found}:
        own = [n for n, t in weights.items() if n not in found and t.shape == shape]
        theirs = [n for n in known if n not in found.values() and known[n] == shape]
        found |= dict(zip(own, theirs, strict=True)) if len(own) == len(theirs) else {}
    return {found.get(n, n.replace(".", "_")): (n, t) for n, t in weights.items()}


class HostFunction:
    """``outputs``: names of what it returns or, where it returns nothing, of the arguments that its kernels write;
    ``every`` has operands for them and all others. ``texts`` and ``calls`` are without outputs, with a layer's weights.
    ``knobs``: numbers that the texts name; ``sized``: whether the launch holds for the sizes of the calls alone."""

    def __init__(self, request: Request) -> None:
        """Raises Refusal, CallsDiffer, and what the user's file raises."""
        path, self.name = Path(request["path"]), str(request["function"])
        self._part, self._numbers, self._used = request["part"], Numbers(), list[Extension]()
        given, reference = [parse(text) for text in request["calls"]], request["reference"]
        read_extensions(path.parent, self._numbers, self._used)
        with stub_device(self._part):
            function = found_function(path, self.name, reference)
        names, weights = argument_names(function, given[0]), weights_of(function, reference)
        # What nobody else sees, a kernel may change: what torch made for a part, what a layer is called with.
        part, layer = getattr(function, "__globals__", {}).get("KERNELS"), hasattr(function, "__self__")
        self._changed = {*part.given.values()} if part is not None else {*names} if layer else set[str]()
        for again in (True, False) if weights else (False,):
            # With all, then with those that kernels are given.
            callee, calls = with_weights(function, weights, given)
            own, places = operands(calls, tensor_places(calls, names), frozenset())
            self._recorded = CallSite(callee, str(path), self.name, calls, reference, own, places, part=self._part)
            traces = [self._traced({}, [t.shape for t in call.tensors()]) for call in calls]
            if again:
                found = [traces[0].find(pointer.tensor) for pointer in pointers(traces[0])]
                found += [var for step in traces[0].steps if isinstance(step, Work) for var in step.reads]
                used = {root_of(var).name for var in found if var is not None}
                asked = [n for known, (n, _) in weights.items() if known in used]
                weights = weights_of(function, reference, asked)
        self.outputs = tuple(f"result{n}" for n in range(len(traces[0].results))) or written(traces[0])
        self._writes, self.knobs, self.sized, self._text = not traces[0].results, dict[str, int](), False, ""
        full = [Call((*c.arguments, *_results(trace)), c.keywords) for c, trace in zip(calls, traces, strict=True)]
        rows = tensor_places(full, [*names, *self.outputs])
        self.every, _ = operands(full, sorted(rows, key=lambda row: row[0] in self.outputs), frozenset())
        kept = [n for n in range(len(given[0].arguments)) if names[n] not in self.outputs]
        self.names, self.parameters = ([names[n] for n in kept], [*(names[n] for n in kept), *weights])
        types = {name: calls[0].keywords[name] for name in weights}
        shown = [f"{n}={SHORT[t.dtype]}[{', '.join(map(str, t.shape))}]" for n, t in types.items()]
        self.texts = [", ".join([*_arguments(text, kept, function), *shown]) for text in request["calls"]]
        self.calls = [Call(tuple(c.arguments[n] for n in kept), c.keywords) for c in calls]
        own, places = operands(self.calls, tensor_places(self.calls, self.names), frozenset())
        self.site = CallSite(callee, str(path), self.name, self.calls, reference, own, places, part=self._part)
        self.code = DeviceCode("\n".join(one.source for one in self._used))
        if _FUNCTIONS.search(self.code.text):
            self.knobs[FASTMATH] = int(any(one.fast for one in self._used))

    def _traced(self, dims: Dims, shapes: Sequence[Any] = ()) -> Trace:
        """The first call at some dimensions, or shapes. Raises Refusal, and what the function raises."""
        self._used.clear()
        self._numbers.refused.clear()
        named = self._recorded.operands
        if shapes:
            self._recorded.operands = [Operand(o.name, o.dtype, tuple(s)) for o, s in zip(named, shapes, strict=True)]
        try:
            with stub_device(self._part):
                trace = self._recorded.trace_at(dims)
        finally:
            self._recorded.operands = named
        for refusal in self._numbers.refused:
            raise refusal
        for line, what in trace.refusals:
            raise Refusal(what, line)
        if trace.reads:
            raise Refusal("the function reads a tensor's values (item)")
        self.left_out = list(trace.left_out)
        if not any(isinstance(step, Launch) for step in trace.steps):
            raise Refusal("the call launches no CUDA kernel")
        return trace

    def own(self, named: Sequence[Operand]) -> list[Operand]:
        """Those that are no outputs."""
        return [operand for operand in named if operand.name not in self.outputs]

    def _name(self, named: Sequence[Operand]) -> None:
        known = {operand.name: operand for operand in named}
        self._recorded.operands = [known[operand.name] for operand in self._recorded.operands]

    def works(self, dims: Dims, named: list[Operand]) -> bool:
        """Whether the function takes these dimensions, and its results are as named."""
        self._name(named)
        try:
            made = [r.shape for r in _results(self._traced(dims))]
        except Exception:  # noqa: BLE001 - these dimensions are not different ones
            return False
        return self._writes or made == [o.sizes(dims) for o in named if o.name in self.outputs]

    def launch(self, named: Sequence[Operand], timed: Sequence[Dims]) -> str:
        """The function ``launch``. Numbers that decide what the host does, or that it forgets, keep their value. Raises
        Refusal."""
        self._name(named)
        self._recorded.dims = [dict(dims) for dims in timed]
        if self._writes:  # its numbers are sizes, as far as they can be
            self._recorded.follow(parts=False)
        self._numbers.decided.clear()
        writer = self._writer(timed[0])
        text, self.sized = writer.text(), writer.sized
        self.code.text += COPY * bool(writer.copied) + FUNCTIONS * bool(writer.kernels) + "".join(writer.kernels)
        self.knobs |= {**self.code.numbers, **self._numbers.known}
        for name, value in self._numbers.known.items():
            if name in self._numbers.decided or self._unlike(text, timed[0], {name: 2 * value}):
                text = re.sub(rf'params\["{name}"\]|\${name}\$', str(value), text)
                del self.knobs[name]
        self._text = text
        for dims in timed:
            if why := self.unlike_at(dims):
                raise Refusal(why)
        return text

    def _writer(self, dims: Dims, literal: bool = False) -> LaunchWriter:
        trace = self._traced(dims)
        options = {"headers": '("cuda",)'} if self.code.headers else {}
        if (fast := self.knobs.get(FASTMATH)) is not None:
            options["fast_math"] = str(fast) if literal else f'params["{FASTMATH}"]'
        return LaunchWriter(trace, self.outputs, self._numbers.known, options, literal, self._changed)

    def unlike_at(self, dims: Dims) -> str:
        """Why the launch is not what the function does at some dimensions; empty where it is."""
        return self._unlike(self._text, dims, {})

    def _unlike(self, text: str, dims: Dims, changed: Mapping[str, int]) -> str:
        self._numbers.changed = changed
        try:
            plain, own = self._writer(dims, literal=True).text(), self.own(self._recorded.operands)
            same = launched(text, own, dims, {**self.knobs, **changed}) == launched(plain, own, dims, {})
        except Refusal as refusal:
            return refusal.what
        except Exception as error:  # noqa: BLE001 - a shape that the function does not take
            return first_line(error)
        finally:
            self._numbers.changed = {}
        return "" if same else "the function launches otherwise at other sizes, and its text does not say how"


def _results(trace: Trace) -> list[TensorArgument]:
    return [TensorArgument(str(t.dtype)[6:], tuple(map(int, t.shape))) for t in trace.results]


def _arguments(text: str, kept: Sequence[int], function: Callable[..., Any]) -> list[str]:
    """Of a call's text the arguments that are kept, and the keywords that the function takes."""
    node: Any = ast.parse(f"f({text.replace('[]', '[()]')})", mode="eval").body
    own = accepted_keywords(function, {keyword.arg: keyword for keyword in node.keywords})
    return [*(ast.unparse(node.args[n]) for n in kept), *map(ast.unparse, own.values())]


def with_weights(
    function: Any, weights: Mapping[str, tuple[str, torch.Tensor]], calls: Sequence[Call]
) -> tuple[Callable[..., Any], list[Call]]:
    """A layer as a function that is given weights by other names, and the calls with them as keywords."""
    layer = getattr(function, "__self__", None)
    if not isinstance(layer, torch.nn.Module):
        return function, list(calls)
    made = {known: TensorArgument(str(t.dtype)[6:], tuple(t.shape)) for known, (_, t) in weights.items()}

    def forward(*given: Any, **named: Any) -> Any:
        own = {name: named.pop(known) for known, (name, _) in weights.items()}
        fresh = copy.copy(layer)  # what the layer keeps of a call is not the next one's
        fresh._buffers, fresh._parameters = {**layer._buffers}, {**layer._parameters}
        return torch.func.functional_call(fresh, own, given, named)

    return forward, [Call(call.arguments, {**call.keywords, **made}) for call in calls]
