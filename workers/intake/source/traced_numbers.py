"""Numbers that remember where they come from.

While a wrapper is recorded, the sizes of its tensors are such numbers. They behave as the plain ones
and carry, beside the value, the expression that made it, so that a grid ``triton.cdiv(n, BLOCK)`` is recorded as that
and not as 13.
"""

import math
import operator
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

MAX_CODE = 2000
"""Characters after which an expression is given up and its value stands for it."""

Number = bool | int | float


class Traced:
    """What the traced numbers share. ``code``: an expression; ``atoms``: names of what it is made of."""

    code: str
    atoms: frozenset[str]


WATCH: ContextVar[Callable[[Traced, int], None] | None] = ContextVar("watch", default=None)
"""Who is told of each traced number that a program settles, as in a branch or a ``range``, with its value."""


def settled(number: Any) -> Any:
    """The number alone, after whoever watches has been told."""
    if isinstance(number, Traced) and (watch := WATCH.get()) is not None:
        watch(number, plain(number))
    return plain(number)


class TracedInt(int, Traced):
    """An integer."""

    __hash__ = int.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, (int(plain(self)),))

    def __index__(self) -> int:
        return int.__int__(self)

    def __bool__(self) -> bool:
        return bool(settled(traced(int.__int__(self) != 0, f"({self.code} != 0)", self.atoms)))


class TracedBool(int, Traced):
    """A truth value; what branches on it is settled."""

    __hash__ = int.__hash__

    def __bool__(self) -> bool:
        return bool(settled(self))

    def __repr__(self) -> str:
        return repr(plain(self))


class TracedFloat(float, Traced):
    """A float."""

    __hash__ = float.__hash__


def traced(value: Number, code: str, atoms: frozenset[str]) -> Any:
    """A number with its expression; the plain value where the expression has grown too long."""
    if len(code) > MAX_CODE:
        return value
    made: Any
    if isinstance(value, bool):
        made = TracedBool(int(value))
    elif isinstance(value, int):
        made = TracedInt(value)
    else:
        made = TracedFloat(value)
    made.code, made.atoms = code, atoms
    return made


def plain(value: Any) -> Any:
    """The number alone."""
    if isinstance(value, TracedBool):
        return int.__int__(value) != 0
    if isinstance(value, TracedInt):
        return int.__int__(value)
    if isinstance(value, TracedFloat):
        return float.__float__(value)
    return value


def code_of(value: Any) -> str:
    """Its expression, or a plain number as text."""
    return value.code if isinstance(value, Traced) else number_text(value)


def number_text(value: Any) -> str:
    """A number as an expression of the dialect."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def atoms_of(*values: Any) -> frozenset[str]:
    """Of all of them together."""
    found: frozenset[str] = frozenset()
    for value in values:
        if isinstance(value, Traced):
            found |= value.atoms
    return found


def call(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of plain numbers, as one that notes ``name(...)`` where an argument is traced."""

    def noted(*arguments: Any, **options: Any) -> Any:
        only = arguments[0] if len(arguments) == 1 else None
        flat = tuple(only) if isinstance(only, list | tuple) else arguments
        if options or not any(isinstance(a, Traced) for a in flat) or not all(isinstance(a, int | float) for a in flat):
            return function(*arguments, **options)
        value = function(*map(plain, flat))
        if not isinstance(value, int | float):
            return value
        return traced(value, f"{name}({', '.join(map(code_of, flat))})", atoms_of(*flat))

    return noted


def product(values: Sequence[Any]) -> Any:
    """Of numbers, traced if one of them is."""
    result: Any = 1
    for value in values:
        result = result * value
    return result


_BINARY = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "truediv": ("/", operator.truediv),
    "floordiv": ("//", operator.floordiv),
    "mod": ("%", operator.mod),
    "pow": ("**", operator.pow),
    "and": ("&", operator.and_),
    "or": ("|", operator.or_),
    "xor": ("^", operator.xor),
    "lshift": ("<<", operator.lshift),
    "rshift": (">>", operator.rshift),
}
_COMPARED = {
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
}


def _binary(symbol: str, function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    def apply(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        left, right = (other, self) if swapped else (self, other)
        value = function(plain(left), plain(right))
        if not isinstance(value, int | float):
            return value
        return traced(value, f"({code_of(left)} {symbol} {code_of(right)})", atoms_of(left, right))

    return apply


def _unary(symbol: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: traced(function(plain(self)), f"({symbol}{self.code})", self.atoms)


for _kind in (TracedInt, TracedBool, TracedFloat):
    for _name, (_symbol, _function) in _BINARY.items():
        if _kind is TracedFloat and _name in ("and", "or", "xor", "lshift", "rshift"):
            continue
        setattr(_kind, f"__{_name}__", _binary(_symbol, _function, False))
        setattr(_kind, f"__r{_name}__", _binary(_symbol, _function, True))
    for _name, (_symbol, _function) in _COMPARED.items():
        setattr(_kind, f"__{_name}__", _binary(_symbol, _function, False))
    _kind.__neg__ = _unary("-", operator.neg)  # type: ignore[method-assign]
