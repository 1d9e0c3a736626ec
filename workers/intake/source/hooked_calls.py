"""Calls in a user's file that would forget where a number comes from, as ones that note it."""

import ast
import builtins
import math
from typing import Any

from tilewright.workers.intake.source import traced_numbers

HOOK = "tilewright_hook_"
_HOOKED = ("min", "max", "int", "float", "abs", "round", "range")


class CallHooks(ast.NodeTransformer):
    """Puts the hooks into wrappers. A kernel stays: its text is read again by its compiler."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not any("jit" in ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list):
            node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """A float on the left is asked before a traced whole number on its right, and would forget it."""
        self.generic_visit(node)
        if isinstance(node.left, ast.Constant) and type(node.left.value) is float:
            called = ast.Call(ast.Name(f"{HOOK}real", ast.Load()), [node.left], [])
            node.left = ast.copy_location(called, node.left)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Name) and function.id in _HOOKED:
            node.func = ast.copy_location(ast.Name(HOOK + function.id, ast.Load()), function)
        elif ast.unparse(function).startswith("math.") and isinstance(function, ast.Attribute):
            given: list[ast.expr] = [ast.Constant(function.attr)]
            node.func = ast.copy_location(ast.Call(ast.Name(f"{HOOK}math", ast.Load()), given, []), function)
        return node


def _whole(value: Any) -> Any:
    return value if isinstance(value, traced_numbers.TracedInt) else int(traced_numbers.plain(value))


def _real(value: Any = 0.0) -> Any:
    if isinstance(value, traced_numbers.TracedInt | traced_numbers.TracedFloat):
        return traced_numbers.traced(float(traced_numbers.plain(value)), f"float({value.code})", value.atoms)
    return float(value)


_TRACED = {name: traced_numbers.call(name, getattr(builtins, name)) for name in ("min", "max", "abs", "round")}
_MATHS = {
    name: traced_numbers.call(f"math.{name}", getattr(math, name)) for name in ("ceil", "floor", "sqrt", "log2", "log")
}

HOOKS = {
    **{HOOK + name: function for name, function in _TRACED.items()},
    f"{HOOK}int": lambda *a, **k: _whole(a[0]) if len(a) == 1 and not k else int(*a, **k),
    f"{HOOK}float": _real,
    f"{HOOK}range": lambda *bounds: range(*map(traced_numbers.settled, bounds)),
    f"{HOOK}real": lambda value: traced_numbers.traced(value, traced_numbers.number_text(value), frozenset()),
    f"{HOOK}math": lambda name: _MATHS.get(name) or getattr(math, name),
}
"""What a file's module has beside its own names."""
