"""What of a kernel's code Python decides while the kernel is traced, and what only the device knows."""

from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, walk
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, definitions, small
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import When, pairs, when_of

_PLAIN_CALLS = ("min", "max", "int", "abs", "len", "bool", "divmod", "jax.experimental.pallas.cdiv")
_PLAIN_NODES = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.BooleanOperation, cst.IfExp, cst.Tuple)
_LOGICAL = {"jax.numpy.logical_or": "or", "jax.numpy.logical_and": "and", "jax.numpy.logical_not": "not"}


@dataclass
class StaticNames:
    """Python values of one kernel: host names, targets of loops over ``range``, arithmetic on both."""

    kernel: KernelSource
    function: cst.FunctionDef

    @cached_property
    def bound(self) -> dict[str, list[cst.CSTNode]]:
        """Statements of the kernel that bind a name, nested functions included."""
        return definitions(self.function)

    @cached_property
    def _opaque(self) -> set[str]:
        """Parameters that hold references or traced values: all but the kernel's keyword-only ones."""
        keywords = set(self.function.params.kwonly_params)
        return {node.name.value for node in walk(self.function) if isinstance(node, cst.Param) and node not in keywords}

    def __call__(self, node: cst.BaseExpression) -> bool:
        """Whether ``node`` is a Python value whenever the kernel is traced."""
        return self._static(node, frozenset())

    def _static(self, node: cst.BaseExpression, seen: frozenset[str]) -> bool:
        if isinstance(node, cst.Integer | cst.Float | cst.SimpleString):
            return True
        if isinstance(node, cst.Name):
            return self._name(node.value, seen)
        if isinstance(node, cst.Attribute):
            return node.attr.value in ("shape", "ndim", "size") and isinstance(node.value, cst.Name)
        if isinstance(node, cst.Subscript):
            places = [e.slice.value for e in node.slice if isinstance(e.slice, cst.Index)]
            return len(places) == len(node.slice) and all(self._static(n, seen) for n in [node.value, *places])
        if isinstance(node, cst.Call):
            name = self.kernel.qualified(node.func)
            plain = name in _PLAIN_CALLS or name in _LOGICAL or name.startswith("math.")
            return plain and all(not a.star and self._static(a.value, seen) for a in node.args)
        if isinstance(node, _PLAIN_NODES):
            return all(self._static(n, seen) for n in _operands(node))
        return False

    def _name(self, name: str, seen: frozenset[str]) -> bool:
        if name in seen:
            return True
        if name in self._opaque:
            return False
        return all(self._binding(place, name, seen | {name}) for place in self.bound.get(name, ()))

    def _binding(self, place: cst.CSTNode, name: str, seen: frozenset[str]) -> bool:
        if isinstance(place, cst.For):
            return self._is_range(place.iter, seen)
        line = small(place)
        if isinstance(line, cst.AugAssign):
            return self._static(line.value, seen)
        values = [value for bound, value in pairs(place) if bound == name]
        if not values and (found := assigned_value(place)) is not None:
            values = [found[1]] if isinstance(found[1], cst.Attribute) else []
        return bool(values) and all(self._static(value, seen) for value in values)

    def _is_range(self, node: cst.BaseExpression, seen: frozenset[str]) -> bool:
        """``range`` of Python values."""
        return (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Name)
            and node.func.value == "range"
            and all(not a.star and self._static(a.value, seen) for a in node.args)
        )

    def whens(self, inside: cst.CSTNode) -> list[When]:
        """The ``pl.when`` blocks below ``inside`` that Python decides."""
        found = [when_of(self.kernel, node) for node in walk(inside)]
        return [when for when in found if when is not None and self(when.condition)]

    def python_condition(self, node: cst.BaseExpression) -> str:
        """Text of a condition that Python decides, with ``and``, ``or`` and ``not`` for their array twins."""
        if isinstance(node, cst.Call) and (word := _LOGICAL.get(self.kernel.qualified(node.func))):
            texts = [f"({self.python_condition(a.value)})" for a in node.args]
            return f"{word} {texts[0]}" if word == "not" else f" {word} ".join(texts)
        return self.kernel.code(node)


def _operands(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Expressions that an expression of ``_PLAIN_NODES`` is made of."""
    if isinstance(node, cst.Comparison):
        return [node.left, *(c.comparator for c in node.comparisons)]
    if isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
        return [node.left, node.right]
    if isinstance(node, cst.UnaryOperation):
        return [node.expression]
    if isinstance(node, cst.IfExp):
        return [node.test, node.body, node.orelse]
    assert isinstance(node, cst.Tuple)
    return [e.value for e in node.elements]
