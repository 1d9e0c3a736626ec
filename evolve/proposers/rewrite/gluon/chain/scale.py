"""Scores that stay unscaled: a factor above zero goes behind a row's largest and into the exponent.

There the multiplication is part of an instruction that is needed anyway, so that a step has one less for each score.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

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
    node, tl, middle = chain.first.node, kernel.tl, list(chain.middle)
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return chain
    name, value, after = node.targets[0].id, node.value, middle[0].node if middle else None
    factor: ast.expr | None = None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        sides = ((value.left, value.right), (value.right, value.left))
        value, factor = next((pair for pair in sides if device_call(pair[0], tl) == "dot"), (value, None))
    elif (
        isinstance(after, ast.AugAssign)
        and isinstance(after.op, ast.Mult)
        and ast.unparse(after.target) == name
    ):
        factor, middle = after.value, middle[1:]
    written = {n for s in chain.body for n in s.writes} | {chain.variable}
    host = None if factor is None else _in_host(factor, kernel, bound)
    if factor is None or host is None or device_call(value, tl) != "dot":
        return chain
    before = {n for s in chain.early for n in s.reads}  # of the step before
    if names_in(ast.unparse(factor)) & written or name in {*outside, *before, *names_in(chain.operand)}:
        return chain
    scaled, pending, made = _Scaled(tl, name, factor), True, list[Statement]()
    for statement in middle:
        if pending and not _hides(statement.node, name, tl):
            made.append(scaled.of(statement))
            pending = name not in statement.writes
        else:
            made.append(statement)
    late = tuple(scaled.of(s) if pending else s for s in chain.late)
    bounds = frozenset(n for s in (*made, *late) for n in s.writes if _is_row_bound(s.node, scaled))
    first = Statement(ast.parse(f"{name} = {ast.unparse(value)}").body[0])
    scale, positive = ast.unparse(factor), f"{host} > 0"
    return replace(
        chain, first=first, middle=tuple(made), late=late, scale=scale, positive=positive, row_bounds=bounds
    )


def _is_row_bound(node: ast.stmt, scaled: _Scaled) -> bool:
    """Whether a statement's value is at least the largest of a row's scores, once multiplied."""

    def largest(value: ast.expr) -> bool:
        if device_call(value, scaled.tl) == "maximum" and isinstance(value, ast.Call):
            return any(map(largest, value.args))
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
            return False
        row, factor = value.left, ast.unparse(value.right)
        of_scores = isinstance(row, ast.Call) and ast.unparse(row.args[0]) == scaled.name
        return of_scores and device_call(row, scaled.tl) == "max" and factor == ast.unparse(scaled.factor)

    return isinstance(node, ast.Assign) and largest(node.value)


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
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = [_in_host(n, kernel, bound) for n in (node.left, node.right)]
        return None if None in sides else f"({' * '.join(map(str, sides))})"
    return None
