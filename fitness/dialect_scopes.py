"""The scopes of a source, as Python's own compiler resolves them: which names it binds where, and which it leaves open.

A name counts as defined only where it can be seen. Read off the syntax tree alone, a parameter of one function would
define its name for the whole module, and what another function then finds under that name is a builtin.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Scopes:
    """Names with the line (1-based) that they are first found on, at or after the start of their scope.

    ``bound``: in any scope, in whatever way. ``free``: found in no scope around them. ``module``: those that the module
    itself binds. ``parameters``: of any function. ``imports``: (line, name) that an import binds.
    """

    bound: tuple[tuple[str, int], ...]
    free: tuple[tuple[str, int], ...]
    module: frozenset[str]
    parameters: frozenset[str]
    imports: frozenset[tuple[int, str]]


def read(source: str) -> Scopes:
    """Of a source that parses. Raises SyntaxError for what only the compiler's first pass finds."""
    top = symtable.symtable(source, "candidate", "exec")
    lines = _lines(ast.parse(source))
    bound: list[tuple[str, int]] = []
    free: list[tuple[str, int]] = []
    module = frozenset(symbol.get_name() for symbol in top.get_symbols() if _binds(symbol))
    parameters: set[str] = set()
    imports: set[tuple[int, str]] = set()
    for table in _tables(top):
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if name.startswith("."):  # a comprehension's own
                continue
            line = next((n for n in lines.get(name, ()) if n >= table.get_lineno()), table.get_lineno())
            if _binds(symbol):
                bound.append((name, line))
            if symbol.is_imported():
                imports.add((line, name))
            if symbol.is_parameter():
                parameters.add(name)
            unbound = symbol.is_global() or (table is top and not _binds(symbol))
            if symbol.is_referenced() and unbound and name not in module:
                free.append((name, line))
    return Scopes(tuple(bound), tuple(free), module, frozenset(parameters), frozenset(imports))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_parameter() or symbol.is_imported() or symbol.is_namespace()


def _lines(tree: ast.AST) -> dict[str, list[int]]:
    """Every name with the lines it is said on, in order."""
    found: dict[str, list[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            said = [node.id]
        elif isinstance(node, ast.arg):
            said = [node.arg]
        elif isinstance(node, ast.FunctionDef):
            said = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            said = [item.asname or item.name.split(".")[0] for item in node.names]
        else:
            continue
        for name in said:
            found.setdefault(name, []).append(node.lineno)
    return {name: sorted(lines) for name, lines in found.items()}
