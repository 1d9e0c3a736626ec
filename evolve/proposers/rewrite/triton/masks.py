"""Masks that only keep a tile within its tensor, however they are written."""

import hashlib
from collections.abc import Sequence

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import walk
from tilewright.evolve.proposers.rewrite.dataflow import parameters
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, argument, device_name

_PRIME = (1 << 61) - 1
_DEEPEST = 16
_BOTH = (cst.BitAnd, cst.And)


def within_bounds(kernel: TritonKernel, mask: cst.BaseExpression, starts: Sequence[str]) -> bool:
    """Whether a mask says no more than ``start + i < side`` of the axes of a tile, ``side`` a tensor's.

    ``starts``: where the tile's axes begin, as texts of the kernel.
    """
    if isinstance(mask, cst.Name):
        value = kernel.value_of(mask.value)
        return value is not None and within_bounds(kernel, value, starts)
    if isinstance(mask, cst.BinaryOperation | cst.BooleanOperation) and isinstance(mask.operator, _BOTH):
        return all(within_bounds(kernel, side, starts) for side in (mask.left, mask.right))
    if isinstance(mask, cst.Subscript):
        return within_bounds(kernel, mask.value, starts)
    if not isinstance(mask, cst.Comparison) or len(mask.comparisons) != 1:
        return False
    (compared,) = mask.comparisons
    pair = (mask.left, compared.comparator)
    if isinstance(compared.operator, cst.GreaterThan):
        pair = pair[::-1]
    elif not isinstance(compared.operator, cst.LessThan):
        return False
    return _only_bounds(kernel, *pair, starts)


def row_limit(kernel: TritonKernel, mask: cst.BaseExpression, starts: Sequence[str]) -> str:
    """What the rows of a tile stay below, where a mask says so beside its tensor's bounds; "" for any other mask."""
    limits = []
    for part in _conjuncts(kernel, mask):
        if within_bounds(kernel, part, starts):
            continue
        if not isinstance(part, cst.Comparison) or len(part.comparisons) != 1:
            return ""
        (compared,) = part.comparisons
        if not isinstance(compared.operator, cst.LessThan):
            return ""
        values = _Values(kernel)
        first = values.of(cst.parse_expression(starts[0])) + values.symbol("i")
        if values.of(part.left) != first % _PRIME:
            return ""
        limits.append(kernel.source.code(compared.comparator))
    return limits[0] if len(set(limits)) == 1 else ""


def _conjuncts(kernel: TritonKernel, mask: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(mask, cst.Name) and (value := kernel.value_of(mask.value)) is not None:
        return _conjuncts(kernel, value)
    if isinstance(mask, cst.BinaryOperation | cst.BooleanOperation) and isinstance(mask.operator, _BOTH):
        return [*_conjuncts(kernel, mask.left), *_conjuncts(kernel, mask.right)]
    return [mask]


def _only_bounds(
    kernel: TritonKernel, index: cst.BaseExpression, bound: cst.BaseExpression, starts: Sequence[str]
) -> bool:
    """Whether ``bound - index`` is ``side - start - i`` of an axis."""
    values = _Values(kernel)
    room = (values.of(bound) - values.of(index)) % _PRIME
    sides = [p.name.value for p in parameters(kernel.function) if p.name.value not in kernel.constexprs]
    for name in sides:
        for start in starts:
            asked = values.symbol(name) - values.of(cst.parse_expression(start)) - values.symbol("i")
            if room == asked % _PRIME and is_side(kernel, name):
                return True
    return False


class _Values:
    """Expressions of a kernel as numbers: equal sums and products of its names have equal numbers.

    Names get numbers by their hash, modulo a prime of 61 bits, so that different polynomials differ but by a chance
    of about 2**-60.
    """

    def __init__(self, kernel: TritonKernel) -> None:
        self._kernel = kernel

    def symbol(self, text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % _PRIME

    def of(self, node: cst.BaseExpression, deep: int = 0) -> int:
        """The number of ``node``; names bound once stand for what they are bound to."""
        source = self._kernel.source
        if isinstance(node, cst.Integer):
            return node.evaluated_value % _PRIME
        if isinstance(node, cst.Name):
            value = self._kernel.value_of(node.value) if deep < _DEEPEST else None
            return self.symbol(node.value) if value is None else self.of(value, deep + 1)
        if isinstance(node, cst.Subscript) and "None" in source.code(node).rpartition("[")[2]:
            return self.of(node.value, deep)
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
            return -self.of(node.expression, deep) % _PRIME
        if isinstance(node, cst.BinaryOperation):
            left, right = (self.of(side, deep) for side in (node.left, node.right))
            if isinstance(node.operator, cst.Add):
                return (left + right) % _PRIME
            if isinstance(node.operator, cst.Subtract):
                return (left - right) % _PRIME
            if isinstance(node.operator, cst.Multiply):
                return left * right % _PRIME
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Attribute) and node.func.attr.value == "to":
                return self.of(node.func.value, deep)
            if device_name(source, node.func) in ("max_contiguous", "multiple_of"):
                return self.of(node.args[0].value, deep)
            first = argument(node, "start", 0)
            if device_name(source, node.func) == "arange" and first is not None and source.code(first) == "0":
                return self.symbol("i")
        return self.symbol("".join(source.code(node).split()))


def is_side(kernel: TritonKernel, name: str) -> bool:
    """Whether the launch passes a side of a tensor for parameter ``name``."""
    given = kernel.given(name)
    if given is None:
        return False
    text = kernel.source.code(given)
    if ".shape[" in text or ".size(" in text:
        return True
    scope = kernel.source.enclosing(kernel.launch(), cst.FunctionDef)
    for statement in walk(scope.body) if scope is not None else ():
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for line in statement.body:
            if not isinstance(line, cst.Assign):
                continue
            value, target = kernel.source.code(line.value), line.targets[0].target
            sided = value.endswith(".shape") or ".shape[" in value or ".size(" in value or ".shape," in value
            if sided and text in {n.value for n in walk(target) if isinstance(n, cst.Name)}:
                return True
    return False
