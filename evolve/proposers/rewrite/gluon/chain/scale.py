"""Scores that stay unscaled: a factor above zero goes behind a row's largest and into the exponent.

There the multiplication is part of an instruction that is needed anyway, so that a step has one less for each score.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.evolve.proposers.rewrite.gluon.chain.sums import transparent
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, device_call, names_in
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel

if TYPE_CHECKING:
    from tilewright.evolve.proposers.rewrite.gluon.chain.read import Chain

_HIDDEN = frozenset({"float('-inf')", "-float('inf')"})


def unscaled(
    chain: Chain, kernel: TritonKernel, bound: Mapping[str, ast.expr], outside: Collection[str]
) -> Chain:
    """The chain with its scores' factor put where they are used; itself where no factor is told apart.
    ``outside``: names that are read elsewhere."""
    found = _factor(chain, kernel.tl)
    if found is None:
        return chain
    name, factor, first, middle = found
    written = {n for s in chain.body for n in s.writes} | {chain.variable}
    host = _in_host(factor, kernel, bound)
    if (
        host is None
        or names_in(ast.unparse(factor)) & written
        or name in {*outside, *names_in(chain.operand)}
    ):
        return chain
    scaled, pending, made = _Scaled(kernel.tl, name, factor), True, list[Statement]()
    for statement in middle:
        if pending and name in statement.reads and not _hides(statement.node, name, kernel.tl):
            made.append(scaled.of(statement))
            pending = name not in statement.writes
        else:
            made.append(statement)
    late = tuple(scaled.of(s) if pending else s for s in chain.late)
    return replace(
        chain, first=first, middle=tuple(made), late=late, scale=ast.unparse(factor), positive=f"{host} > 0"
    )


def _factor(chain: Chain, tl: str) -> tuple[str, ast.expr, Statement, Sequence[Statement]] | None:
    """(name of the scores, their factor, the first product without it, the statements behind)."""
    if not isinstance(chain.first.node, ast.Assign) or not isinstance(chain.first.node.targets[0], ast.Name):
        return None
    name, value = chain.first.node.targets[0].id, chain.first.node.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for product, factor in ((value.left, value.right), (value.right, value.left)):
            if device_call(product, tl) == "dot":
                return name, factor, _bound(name, product), chain.middle
    users = [s for s in chain.middle if name in s.reads]
    if device_call(value, tl) != "dot" or not users:
        return None
    node, rest = users[0].node, [s for s in chain.middle if s is not users[0]]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult) and users[0].writes == {name}:
        return name, node.value, chain.first, rest
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and len(users) == 1:
        product = node.value
        if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
            for score, factor in ((product.left, product.right), (product.right, product.left)):
                if isinstance(score, ast.Name) and score.id == name:
                    return node.targets[0].id, factor, _bound(node.targets[0].id, value), rest
    return None


def _bound(name: str, value: ast.expr) -> Statement:
    return Statement(ast.parse(f"{name} = {ast.unparse(value)}").body[0])


def _hides(node: ast.stmt, name: str, tl: str) -> bool:
    """Whether a statement only puts minus infinity, which is its own multiple, in place of some scores."""
    if not isinstance(node, ast.Assign) or [ast.unparse(t) for t in node.targets] != [name]:
        return False
    call = node.value
    if device_call(call, tl) != "where" or not isinstance(call, ast.Call) or len(call.args) != 3:
        return False
    mask, kept, other = (ast.unparse(a) for a in call.args)
    return kept == name and other in _HIDDEN and name not in names_in(mask)


class _Scaled(ast.NodeTransformer):
    """Puts the product of ``name`` and its factor where ``name`` is read."""

    def __init__(self, tl: str, name: str, factor: ast.expr) -> None:
        self.tl, self.name, self.factor = tl, name, factor

    def of(self, statement: Statement) -> Statement:
        node = ast.parse(statement.text).body[0]
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == self.name:
            target = ast.Name(self.name, ast.Store())
            node = ast.Assign([target], ast.BinOp(ast.Name(self.name, ast.Load()), node.op, node.value))
        made = ast.fix_missing_locations(self.visit(node))
        return Statement(ast.parse(ast.unparse(made)).body[0])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        plain = len(node.args) + len(node.keywords) == 2 and all(k.arg == "axis" for k in node.keywords)
        if device_call(node, self.tl) == "max" and plain and ast.unparse(node.args[0]) == self.name:
            return ast.BinOp(node, ast.Mult(), self.factor)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == self.name and isinstance(node.ctx, ast.Load):
            return ast.BinOp(node, ast.Mult(), self.factor)
        return node


def _in_host(node: ast.expr, kernel: TritonKernel, bound: Mapping[str, ast.expr]) -> str | None:
    """A number of the kernel as the host says it; None where the host does not know it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return repr(node.value)
    if isinstance(node, ast.Name) and node.id in bound:
        return _in_host(bound[node.id], kernel, bound)
    if isinstance(node, ast.Name) and node.id not in kernel.bound:
        given = kernel.given(node.id)
        return None if given is None else f"({kernel.source.code(given)})"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.Add | ast.Sub):
        left, right = (_in_host(n, kernel, bound) for n in (node.left, node.right))
        operator = {ast.Mult: "*", ast.Div: "/", ast.Add: "+", ast.Sub: "-"}[type(node.op)]
        return None if left is None or right is None else f"({left} {operator} {right})"
    inner = transparent(node, kernel.tl)
    return _in_host(inner, kernel, bound) if inner is not None else None
