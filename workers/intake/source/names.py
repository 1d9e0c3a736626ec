"""What a name in somebody's function stands for, while the module it came from is loaded."""

from __future__ import annotations

import ast
import functools
import keyword
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def object_of(
    node: ast.expr, local: Collection[str], scopes: Sequence[Mapping[str, Any]]
) -> tuple[bool, Any]:
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
