"""Integer expressions of a kernel as sums of products, in which what a tile's elements add is told apart."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.gluon.statements import device_call

Product = tuple[str, ...]
"""Factors, sorted. ``@0:BM`` is what the elements of a tile of BM rows add along axis 0, ``@:BM`` along no axis yet."""

_DEEPEST = 40
_SIGNS: Mapping[type, Callable[..., Any]] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@dataclass(frozen=True)
class Sum:
    """Coefficient by product; the empty product is 1."""

    parts: Mapping[Product, int]

    def __add__(self, other: Sum) -> Sum:
        made = dict(self.parts)
        for product, count in other.parts.items():
            made[product] = made.get(product, 0) + count
        return Sum({p: c for p, c in made.items() if c})

    def __mul__(self, other: Sum) -> Sum:
        made: dict[Product, int] = {}
        for one, first in self.parts.items():
            for two, second in other.parts.items():
                product = tuple(sorted((*one, *two)))
                made[product] = made.get(product, 0) + first * second
        return Sum({p: c for p, c in made.items() if c})

    def __sub__(self, other: Sum) -> Sum:
        return self + other * constant(-1)

    def along(self, axis: int) -> Sum:
        """The same as a tile whose elements lie along ``axis``."""
        turned = {tuple(sorted(f.replace("@:", f"@{axis}:") for f in p)): c for p, c in self.parts.items()}
        return Sum(turned)

    def split(self, axis: int) -> tuple[str, Sum] | None:
        """(extent, what an element more along ``axis`` adds); None where nothing varies along it."""
        mark = f"@{axis}:"
        names = {f for p in self.parts for f in p if f.startswith(mark)}
        if not names:
            return None
        if len(names) > 1:
            raise Unsupported("a tile of two extents along one axis")
        (name,) = names
        made: dict[Product, int] = {}
        for product, count in self.parts.items():
            if name in product:
                rest = list(product)
                rest.remove(name)
                if any(f.startswith("@") for f in rest):
                    raise Unsupported("a product of two ranges in an address")
                made[tuple(rest)] = count
        return name[len(mark) :], Sum(made)

    @property
    def scalar(self) -> Sum:
        """What is the same for all elements."""
        return Sum({p: c for p, c in self.parts.items() if not any(f.startswith("@") for f in p)})

    def over(self, divisor: Sum) -> Sum:
        """The parts that ``divisor``, one product, divides, divided by it."""
        ((factors, count),) = divisor.parts.items()
        made = {}
        for product, amount in self.parts.items():
            rest = list(product)
            if amount % count or any(rest.count(f) < factors.count(f) for f in factors):
                continue
            for factor in factors:
                rest.remove(factor)
            made[tuple(rest)] = amount // count
        return Sum(made)

    @property
    def factors(self) -> set[str]:
        return {f for p in self.parts for f in p}

    @property
    def single(self) -> bool:
        return len(self.parts) == 1

    def text(self) -> str:
        """As an expression of the kernel."""
        written = []
        for product, count in sorted(self.parts.items()):
            factors = [f if f.isidentifier() or f.isdigit() else f"({f})" for f in product]
            shown = factors if count == 1 and factors else [str(count), *factors]
            written.append(" * ".join(shown) if count >= 0 else f"({' * '.join(shown)})")
        return " + ".join(written) or "0"

    def least(self) -> Sum | None:
        """The least value over a tile's elements; None where it is not a sum of independent ranges."""
        total = self.scalar
        for product, count in self.parts.items():
            ranges = [f for f in product if f.startswith("@")]
            if not ranges:
                continue
            if len(product) != 1:
                return None
            extent = ranges[0].partition(":")[2]
            if count < 0:
                total += (_number(extent) + constant(-1)) * constant(count)
        return total


def constant(value: int) -> Sum:
    return Sum({(): value} if value else {})


def _number(text: str) -> Sum:
    return constant(int(text)) if text.isdigit() else Sum({(text,): 1})


class SumReader:
    """Reads expressions with the names a kernel binds once replaced by what they are bound to.

    ``bound``: name to expression. ``running``: names that a loop advances, as what they are within it.
    """

    def __init__(self, tl: str, bound: Mapping[str, ast.expr], running: Mapping[str, Sum]) -> None:
        self.tl, self.bound, self.running = tl, bound, running

    def read(self, node: ast.expr, depth: int = 0) -> Sum:
        """Raises Unsupported for a tile that is no sum of ranges."""
        if depth > _DEEPEST:
            raise Unsupported("a name bound to itself")
        again = depth + 1
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return constant(int(node.value))
        if isinstance(node, ast.Name):
            if node.id in self.running:
                return self.running[node.id]
            value = self.bound.get(node.id)
            return self.read(value, again) if value is not None and self.follows(value) else _number(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            sides = [self.read(n, again) for n in (node.left, node.right)]
            if any(f.startswith(("@0:", "@1:")) for s in sides for f in s.factors):
                sides = [s.along(1) for s in sides]  # a row beside a tile
            return _SIGNS[type(node.op)](*sides)
        if self._of_zero(node):
            return constant(0)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.read(node.operand, again) * constant(-1)
        if isinstance(node, ast.Subscript) and (axis := expanded(node)) is not None:
            return self.read(node.value, again).along(axis)
        if inner := transparent(node, self.tl):
            return self.read(inner, again)
        if isinstance(node, ast.Call) and device_call(node, self.tl) == "arange" and len(node.args) == 2:
            return self.read(node.args[0], again) + Sum({(f"@:{ast.unparse(node.args[1])}",): 1})
        if self.varies(node):
            raise Unsupported(f"a tile that is no sum of ranges: {ast.unparse(node)[:40]}")
        return _number(ast.unparse(node))

    def less(self, node: ast.expr, axis: int | None) -> tuple[Sum, Sum] | None:
        """(low, high) of ``low < high``."""
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            return None
        sides = [self.read(n) for n in (node.left, node.comparators[0])]
        sides = [s if axis is None else s.along(axis) for s in sides]
        if isinstance(node.ops[0], ast.Gt | ast.GtE):
            sides.reverse()
        if isinstance(node.ops[0], ast.LtE | ast.GtE):
            sides[1] += constant(1)
        elif not isinstance(node.ops[0], ast.Lt | ast.Gt):
            return None
        return sides[0], sides[1]

    def follows(self, node: ast.expr) -> bool:
        """Whether a name bound to ``node`` may stand for it: arithmetic, or something along a tile."""
        plain = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult)
        leaf = isinstance(node, ast.Name | ast.Subscript | ast.UnaryOp) or (
            isinstance(node, ast.Constant) and isinstance(node.value, int)
        )
        ranged = isinstance(node, ast.Call) and device_call(node, self.tl) == "arange"
        return (
            self._of_zero(node)
            or plain
            or leaf
            or ranged
            or transparent(node, self.tl) is not None
            or self.varies(node)
        )

    def _of_zero(self, node: ast.expr | None) -> bool:
        """Whether a number is zero, as a quotient or a remainder of zero is."""
        for _ in range(_DEEPEST):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                node = node.left
            node = self.bound.get(node.id) if isinstance(node, ast.Name) else node
        return isinstance(node, ast.Constant) and node.value == 0

    def varies(self, node: ast.AST) -> bool:
        """Whether an expression is a tile: whether a range is in what it is made of."""
        seen: set[str] = set()
        wanted: list[ast.AST] = [node]
        while wanted:
            for inner in ast.walk(wanted.pop()):
                if device_call(inner, self.tl) == "arange":
                    return True
                if isinstance(inner, ast.Name) and inner.id not in seen:
                    seen.add(inner.id)
                    if any(f.startswith("@") for f in self.running.get(inner.id, constant(0)).factors):
                        return True
                    if inner.id in self.bound:
                        wanted.append(self.bound[inner.id])
        return False


def transparent(node: ast.AST, tl: str) -> ast.expr | None:
    """What a cast or a hint is of; None for anything else."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "to" and len(node.args) == 1:
        return node.func.value
    hints = ("multiple_of", "max_contiguous", "max_constancy", "cast")
    return node.args[0] if device_call(node, tl) in hints and node.args else None


def expanded(node: ast.Subscript) -> int | None:
    """The axis that ``x[:, None]`` (0) or ``x[None, :]`` (1) lies along."""
    if not isinstance(node.slice, ast.Tuple) or len(node.slice.elts) != 2:
        return None
    fresh = [isinstance(e, ast.Constant) and e.value is None for e in node.slice.elts]
    whole = [isinstance(e, ast.Slice) for e in node.slice.elts]
    if whole[0] and fresh[1]:
        return 0
    return 1 if fresh[0] and whole[1] else None


def conjuncts(
    node: ast.expr, bound: Mapping[str, ast.expr], axis: int | None = None
) -> Iterator[tuple[ast.expr, int | None]]:
    """(what must all hold for a mask, the axis it lies along if that is said outside of it), behind names."""
    if isinstance(node, ast.Name) and node.id in bound:
        yield from conjuncts(bound[node.id], bound, axis)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        yield from conjuncts(node.left, bound, axis)
        yield from conjuncts(node.right, bound, axis)
    elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from conjuncts(value, bound, axis)
    elif isinstance(node, ast.Subscript) and expanded(node) is not None:
        yield from conjuncts(node.value, bound, expanded(node))
    else:
        yield node, axis
