"""Block sizes that stand below the function that is called: literals, defaults and constants of what launches kernels.

A public function often only prepares its arguments: sizes of blocks stand in what it calls. And a parameter that is
not given (``block_q=None``, ``block="auto"``) may be worked out from the shapes. Both are found here; whether they only
tile is for the evidence to say.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tilewright.workers.intake.source.knobs import is_size
from tilewright.workers.intake.source.names import located, object_of, plain_function

Size = Callable[[str, int, int], str]
"""Gives the text that replaces a block size, of its name, its value and its line."""

_BLOCK = re.compile(
    r"block|blk|tile|chunk|page|(^|_)b[a-z]{0,2}\d?$|(^|_)t[mnkbsqd]$|rows_per|per_(block|step)", re.I
)
"""Names of block sizes: BLOCK_M, blk_q, tile_rows, bm, bkv, tm, rows_per_step."""
_LAUNCHES = frozenset(("pallas_call", "emit_pipeline", "core_map"))
AUTOMATIC = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Values of a size that a function chooses itself, of which one may be the one it chose."""


def names_block(name: str) -> bool:
    """Whether a name is one that block sizes have."""
    return _BLOCK.search(name.strip("_")) is not None


def launches(function: Any, seen: set[int] | None = None) -> bool:
    """Whether a function, or what it calls by name, launches a kernel."""
    seen = set() if seen is None else seen
    fn = plain_function(function)
    if not isinstance(fn, types.FunctionType) or id(fn) in seen or _library(str(fn.__module__)):
        return False
    seen.add(id(fn))
    names = set(_names(fn.__code__))
    if names & _LAUNCHES:
        return True
    cells = {
        n: c.cell_contents
        for n, c in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        if _held(c)
    }
    known = {**fn.__globals__, **cells}
    return any(launches(known[name], seen) for name in names if name in known)


def _library(module: str) -> bool:
    """Whether a module is JAX's own, but for the kernels that it comes with."""
    return module.partition(".")[0] in ("jax", "jaxlib", "numpy") and ".pallas.ops." not in module


def _held(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # an empty cell
        return False


def _names(code: types.CodeType) -> set[str]:
    found = {*code.co_names, *code.co_freevars}
    return found.union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def lift(
    node: ast.FunctionDef,
    scope: Mapping[str, Any],
    closure: Mapping[str, Any],
    size: Size,
    own: Collection[str] = (),
) -> None:
    """Put parameters in the place of block sizes in the text of a function that launches kernels, in place.

    ``scope``, ``closure``: what its names stand for; ``own``: names that are parameters already.
    """
    _Lift(node, scope, closure, size, own).visit(node)
    ast.fix_missing_locations(node)


class _Lift(ast.NodeTransformer):
    def __init__(
        self,
        node: ast.FunctionDef,
        scope: Mapping[str, Any],
        closure: Mapping[str, Any],
        size: Size,
        own: Collection[str],
    ) -> None:
        self._entry, self._scopes, self._size, self._own = node, (closure, scope), size, own
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        self._bound = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        self._bound |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        self._bound |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node is self._entry:
            node.body = [self.visit(statement) for statement in node.body]
        return node  # of a function within: a kernel's own constants are no blocks

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and is_size(value.value):
            if names_block(target.id) and target.id not in self._own:
                node.value = self._knob(target.id, value.value, value)
            return node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        known, called = object_of(node.func, self._bound, self._scopes)
        fn = plain_function(called) if known else None
        if isinstance(fn, types.FunctionType) and launches(fn):
            self._call(node, fn)
        return self.generic_visit(node)

    def _call(self, node: ast.Call, fn: types.FunctionType) -> None:
        """Literal block sizes among a call's arguments, and defaults that it does not override."""
        code = fn.__code__
        positional = code.co_varnames[: code.co_argcount]
        for place, (name, argument) in enumerate(zip(positional, node.args, strict=False)):
            node.args[place] = self._literal(name, argument)
        for keyword in node.keywords:
            keyword.value = self._literal(keyword.arg or "", keyword.value)
        if any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            return
        given = {*positional[: len(node.args)], *(k.arg for k in node.keywords)}
        defaults = dict(zip(positional[::-1], (fn.__defaults__ or ())[::-1], strict=False))
        defaults.update(fn.__kwdefaults__ or {})
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            default = defaults.get(name)
            if name not in given and is_size(default) and names_block(name):
                node.keywords.append(ast.keyword(name, self._knob(name, default, node)))

    def _literal(self, name: str, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Constant) and is_size(node.value) and names_block(name):
            return self._knob(name, node.value, node)
        return node

    def _knob(self, name: str, value: int, node: ast.AST) -> ast.expr:
        return located(self._size(name, value, getattr(node, "lineno", 0)), node)
