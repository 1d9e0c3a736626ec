"""A raw kernel with its calls: which arguments it writes, and its launch as the command line describes it."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.workers.intake.calls.call_text import Call, parse
from tilewright.workers.intake.calls.dimensions import operands, tensor_places
from tilewright.workers.intake.child_program import Refusal, Request
from tilewright.workers.intake.cuda.device_code import TYPES, DeviceCode
from tilewright.workers.intake.operator import Operand

_ADDS = r"\batomic\w+\s*\(\s*&?\s*{0}\b|\b{0}\s*\[[^;=]*\]\s*[-+*/|&^]=(?!=)"
_WRITES = r"\b{0}\s*\[[^;=]*\]\s*=(?!=)|(?:_cast<[^>]*>\s*\(|\([\w ]+\*\)\s*\(?)\s*&?\s*{0}\b|"
Dims = Mapping[str, int]
_CDIV = "def cdiv(a, b):\n    return -(-a // b)\n\n\n"


class RawKernel:
    """``name``: the kernel's, with templates. ``texts`` and ``calls`` are without what it writes (``outputs``, by
    name); ``every`` has operands for all; ``knobs``: numbers that the launch or the code names; ``sized``: whether the
    launch may hold for the sizes of the calls alone."""

    def __init__(self, request: Request) -> None:
        """Raises Refusal, Uneven, OSError."""
        path, self.name = Path(request["path"]), str(request["function"])
        self.code, self._given = DeviceCode(path.read_text(encoding="utf-8")), dict(request["launch"])
        kernel = self.code.kernels.get(self.name.partition("<")[0])
        if kernel is None:
            raise Refusal(f"{path.name} defines no {self.name}, but kernels {', '.join(self.code.kernels)}")
        if not {"grid", "block"} <= set(self._given):
            raise Refusal(f"how {self.name} is launched is not said: give --grid and --block")
        self._kernel, names = kernel, [p.name for p in kernel.parameters]
        self._calls = [parse(text) for text in request["calls"]]
        if any(len(call.arguments) != len(names) for call in self._calls):
            raise Refusal(f"{self.name} takes {len(names)} arguments, those that it writes among them")
        pointers = [p.name for p in kernel.parameters if p.pointer and not p.const]
        found = [n for n in pointers if re.search((_WRITES + _ADDS).format(n), kernel.text)]
        self.outputs = tuple(found or pointers)
        kept = [n for n, name in enumerate(names) if name not in self.outputs]
        self.names = [names[n] for n in kept]
        if not any(kernel.parameters[n].pointer for n in kept):
            raise Refusal(f"{self.name} writes all that it reads: it takes x as an input and y as a result")
        self.texts = [_with_arguments(text, kept) for text in request["calls"]]
        self.calls = [Call(tuple(c.arguments[n] for n in kept), c.keywords) for c in self._calls]
        self.every, _ = operands(self._calls, tensor_places(self._calls, names), frozenset())
        for parameter, value in zip(kernel.parameters, self._calls[0].arguments, strict=True):
            dtype, own = getattr(value, "dtype", ""), TYPES.get(parameter.kind, [""])[0]
            if bool(dtype) != parameter.pointer or (dtype and own and own != dtype):
                given = dtype or repr(value)
                raise Refusal(f"{self.name} takes {parameter.name} as {parameter.kind}, not {given}")
        self.knobs, self.sized = dict(self.code.numbers), False
        if self._given["block"].isdigit() and "THREADS" not in self.code.text:
            self.knobs["THREADS"] = int(self._given["block"])
            self._given["block"] = "THREADS"

    def own(self, named: Sequence[Operand]) -> list[Operand]:
        """Those that it does not write."""
        return [operand for operand in named if operand.name not in self.outputs]

    def launch(self, named: Sequence[Operand], timed: Sequence[Dims]) -> str:
        """The function ``launch``. ``timed``: dimensions of every call: a number that is the product of some follows
        them. Parameters in a template stand between dollars. Raises Refusal."""
        axes = {n: f'inputs["{o.name}"].shape[{a}]' for o in self.own(named) for a, n in enumerate(o.shape)}
        asked = ", ".join(f'"{name}": {text}' for name, text in self._given.items())
        lines = [f'{knob} = params["{knob}"]' for knob in self.knobs if re.search(rf"\b{knob}\b", asked)]
        arguments, steps = [], []
        for place, parameter in enumerate(self._kernel.parameters):
            values = [call.arguments[place] for call in self._calls]
            if parameter.pointer:
                arguments.append(f'"{parameter.name}"')
                if f"{parameter.name}." in asked:
                    lines.append(f'{parameter.name} = inputs["{parameter.name}"]')
                written = parameter.name in self.outputs
                if written and re.search(_ADDS.format(parameter.name), self._kernel.text):
                    steps.append(f'{{"zero": "{parameter.name}"}}')
                continue
            dims = _dimensions_of(values, timed, [n for n in timed[0] if n in axes])
            if parameter.kind not in TYPES or (not dims and len(set(values)) > 1):
                raise Refusal(f"{parameter.name} is no number, or differs between calls and follows no size")
            self.sized |= not dims and type(values[0]) is int and values[0] > 15
            lines.append(f"{parameter.name} = {' * '.join(axes[n] for n in dims) or repr(values[0])}")
            arguments.append(f'{{"{TYPES[parameter.kind][1]}": {parameter.name}}}')
        name = re.sub(r"\w+", lambda m: f"${m[0]}$" if m[0] in self.code.numbers else m[0], self.name)
        steps.append(f'{{"kernel": "{name}", {asked}, "arguments": ({", ".join(arguments)},)}}')
        options = ', "options": {"headers": ("cuda",)}' * self.code.headers
        lines.append(f'return {{"steps": ({", ".join(steps)},){options}}}')
        body = "".join(f"    {line}\n" for line in lines)
        return _CDIV * ("cdiv(" in asked) + f"def launch(inputs, params):\n{body}"


def _with_arguments(text: str, kept: Sequence[int]) -> str:
    node: Any = ast.parse(f"f({text.replace('[]', '[()]')})", mode="eval").body
    return ", ".join(ast.unparse(node.args[n]) for n in kept)


def _dimensions_of(values: Sequence[Any], timed: Sequence[Dims], names: Sequence[str]) -> tuple[str, ...]:
    """Neighbouring dimensions whose product is a whole number in every call; none where there are none."""
    ways = [tuple(names[i : i + n]) for n in range(1, len(names) + 1) for i in range(len(names) - n + 1)]
    if not all(type(value) is int and value > 1 for value in values):
        return ()
    pairs = [*zip(values, timed, strict=True)]
    return next((w for w in ways if all(math.prod(d[n] for n in w) == v for v, d in pairs)), ())
