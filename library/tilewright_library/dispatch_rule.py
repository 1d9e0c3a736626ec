"""The dispatch rule: chooses, from entries (a verified shape and its kernel), the kernel that serves another shape.

A kernel is legal for a shape if all its constraints hold for its parameters, the shape's sizes, and the constants of
operator and target. Candidates are the entries with a legal kernel and every dimension within a factor of ``reach``.

1. The entry of the very shape serves it.
2. Else, if the nearest entry's kernel has an expected time (``EXPECTED`` of its module, an expression like a
   constraint), the kernel with the least expected time serves. Tiles and waves make times jump with a size, so that
   distance says little: on layers that the expressions were not fitted to, this lost 2 % to the best kernel, and the
   nearest entry 10 % (FP8 linear layers of 65 to 512 rows, H200, measured).
3. Else the nearest entry serves, the earlier on a tie. Distance: the sum of |log2(size / known size)|, plus ``HALVING``
   for each halving of the share of the roofline that the entry's kernel reached, where the table says shares.

A campaign's dispatch table and a promoted library both choose by this code.
"""

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

REACH = 64.0
"""A shape is served when no dimension differs from a known one's by more than this factor."""

TEXT = (
    "the entry of the shape; else, of the legal entries within reach in each dimension, the nearest in the sum of "
    "|log2(size / known size)| over the dimensions, if its kernel says an expected time, gives way to that of the "
    "least expected time; else the nearest in that sum and -3 log2(share of the roofline there) serves, the earlier "
    "on a tie; legal: every constraint of its kernel holds; none: the recipe's reference, with one warning"
)

_SYNTAX = (
    ast.Expression,
    ast.Constant,
    ast.Name,
    ast.expr_context,
    ast.IfExp,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.Call,
    ast.Lambda,
    ast.arguments,
    ast.arg,
    ast.GeneratorExp,
    ast.comprehension,
    ast.Tuple,
)
_GROWING = (ast.Pow, ast.LShift)
LONGEST, LOOPS = 2000, 2
"""Most characters and loops of an expected time's expression."""

_FUNCTIONS = {"min": min, "max": max, "abs": abs, "cdiv": lambda a, b: -(-a // b)}

HALVING = 3.0
"""Distance, in doublings of a size, that a halving of the share of the roofline adds. Of 50 random shapes on tpu7x
(time model 4), eleven were served at less than 0.9 of the best rate without it, and one with it. A much larger value
would let far entries serve."""

_SLACK = 1e-9
"""Distances that differ by less are equal: sums of logarithms depend on their order."""


class Unserved(LookupError):
    """No entry serves the shape; the message is one clause."""


@dataclass(frozen=True)
class Legality:
    """Where a kernel may run. ``names``: values of its parameters and of the constants of operator and target.

    ``constraints``: expressions over ``names`` and the dimensions. ``expected``: such an expression for the expected
    time, in a unit that all kernels of the table share. Raises ValueError if it is more than arithmetic.
    """

    constraints: tuple[str, ...]
    names: Mapping[str, Any]
    expected: str | None = None
    _rules: tuple[Any, ...] = field(init=False, repr=False)
    _expected: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_expected", _compiled_time(self.expected) if self.expected else None)
        object.__setattr__(self, "_rules", tuple(compile(c, "constraint", "eval") for c in self.constraints))

    def holds(self, dims: Mapping[str, int]) -> bool:
        """Whether every constraint holds at these sizes."""
        names = {**self.names, **dims}
        return all(_constraint_holds(rule, names) for rule in self._rules)

    def expected_time(self, dims: Mapping[str, int]) -> float | None:
        """The expected time at these sizes; None if the kernel has none, or it is no finite number >= 0."""
        if self._expected is None:
            return None
        try:
            time = float(_value(self._expected, {**self.names, **dims}))
        except (ArithmeticError, NameError, TypeError, ValueError):
            return None
        return time if 0 <= time < math.inf else None


def _compiled_time(text: str) -> Any:
    """Compile the expression of an expected time, which an untrusted author wrote. Raises ValueError for a bad one.

    Allowed is arithmetic that ends soon. A lambda must be called where it stands, so that no value is a function.
    """
    tree = ast.parse(text, mode="eval")
    nodes = list(ast.walk(tree))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    compared = [part for node in nodes if isinstance(node, ast.Compare) for part in (node.left, *node.comparators)]
    for node in nodes:
        if not isinstance(node, _SYNTAX) or isinstance(node, _GROWING):
            raise ValueError(f"{type(node).__name__} is not allowed")
        if isinstance(node, ast.Lambda) and node not in called:
            raise ValueError("a lambda that is not called where it stands is not allowed")
        if isinstance(node, ast.Name) and (node.id.startswith("_") or (node.id in _FUNCTIONS and node not in called)):
            raise ValueError(f"{node.id} is not allowed as a value")
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and node not in compared:
            raise ValueError("text is allowed in comparisons alone")
    if any(not isinstance(f, ast.Lambda) and ast.unparse(f) not in _FUNCTIONS for f in called):
        raise ValueError(f"only calls of {', '.join(_FUNCTIONS)} are allowed")
    if len(text) > LONGEST or sum(isinstance(node, ast.comprehension) for node in nodes) > LOOPS:
        raise ValueError(f"more than {LONGEST} characters or {LOOPS} loops are not allowed")
    return compile(tree, "expected", "eval")


def _value(rule: Any, names: Mapping[str, Any]) -> Any:
    return eval(rule, {"__builtins__": {}, **_FUNCTIONS, **names})  # in one scope, so that a lambda sees the names


def _constraint_holds(rule: Any, names: Mapping[str, Any]) -> bool:
    try:
        return bool(_value(rule, names))
    except ZeroDivisionError:
        return False


def complete_shares(shares: Sequence[float | None]) -> list[float] | None:
    """The shares of the roofline by entry, as ``nearest`` takes them; None if one is missing."""
    found = [share for share in shares if share]
    return found if len(found) == len(shares) else None


def nearest(
    entries: Sequence[tuple[Mapping[str, int], Legality]],
    dims: Mapping[str, int],
    reach: float = REACH,
    shares: Sequence[float] | None = None,
) -> int:
    """The index of the entry (its dimensions, its kernel's legality) that serves ``dims``. Raises Unserved.

    ``shares``: share of the roofline, > 0, by entry; None if the table has none.
    """
    shape = ", ".join(f"{name} {size}" for name, size in dims.items())
    if min(dims.values()) <= 0:
        raise Unserved(f"an empty product ({shape}) has no kernel")
    away = {
        number: [abs(math.log2(size / known[name])) for name, size in dims.items()]
        for number, (known, legality) in enumerate(entries)
        if legality.holds(dims)
    }
    if not away:
        raise Unserved(f"no kernel takes {shape}")
    distances = {number: sum(far) for number, far in away.items()}
    near = [number for number, far in away.items() if max(far) <= math.log2(reach) + _SLACK]
    if near and min(distances.values()) > _SLACK:
        times = {number: entries[number][1].expected_time(dims) for number in near}
        known = {number: time for number, time in times.items() if time is not None}
        if min(near, key=distances.__getitem__) in known:
            distances = known
        elif shares is not None:
            distances = {number: distances[number] - HALVING * math.log2(shares[number]) for number in near}
    least = min(distances.values())
    best = next(number for number, distance in distances.items() if distance <= least + _SLACK)
    if best not in near:
        raise Unserved(f"{shape} is more than {reach:g} times away from every known shape")
    return best
