"""Which expressions of a kernel are masks: made of comparisons, an element each."""

from __future__ import annotations

import ast
from collections.abc import Collection

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def is_mask(node: ast.expr, masks: Collection[str]) -> bool:
    """Whether an expression is made of comparisons of numbers, and of names of such."""
    if isinstance(node, ast.BoolOp):
        return all(is_mask(value, masks) for value in node.values)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitAnd | ast.BitOr) and all(
            is_mask(part, masks) for part in (node.left, node.right)
        )
    if isinstance(node, ast.Subscript):
        return is_mask(node.value, masks)
    if isinstance(node, ast.Compare):
        numbers = all(
            not isinstance(part, ast.Constant | ast.JoinedStr)
            or (isinstance(part, ast.Constant) and isinstance(part.value, int | float))
            for part in node.comparators
        )
        return numbers and all(isinstance(op, _ORDERS) for op in node.ops)
    return isinstance(node, ast.Name) and node.id in masks


def masks_of(node: ast.FunctionDef) -> set[str]:
    """Names that are assigned nothing but masks."""
    said = [n for n in ast.walk(node) if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)]
    found: set[str] = set()
    for _ in range(2):  # masks made of masks
        by_name: dict[str, bool] = {}
        for one in said:
            assert isinstance(one.targets[0], ast.Name)
            name = one.targets[0].id
            by_name[name] = by_name.get(name, True) and is_mask(one.value, found)
        found = {name for name, mask in by_name.items() if mask}
    return found
