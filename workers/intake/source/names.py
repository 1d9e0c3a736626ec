"""Names in a user's function: the objects that they stand for, and their places in its file."""

import ast
import functools
import keyword
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def object_of(node: ast.expr, local: Collection[str], scopes: Sequence[Mapping[str, Any]]) -> tuple[bool, Any]:
    """Whether a global name, or a chain of attributes of a module, stands for an object, and the object.

    ``local``: names that the function binds itself; ``scopes``: closure and globals, nearest first.
    """
    if isinstance(node, ast.Name) and node.id not in local:
        for scope in scopes:
            if node.id in scope:
                return True, scope[node.id]
    if isinstance(node, ast.Attribute):
        found, value = object_of(node.value, local, scopes)
        if found and isinstance(value, types.ModuleType) and hasattr(value, node.attr):
            return True, getattr(value, node.attr)
    return False, None


def plain_function(function: Any) -> Any:
    """What a function is below decorators and given arguments."""
    seen = function
    while True:
        if isinstance(seen, functools.partial):
            seen = seen.func
        elif hasattr(seen, "__wrapped__"):
            seen = seen.__wrapped__
        else:
            return seen


def public(name: str, otherwise: str) -> str:
    """A name without the underscores before it, which the dialect forbids; a name still where that is none."""
    plain = name.lstrip("_") or otherwise
    return plain if plain.isidentifier() and not keyword.iskeyword(plain) else f"{otherwise}_{plain}"


def placed_expression(made: str | ast.expr, node: ast.AST) -> ast.expr:
    """An expression, or its text, at the place of a node."""
    made = ast.parse(made, mode="eval").body if isinstance(made, str) else made
    for part in ast.walk(made):
        ast.copy_location(part, node)
    return made


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """The names that a function has from those around it, with their values."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def line_map(made: ast.AST, text: str) -> dict[int, int]:
    """The lines of a text to those of the syntax that it was written from."""
    found: dict[int, int] = {}
    for new, old in zip(ast.walk(ast.parse(text)), [None, *ast.walk(made)], strict=False):
        if old is not None and hasattr(new, "lineno") and hasattr(old, "lineno"):
            found.setdefault(new.lineno, old.lineno)
    return found
