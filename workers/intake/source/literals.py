"""A user's file with its literals made traceable: which numbers of it an expression was made of."""

from __future__ import annotations

import ast
import builtins
import math
import zlib
from dataclasses import dataclass, field
from typing import Any

from tilewright.workers.intake.source import traced_numbers

HOOK = "tilewright_hook_"
_HOOKED = ("min", "max", "int", "float", "abs", "round", "range")


@dataclass
class Literals:
    """The literals of wrappers by the name of their atom: value, file and line."""

    found: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Atom to the variable it was assigned to."""

    def traced(self, value: int, file: str, line: int, column: int, name: str) -> Any:
        atom = f"L{zlib.crc32(f'{file}:{line}:{column}'.encode())}_"
        self.found[atom] = (value, file, line)
        if name:
            self.names[atom] = name
        return traced_numbers.traced(value, atom, frozenset([atom]))


class LiteralTracer(ast.NodeTransformer):
    """Literals of wrappers become traced numbers; calls that would forget where a number comes from, ones that note."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._name = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if any("jit" in ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list):
            return node  # a kernel: its text is read again by its compiler
        node.body = [self.visit(statement) for statement in node.body]
        node.args = self.visit(node.args)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        before, self._name = self._name, target.id if isinstance(target, ast.Name) else ""
        node.value = self.visit(node.value)
        self._name = before
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is not int or not 2 <= node.value <= 1 << 20:
            return node
        where: list[ast.expr] = [
            ast.Constant(v) for v in (node.value, self._file, node.lineno, node.col_offset, self._name)
        ]
        return ast.copy_location(ast.Call(ast.Name(f"{HOOK}literal", ast.Load()), where, []), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Whole numbers alone are one literal (``65536 // 2``). A float on the left is asked before a traced whole
        number on its right, and would forget it."""
        whole = _folded(node)
        if whole is not None:
            return self.visit_Constant(ast.copy_location(ast.Constant(whole), node))
        self.generic_visit(node)
        if isinstance(node.left, ast.Constant) and type(node.left.value) is float:
            called = ast.Call(ast.Name(f"{HOOK}real", ast.Load()), [node.left], [])
            node.left = ast.copy_location(called, node.left)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Subscript):  # a launch: its grid's literals count
            node.func.slice = self.visit(node.func.slice)
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Name) and function.id in _HOOKED:
            node.func = ast.copy_location(ast.Name(HOOK + function.id, ast.Load()), function)
        elif (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "math"
            and hasattr(math, function.attr)
        ):
            name = ast.Constant(function.attr)
            node.func = ast.copy_location(ast.Call(ast.Name(f"{HOOK}math", ast.Load()), [name], []), function)
        return node


_FOLDED = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.LShift, ast.RShift, ast.Pow)


def _folded(node: ast.expr) -> int | None:
    """The value of an expression of whole numbers alone; None of any other."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int and 0 <= node.value < 1 << 32 else None
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, _FOLDED):
        return None
    left, right = _folded(node.left), _folded(node.right)
    if left is None or right is None or (isinstance(node.op, ast.Pow | ast.LShift) and right > 64):
        return None
    try:
        value = eval(compile(ast.fix_missing_locations(ast.Expression(node)), "literal", "eval"))
    except ZeroDivisionError:
        return None
    return value if type(value) is int else None


def _whole(value: Any) -> Any:
    return value if isinstance(value, traced_numbers.TracedInt) else int(traced_numbers.plain(value))


def _real(value: Any = 0.0) -> Any:
    if isinstance(value, traced_numbers.TracedInt | traced_numbers.TracedFloat):
        return traced_numbers.traced(float(traced_numbers.plain(value)), f"float({value.code})", value.atoms)
    return float(value)


def hooks(literals: Literals) -> dict[str, Any]:
    made = {
        name: traced_numbers.call(name, getattr(builtins, name)) for name in ("min", "max", "abs", "round")
    }
    maths = {
        name: traced_numbers.call(f"math.{name}", getattr(math, name))
        for name in ("ceil", "floor", "sqrt", "log2", "log")
    }
    return {
        **{HOOK + name: function for name, function in made.items()},
        f"{HOOK}int": lambda *a, **k: _whole(a[0]) if len(a) == 1 and not k else int(*a, **k),
        f"{HOOK}float": _real,
        f"{HOOK}range": lambda *bounds: range(*map(traced_numbers.settled, bounds)),
        f"{HOOK}real": lambda value: traced_numbers.traced(
            value, traced_numbers.number_text(value), frozenset()
        ),
        f"{HOOK}math": lambda name: maths.get(name) or getattr(math, name),
        f"{HOOK}literal": literals.traced,
    }
