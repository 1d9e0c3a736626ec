"""Masks that compare positions: where they hide nothing of a tile, and where all of it.

A mask such as ``column <= row``, each side a sum of ``broadcasted_iota`` and offsets, is linear in the position. Over
a tile, the difference of its sides therefore lies between two values that are known from the offsets and the extents:
what the whole tile has in common is decided without looking at it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions, reads_of, small
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import pairs

_WHERE = ("jax.numpy.where", "jax.lax.select")
_ORDER: dict[type[cst.BaseCompOp], tuple[str, str, str, str]] = {
    cst.LessThan: ("<", "max", "min", ">="),
    cst.LessThanEqual: ("<=", "max", "min", ">"),
    cst.GreaterThan: (">", "min", "max", "<="),
    cst.GreaterThanEqual: (">=", "min", "max", "<"),
}
"""An order: its sign, the end of the difference that decides whether all of a tile holds, the end that decides
whether none does, and the sign that says so."""


@dataclass
class Linear:
    """A sum of positions and offsets: extents of the positions with their signs, texts of offsets with theirs."""

    positions: list[tuple[int, str]] = field(default_factory=list)
    offsets: list[tuple[int, str]] = field(default_factory=list)

    def minus(self, other: "Linear") -> "Linear":
        return Linear(
            self.positions + [(-sign, extent) for sign, extent in other.positions],
            self.offsets + [(-sign, text) for sign, text in other.offsets],
        )

    def end(self, which: str) -> str:
        """Text of the largest ("max") or least value over a tile."""
        texts = list(self.offsets)
        for sign, extent in self.positions:
            if (sign > 0) == (which == "max"):
                texts.append((sign, f"({_tight(extent)} - 1)"))
        if not texts:
            return "0"
        first = [("" if sign > 0 else "-") + _tight(text) for sign, text in texts[:1]]
        return first[0] + "".join(f" {'+' if sign > 0 else '-'} {_tight(text)}" for sign, text in texts[1:])


@dataclass
class Mask:
    """One use of a mask: ``where(condition, shown, hidden)``; conditions as texts over the kernel's names."""

    node: cst.Call
    shown: cst.BaseExpression
    hidden: cst.BaseExpression
    full: str
    empty: str

    def names(self) -> set[str]:
        """Names that decide about a tile."""
        return reads_of(self.full) | reads_of(self.empty)


def _tight(text: str) -> str:
    plain = text.replace(".", "").replace("_", "").replace("[", "").replace("]", "").isalnum()
    return text if plain or (text.startswith("(") and _closes(text)) else f"({text})"


def _closes(text: str) -> bool:
    """Whether the first parenthesis is closed by the last."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place == len(text) - 1
    return False


def masks(kernel: KernelSource, function: cst.FunctionDef, inside: cst.CSTNode) -> Iterator[Mask]:
    """Masks of tiles in ``inside``, a part of ``function``."""
    reader = _Reader(kernel, function)
    for node in walk(inside):
        if isinstance(node, cst.Call) and kernel.qualified(node.func) in _WHERE and len(node.args) == 3:
            compared = reader.comparison(node.args[0].value)
            if compared is None:
                continue
            difference, operator = compared
            sign, all_end, none_end, none_sign = _ORDER[operator]
            yield Mask(
                node,
                node.args[1].value,
                node.args[2].value,
                f"{difference.end(all_end)} {sign} 0",
                f"{difference.end(none_end)} {none_sign} 0",
            )


class _Reader:
    """Reads linear expressions of one kernel, through the names it gives them."""

    def __init__(self, kernel: KernelSource, function: cst.FunctionDef) -> None:
        self.kernel = kernel
        self.bound = definitions(function)

    def comparison(self, node: cst.BaseExpression) -> tuple[Linear, type[cst.BaseCompOp]] | None:
        """(left minus right, order) of a comparison of positions."""
        node = self._value(node)
        if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
            return None
        operator = type(node.comparisons[0].operator)
        left, right = self.linear(node.left), self.linear(node.comparisons[0].comparator)
        if operator not in _ORDER or left is None or right is None:
            return None
        difference = left.minus(right)
        return (difference, operator) if difference.positions else None

    def _value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """What a name stands for, if it is bound once."""
        for _ in range(8):
            if not isinstance(node, cst.Name) or len(self.bound.get(node.value, ())) != 1:
                break
            values = [v for n, v in pairs(self.bound[node.value][0]) if n == node.value]
            if not values:
                break
            node = values[0]
        return node

    def linear(self, node: cst.BaseExpression, depth: int = 12) -> Linear | None:
        """``node`` as positions and offsets; None where it is neither a sum nor free of positions."""
        if depth == 0:
            return None
        if not self._positions(node, 12):
            return Linear(offsets=[(1, " ".join(self.kernel.code(node).split()))])
        if isinstance(node, cst.Name):
            return self._name_value(node.value, depth)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Subtract):
            left, right = self.linear(node.left, depth - 1), self.linear(node.right, depth - 1)
            if left is None or right is None:
                return None
            if isinstance(node.operator, cst.Subtract):
                return left.minus(right)
            return Linear(left.positions + right.positions, left.offsets + right.offsets)
        extent = self._iota(node)
        return Linear(positions=[(1, extent)]) if extent is not None else None

    def _name_value(self, name: str, depth: int) -> Linear | None:
        """A name bound once, or once and then added to."""
        found: Linear | None = None
        places = self.bound.get(name, [])
        for number, place in enumerate(places):
            line = small(place)
            if number == 0:
                values = [v for n, v in pairs(place) if n == name]
                found = self.linear(values[0], depth - 1) if values else None
            elif isinstance(line, cst.AugAssign) and isinstance(line.operator, cst.AddAssign) and found:
                if self.kernel.parents[place] is not self.kernel.parents[places[0]]:
                    return None
                more = self.linear(line.value, depth - 1)
                if more is None:
                    return None
                found = Linear(found.positions + more.positions, found.offsets + more.offsets)
            else:
                return None
        return found

    def _positions(self, node: cst.BaseExpression, depth: int) -> bool:
        """Whether ``node`` is made of an iota, through any names."""
        for part in walk(node):
            if self._iota(part) is not None:
                return True
            if isinstance(part, cst.Name) and depth:
                for place in self.bound.get(part.value, ()):
                    line = small(place)
                    values = [v for n, v in pairs(place) if n == part.value]
                    values += [line.value] if isinstance(line, cst.AugAssign) else []
                    if any(self._positions(v, depth - 1) for v in values):
                        return True
        return False

    def _iota(self, node: cst.CSTNode) -> str | None:
        """Text of the extent that an iota counts along."""
        if not isinstance(node, cst.Call) or self.kernel.qualified(node.func) != "jax.lax.broadcasted_iota":
            return None
        named = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
        free = [a.value for a in node.args if a.keyword is None]
        shape = named.get("shape") or (free[1] if len(free) > 1 else None)
        axis = named.get("dimension") or (free[2] if len(free) > 2 else None)
        if shape is None or not isinstance(axis, cst.Integer):
            return None
        shape = self._value(shape)
        number = int(axis.value)
        if isinstance(shape, cst.Tuple) and number < len(shape.elements):
            return self.kernel.code(shape.elements[number].value)
        text = self.kernel.code(shape)
        return f"{text}[{number}]" if text.endswith(".shape") else None
