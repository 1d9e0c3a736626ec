"""Functions taken in, said more plainly, so that rewrite rules can follow them: what is passed on under other names.

A dispatcher's ``*args`` and ``**kwargs`` become the names of what it calls, and a name that is only another name of a
parameter becomes that parameter. Where either cannot be told for sure, the text stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping


def plain(functions: Mapping[str, str]) -> dict[str, str]:
    """Name to text of every function, in the same order."""
    trees = {name: ast.parse(text) for name, text in functions.items()}
    defined = {name: tree.body[0] for name, tree in trees.items()}
    made = {}
    for name, text in functions.items():
        inside = [n for n in ast.walk(trees[name]) if isinstance(n, ast.FunctionDef)]
        changed = [_named(node, defined) | _without_copies(node) for node in inside]
        made[name] = ast.unparse(ast.fix_missing_locations(trees[name])) if any(changed) else text
    return made


def _named(node: ast.FunctionDef, functions: Mapping[str, ast.stmt]) -> bool:
    """Give ``*args`` and ``**kwargs`` of a function the names of what it calls with them; whether it was done."""
    rest, words = node.args.vararg, node.args.kwarg
    if rest is None or (words is None and node.args.kwonlyargs):
        return False
    own = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    bound = own | {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    uses = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == rest.arg]
    calls = [
        c
        for c in ast.walk(node)
        if isinstance(c, ast.Call) and any(isinstance(a, ast.Starred) and a.value in uses for a in c.args)
    ]
    if len(uses) != 1 or len(calls) != 1 or not isinstance(calls[0].args[-1], ast.Starred):
        return False
    called = functions.get(_target(node, calls[0]))
    if not isinstance(called, ast.FunctionDef) or called.args.vararg or called.args.defaults:
        return False
    names = [a.arg for a in (*called.args.posonlyargs, *called.args.args)][len(calls[0].args) - 1 :]
    keys = _keys(node, words.arg) if words is not None else []
    if keys is None or len({*names, *keys}) != len(names) + len(keys) or bound & {*names, *keys}:
        return False
    calls[0].args[-1:] = [ast.Name(n, ast.Load()) for n in names]
    if words is not None:
        _Keys(words.arg).visit(node)
    node.args.args += [ast.arg(n) for n in names]
    node.args.kwonlyargs += [ast.arg(n) for n in keys]
    node.args.kw_defaults += [None for _ in keys]
    node.args.vararg = node.args.kwarg = None
    return True


def _target(node: ast.FunctionDef, call: ast.Call) -> str:
    """The name of the function that a call calls, through one plain name of the caller."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    values = [
        s.value
        for s in ast.walk(node)
        if isinstance(s, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in s.targets)
    ]
    if not values:
        return name
    return values[0].id if len(values) == 1 and isinstance(values[0], ast.Name) else ""


def _keys(node: ast.FunctionDef, words: str) -> list[str] | None:
    """What is read of ``**words``, None where it is used in any way but ``words["key"]``."""
    found: list[str] = []
    uses = sum(isinstance(n, ast.Name) and n.id == words for n in ast.walk(node))
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id == words:
            uses -= 1
            key = part.slice.value if isinstance(part.slice, ast.Constant) else None
            if not isinstance(key, str) or not isinstance(part.ctx, ast.Load):
                return None
            if key not in found:
                found.append(key)
    return found if uses == 0 else None


class _Keys(ast.NodeTransformer):
    def __init__(self, words: str) -> None:
        self._words = words

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self._words:
            assert isinstance(node.slice, ast.Constant)
            return ast.Name(str(node.slice.value), ast.Load())
        return self.generic_visit(node)


def _without_copies(node: ast.FunctionDef) -> bool:
    """Put a parameter in the place of a name that is only another name of it; whether there was one."""
    own = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    inner = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.Lambda) and n is not node]
    if inner:
        return False
    copies = {
        s.targets[0].id: s
        for s in node.body
        if isinstance(s, ast.Assign)
        and len(s.targets) == 1
        and isinstance(s.targets[0], ast.Name)
        and isinstance(s.value, ast.Name)
        and s.value.id in own
        and s.value.id not in stored
        and stored.count(s.targets[0].id) == 1
        and s.targets[0].id not in own
    }
    for name, statement in copies.items():
        node.body.remove(statement)
        assert isinstance(statement.value, ast.Name)
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id == name:
                part.id = statement.value.id
    return bool(copies)
