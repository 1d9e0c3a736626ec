"""Operands of an operator as functions of its dimensions: shapes to dimensions, dimensions to shapes. Standard library.

In a version's ``dispatch.json``, under ``operands``::

    {"inputs": [{"name": "a_q", "dtype": "float8_e4m3fn", "shape": ["M", "K"]},
                {"name": "a_s", "dtype": "float32", "shape": ["K//128", "M"]}],
     "outputs": [{"name": "c", "dtype": "bfloat16", "shape": ["M", "N"]}]}

A size is a whole number, or a dimension with a factor (``2*N``), a divisor (``K//128``, exact; ``-(-K//128)``, rounded
up) or a product of dimensions (``E*M``).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_TERM = re.compile(r"(?:-\(-)?(?:\d+\*)?[A-Za-z]\w*(?:\*[A-Za-z]\w*)*(?:\+\d+)?(?://\d+\)?)?|\d+", re.ASCII)
_SINGLE = re.compile(r"(?:(\d+)\*)?([A-Za-z]\w*)(?://(\d+))?", re.ASCII)


class NoFit(ValueError):
    """Operands that are not what the operator takes; the message is one sentence."""


@dataclass(frozen=True)
class Operand:
    """A contiguous tensor by name, with its dtype's name and the expressions of its sizes."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    _sizes: tuple[Any, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for text in self.shape:
            if _TERM.fullmatch(text) is None:
                raise NoFit(f"operand {self.name}: {text!r} is no size")
        object.__setattr__(self, "_sizes", tuple(compile(text, "size", "eval") for text in self.shape))

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in elements at these dimensions."""
        return tuple(int(eval(code, {"__builtins__": {}}, dict(dims))) for code in self._sizes)


@dataclass(frozen=True)
class Operands:
    """Inputs in call order and outputs in return order, over ``dimensions``.

    ``free``: dimensions that no shape tells, which say what the operands hold (how ragged groups are, say), with what
    they are taken to be.
    """

    dimensions: tuple[str, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    free: Mapping[str, int] = field(default_factory=dict)

    def dims(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The dimensions that give the inputs these shapes. Raises NoFit."""
        if len(shapes) != len(self.inputs):
            raise NoFit(f"{len(self.inputs)} operands ({self._taken()}), not {len(shapes)}")
        found: dict[str, int] = dict(self.free)
        for operand, shape in zip(self.inputs, shapes, strict=True):
            if len(operand.shape) != len(shape):
                raise NoFit(f"operands {self._taken()}, not {_shown(shapes)}")
            for text, size in zip(operand.shape, shape, strict=True):
                match = _SINGLE.fullmatch(text)
                if match is None or (match[2] in found and not match[3]):
                    continue
                name = match[2]
                if match[3]:
                    found.setdefault(f"?{name}", size * int(match[3]) // int(match[1] or 1))
                elif size % int(match[1] or 1) == 0:
                    found[name] = size // int(match[1] or 1)
        for name in self.dimensions:
            if name not in found and f"?{name}" in found:
                found[name] = found[f"?{name}"]
        missing = [name for name in self.dimensions if name not in found]
        if missing:
            raise NoFit(f"the operands' shapes do not tell {', '.join(missing)}")
        dims = tuple(found[name] for name in self.dimensions)
        named = dict(zip(self.dimensions, dims, strict=True))
        if any(o.sizes(named) != tuple(s) for o, s in zip(self.inputs, shapes, strict=True)):
            raise NoFit(f"operands {self._taken()}, not {_shown(shapes)}")
        return dims

    def named(self, dims: Sequence[int]) -> dict[str, int]:
        """The dimensions by name."""
        return dict(zip(self.dimensions, dims, strict=True))

    def _taken(self) -> str:
        return ", ".join(f"{o.name} [{', '.join(o.shape)}]" for o in self.inputs)

    def data(self) -> dict[str, Any]:
        """As ``dispatch.json`` holds it."""
        parts: dict[str, Any] = {
            part: [{"name": o.name, "dtype": o.dtype, "shape": list(o.shape)} for o in operands]
            for part, operands in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        return parts | ({"free": dict(self.free)} if self.free else {})


def _shown(shapes: Iterable[Sequence[int]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)


def read(data: Mapping[str, Any], dimensions: Sequence[str]) -> Operands:
    """From ``dispatch.json``. Raises NoFit, KeyError, TypeError."""

    def part(name: str) -> tuple[Operand, ...]:
        return tuple(Operand(o["name"], o["dtype"], tuple(map(str, o["shape"]))) for o in data[name])

    return Operands(tuple(dimensions), part("inputs"), part("outputs"), dict(data.get("free", {})))


def fitted(dimensions: Sequence[str], cases: Sequence[Sequence[Any]]) -> Operands | None:
    """The operands that explain every case: (dims, inputs, outputs), each tensor with name, shape and dtype.

    None where a size is no such function of the dimensions, or the shapes of the inputs do not tell the dimensions.
    """
    parts: list[tuple[Operand, ...]] = []
    for place in (1, 2):
        operands = []
        for number, spec in enumerate(cases[0][place]):
            seen = [case[place][number] for case in cases]
            if any(s.name != spec.name or s.dtype != spec.dtype for s in seen):
                return None
            shape = []
            for axis in range(len(spec.shape)):
                values = [(case[0], s.shape[axis]) for case, s in zip(cases, seen, strict=True)]
                text = _expression(dimensions, values)
                if text is None:
                    return None
                shape.append(text)
            operands.append(Operand(spec.name, spec.dtype, tuple(shape)))
        parts.append(tuple(operands))
    used = {
        name
        for operand in (*parts[0], *parts[1])
        for text in operand.shape
        for name in re.findall(r"[A-Za-z]\w*", text)
    }
    free = {name: int(cases[0][0][name]) for name in dimensions if name not in used}
    found = Operands(tuple(dimensions), parts[0], parts[1], free)
    try:
        for dims, inputs, _ in cases:
            if found.dims([s.shape for s in inputs]) != tuple({**dims, **free}[name] for name in dimensions):
                return None
    except NoFit:
        return None
    return found


def _expression(dimensions: Sequence[str], values: Sequence[tuple[Mapping[str, int], int]]) -> str | None:
    """The simplest size that equals every value at its dimensions."""
    dims, first = values[0]
    texts = [*dimensions]
    for name in dimensions:
        if first and dims[name] % first == 0:
            texts.append(f"{name}//{dims[name] // first}")
        if dims[name] and first % dims[name] == 0:
            texts.append(f"{first // dims[name]}*{name}")
    texts.append(str(first))
    for name in dimensions:
        texts += [f"-(-{name}//{n})" for n in (16, 32, 64, 128, 256, 512)]
        texts += [f"{name}+1"]
    texts += [f"{a}*{b}" for a in dimensions for b in dimensions if a < b]
    for text in texts:
        code = compile(text, "size", "eval")
        if all(eval(code, {"__builtins__": {}}, dict(d)) == size for d, size in values):
            return text
    return None
