"""Dots, the statements that accumulate them, and the factors they are scaled with."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, children, walk
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, definitions, parameters, small, statements
from tilewright.evolve.proposers.rewrite.pallas.analysis.view import PallasCall

DOTS = ("jax.numpy.dot", "jax.numpy.matmul", "jax.lax.dot", "jax.experimental.pallas.dot")
GENERAL = "jax.lax.dot_general"


@dataclass(frozen=True)
class Dot:
    """A matrix product. ``transposed``: the right operand is contracted along its last axis."""

    node: cst.BaseExpression
    lhs: cst.BaseExpression
    rhs: cst.BaseExpression
    transposed: bool = False


@dataclass
class Accumulate:
    """``target += value`` in any spelling; ``ref`` is the reference's name when the target is one."""

    statement: cst.CSTNode
    target: cst.BaseExpression
    value: cst.BaseExpression
    ref: str | None
    loop: cst.For | None

    @property
    def is_whole(self) -> bool:
        """Whether the target is a name, or a reference indexed by ``...`` or colons only."""
        return isinstance(self.target, cst.Name) or full_index(self.target)


def full_index(node: cst.BaseExpression) -> bool:
    """``ref[...]``, ``ref[:]`` or ``ref[:, :]``."""
    if not isinstance(node, cst.Subscript):
        return False
    for element in node.slice:
        inner = element.slice
        if isinstance(inner, cst.Index) and isinstance(inner.value, cst.Ellipsis):
            continue
        if isinstance(inner, cst.Slice) and inner.lower is None and inner.upper is None:
            continue
        return False
    return True


def dot_of(kernel: KernelSource, node: cst.CSTNode) -> Dot | None:
    """The matrix product that ``node`` is: a library call, ``@``, or a one-line wrapper of one."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        return Dot(node, node.left, node.right)
    if not isinstance(node, cst.Call) or len(node.args) < 2:
        return None
    name = kernel.qualified(node.func)
    lhs, rhs = node.args[0].value, node.args[1].value
    if name in DOTS:
        return Dot(node, lhs, rhs, _keyword(node, "trans_b") == "True")
    if name == GENERAL:
        numbers = [
            "".join(kernel.code(a.value).split())
            for a in node.args[2:]
            if a.keyword is None or a.keyword.value == "dimension_numbers"
        ]
        if numbers and numbers[0].startswith("(((1,),(0,))"):
            return Dot(node, lhs, rhs)
        if numbers and numbers[0].startswith("(((1,),(1,))"):
            return Dot(node, lhs, rhs, True)
        return None
    if name and name.isidentifier() and (function := kernel.function(name, near=node)):
        return _wrapper(kernel, function, node)
    return None


def _keyword(call: cst.Call, name: str) -> str:
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return cst.Module(body=[]).code_for_node(argument.value)
    return ""


def _wrapper(kernel: KernelSource, function: cst.FunctionDef, call: cst.Call) -> Dot | None:
    """``def dot(a, b): return jnp.dot(a, b, ...)``."""
    body = [s for s in function.body.body if not _docstring(s)]
    line = small(body[0]) if len(body) == 1 else None
    if not isinstance(line, cst.Return) or not isinstance(line.value, cst.Call):
        return None
    inner = dot_of(kernel, line.value) if kernel.qualified(line.value.func) != function.name.value else None
    names = [p.name.value for p in parameters(function)]
    if inner and [kernel.code(inner.lhs), kernel.code(inner.rhs)] == names[:2]:
        return Dot(call, call.args[0].value, call.args[1].value, inner.transposed)
    return None


def _docstring(statement: cst.CSTNode) -> bool:
    line = small(statement)
    return isinstance(line, cst.Expr) and isinstance(line.value, cst.SimpleString)


def dots(kernel: KernelSource, node: cst.CSTNode) -> list[Dot]:
    return [d for n in walk(node) if (d := dot_of(kernel, n))]


def accumulates(view: PallasCall) -> list[Accumulate]:
    """Accumulations of the kernel outside conditional blocks whose value holds a dot, maybe by name."""
    kernel = view.kernel
    guarded = {n for w in view.whens for n in walk(w.node)}
    found = []
    for statement in statements(view.function.body):
        if statement in guarded:
            continue
        item = accumulate_of(view, statement)
        if item and dots(kernel, expanded_sum(view, item)):
            found.append(item)
    return found


def accumulate_of(view: PallasCall, statement: cst.CSTNode) -> Accumulate | None:
    kernel, line = view.kernel, small(statement)
    target: cst.BaseExpression | None = None
    value: cst.BaseExpression | None = None
    if isinstance(line, cst.AugAssign) and isinstance(line.operator, cst.AddAssign):
        target, value = line.target, line.value
    elif isinstance(line, cst.Assign) and len(line.targets) == 1:
        target = line.targets[0].target
        text = kernel.code(target)
        if isinstance(line.value, cst.BinaryOperation) and isinstance(line.value.operator, cst.Add):
            if kernel.code(line.value.left) == text:
                value = line.value.right
            elif kernel.code(line.value.right) == text:
                value = line.value.left
    if value is None or not isinstance(target, cst.Name | cst.Subscript):
        return None
    ref = None
    if isinstance(target, cst.Subscript):
        if not isinstance(target.value, cst.Name) or view.ref(target.value.value) is None:
            return None
        ref = target.value.value
    return Accumulate(statement, target, value, ref, kernel.enclosing(statement, cst.For))


def local_value(view: PallasCall, name: str, before: cst.CSTNode) -> tuple[cst.CSTNode, cst.BaseExpression] | None:
    """The only assignment of ``name`` in the kernel, if it stands before ``before`` in its block."""
    places = definitions(view.function).get(name, [])
    if len(places) != 1 or places[0] not in children(view.kernel.parents[before]):
        return None
    found = assigned_value(places[0])
    return (places[0], found[1]) if found and len(found[0]) == 1 else None


def expanded_sum(view: PallasCall, item: Accumulate) -> cst.BaseExpression:
    """The accumulated expression with names bound to a dot replaced by that dot's expression."""
    table: dict[cst.CSTNode, cst.BaseExpression] = {}
    for node in walk(item.value):
        found = local_value(view, node.value, item.statement) if isinstance(node, cst.Name) else None
        if found is not None and dots(view.kernel, found[1]):
            table[node] = found[1].with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    if not table:
        return item.value
    if item.value in table:
        return table[item.value]
    return item.value.visit(_Inline(table))  # type: ignore[return-value]


def absorbed_statements(view: PallasCall, item: Accumulate) -> list[cst.CSTNode]:
    """Statements that ``expanded_sum`` makes unnecessary: their name is read by this accumulation only."""
    gone = []
    for node in walk(item.value):
        if isinstance(node, cst.Name) and (found := local_value(view, node.value, item.statement)):
            uses = [n for n in walk(view.function) if isinstance(n, cst.Name) and n.value == node.value]
            if dots(view.kernel, found[1]) and len(uses) == 2:
                gone.append(found[0])
    return gone


class _Inline(cst.CSTTransformer):
    def __init__(self, table: dict[cst.CSTNode, cst.BaseExpression]) -> None:
        super().__init__()
        self.table = table

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        return self.table.get(original_node, updated_node)


def factors(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Factors of a product, nested products flattened."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        yield from factors(node.left)
        yield from factors(node.right)
    else:
        yield node


def scaled_dot(kernel: KernelSource, node: cst.BaseExpression) -> tuple[Dot, list[cst.BaseExpression]] | None:
    """(dot, other factors) of ``dot * a * b ...``; None if there is not exactly one dot at the top."""
    parts = list(factors(node))
    found = [(p, d) for p in parts if (d := dot_of(kernel, p))]
    if len(found) != 1:
        return None
    return found[0][1], [p for p in parts if p is not found[0][0]]
