"""A kernel without the branches that its launches rule out: ``if bias_ptr is not None`` where it is given None.

What stands there is never compiled, so it may name what is not defined, or what no candidate may use.
"""

import ast
import re
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import triton.language as tl

from tilewright.workers.intake.source.traced_numbers import Traced, plain

_PLAIN = (bool, int, float, str, type(None))


class NotNone:
    """Stands for an argument of which only this is known: it is not None. What asks for more is not decided."""

    __hash__ = None  # type: ignore[assignment]

    def _unknown(self, *_: object) -> bool:
        raise TypeError("a tensor's values are not known")

    __bool__ = __eq__ = __ne__ = _unknown


NOT_NONE = NotNone()


def constants_of(launches: Sequence[Mapping[str, Any]], selecting: Collection[str] = ()) -> dict[str, Any]:
    """Parameters that every launch gives the same constant, by name: plain values, or NOT_NONE for a tensor.

    A number may become a parameter of the search: it is no constant unless the caller gave it, or it is of those
    that are ``selecting`` a branch.
    """
    found: dict[str, Any] = {}
    for place, arguments in enumerate(launches):
        here = {
            name: _constant(value)
            for name, value in arguments.items()
            if _is_constant(value) and (type(value) is not int or value < 2 or name in selecting)
        }
        found = here if place == 0 else {n: v for n, v in found.items() if n in here and _same(v, here[n])}
    return found


def _is_constant(value: Any) -> bool:
    if isinstance(value, Traced):
        return value.atoms == {"given"}
    return isinstance(value, (torch.Tensor, tl.constexpr, *_PLAIN))


def _constant(value: Any) -> Any:
    value = plain(value.value if isinstance(value, tl.constexpr) else value)
    return value if isinstance(value, _PLAIN) else NOT_NONE


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and one == other)


def cut(node: ast.FunctionDef, known: Mapping[str, Any], scope: Mapping[str, Any]) -> ast.FunctionDef:
    """The function without branches that constants rule out. ``scope``: its global names."""
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    local = stored | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - local
    settled = {n: _constant(scope[n]) for n in names if n in scope and _is_constant(scope[n])}
    settled.update({n: scope[n] for n in names if isinstance(scope.get(n), types.ModuleType)})
    settled.update({n: v for n, v in known.items() if n not in stored})
    made = _Cut(settled).visit(node)
    assert isinstance(made, ast.FunctionDef)
    return made


class _Cut(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.While | ast.With) and not node.body:
            node.body = [ast.copy_location(ast.Pass(), node)]
        return node

    def visit_If(self, node: ast.If) -> Any:
        decided = self._truth(node.test)
        if decided is None:
            return self.generic_visit(node)
        made: list[ast.stmt] = []
        for statement in node.body if decided else node.orelse:
            result = self.visit(statement)
            made += result if isinstance(result, list) else [result]
        return made

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        decided = self._truth(node.test)
        if decided is None:
            return self.generic_visit(node)
        return self.visit(node.body if decided else node.orelse)

    def _truth(self, node: ast.expr) -> bool | None:
        """What a test comes to, where constants alone decide it."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._truth(node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(value) for value in node.values]
            decisive = isinstance(node.op, ast.Or)
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        text = re.sub(r"\b(\w+)\.value\b", r"\1", ast.unparse(node))  # of a constexpr
        if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func).endswith("constexpr"):
            return self._truth(node.args[0])
        try:
            decided = eval(text, {"__builtins__": {}}, self._known)
            return bool(decided) if isinstance(decided, _PLAIN) else None
        except Exception:  # noqa: BLE001 - a test of what is known only as it runs
            return None
