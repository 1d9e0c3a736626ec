"""A function's syntax cut down to what one call of it did: branches not taken, block sizes, unpacked names."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.workers.intake.pallas.block_sizes import Size
from tilewright.workers.intake.pallas.observation import UNKNOWN, Observed, opaque
from tilewright.workers.intake.pallas.records import Records, records_of
from tilewright.workers.intake.source.knobs import is_size
from tilewright.workers.intake.source.names import located, object_of, plain_function


def cut(
    node: ast.FunctionDef, file: str, scope: Mapping[str, Any], observed: Observed, size: Size, first: int
) -> ast.FunctionDef:
    """The function without what did not run. ``scope``: its global names; ``first``: the line of its code."""
    made = _Cut(file, scope, observed, size, {}, first).visit(node)
    assert isinstance(made, ast.FunctionDef)
    return made


class _Cut(ast.NodeTransformer):
    def __init__(
        self, file: str, scope: Mapping[str, Any], observed: Observed, size: Size, outer: Mapping[str, Any], first: int,
        samples: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._file, self._scope, self._observed, self._size = file, scope, observed, size
        self._outer, self._first = dict(outer), first
        self._known: dict[str, Any] = dict(outer)
        self._held: dict[str, Any] = {}
        self._node: ast.FunctionDef | None = None
        self._kinds = records_of(observed)
        self._records = Records(self._kinds, samples or {}, scope, observed)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if self._node is not None:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            samples = self._records.samples
            inner = _Cut(self._file, self._scope, self._observed, self._size, self._known, first, samples)
            return inner.visit(node)
        self._node = node
        key = (self._file, self._first)
        samples = {**self._records.samples, **self._observed.samples.get(key, {})}
        self._records = Records(self._kinds, samples, self._scope, self._observed)
        rebound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        given = self._observed.given.get(key, {})
        self._held = {**self._outer, **given, **self._observed.held.get(key, {})}
        self._known = {k: v for k, v in self._outer.items() if k not in rebound}
        self._known.update({k: v for k, v in given.items() if k not in rebound})
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if argument.arg not in given:
                self._known.pop(argument.arg, None)
        node.args.defaults = [self._default(d) for d in node.args.defaults]
        node.args.kw_defaults = [d if d is None else self._default(d) for d in node.args.kw_defaults]
        if self._observed.ran(self._file, node.body[0].lineno, node.end_lineno or node.lineno):
            node.body = self._block(node.body) or [ast.copy_location(ast.Pass(), node)]
        self._records.made_by(node)
        return node

    def _opaque(self, value: Any) -> bool:
        """Whether it is an object of plain constants, each of which is said where it is asked for."""
        return opaque(value) and type(value) not in self._kinds

    def _default(self, node: ast.expr) -> ast.expr:
        """A default as a constant, where its value is one."""
        if isinstance(node, ast.Constant):
            return node
        try:
            value = eval(compile(ast.Expression(node), "default", "eval"), dict(self._scope))
        except Exception:  # noqa: BLE001 - left as it is
            return node
        if value is None or isinstance(value, bool | int | float | str):
            return ast.copy_location(ast.parse(repr(value), mode="eval").body, node)
        return node

    # -- statements ------------------------------------------------------------------------------

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            result = self.visit(statement)
            made += result if isinstance(result, list) else [] if result is None else [result]
            if made and isinstance(made[-1], ast.Return):
                break
        return made

    def visit_If(self, node: ast.If) -> Any:
        if not self._observed.ran(self._file, node.lineno, node.end_lineno or node.lineno):
            return None
        taken = self._ran(node.body)
        other = self._ran(node.orelse) if node.orelse else not taken or self._passed(node)
        if taken and not other:
            return self._block(node.body)
        if other and not taken:
            return self._block(node.orelse)
        node.test = self.visit(node.test)
        node.body = self._block(node.body) or [ast.copy_location(ast.Pass(), node)]
        node.orelse = self._block(node.orelse)
        return node

    def _passed(self, node: ast.If) -> bool:
        """Whether what stands below a test was at times passed over."""
        lines = self._observed.lines[self._file]
        return lines[node.body[0].lineno] < lines[node.lineno]

    def _ran(self, body: Sequence[ast.stmt]) -> bool:
        return bool(body) and self._observed.ran(self._file, body[0].lineno, body[-1].end_lineno or 0)

    def visit_For(self, node: ast.For) -> ast.AST:
        node.iter = self.visit(node.iter)
        node.body = self._block(node.body) or [ast.copy_location(ast.Pass(), node)]
        return node

    def visit_Try(self, node: ast.Try) -> Any:
        return self._block([*node.body, *node.orelse, *node.finalbody])

    def visit_Delete(self, node: ast.Delete) -> None:
        return None

    def visit_Assert(self, node: ast.Assert) -> None:
        return None

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        if isinstance(target, ast.Name) and self._opaque(self._held.get(target.id)):
            node.value = ast.copy_location(ast.Constant(None), node.value)
            return node
        if isinstance(target, ast.Name) and self._asks_device(node.value):
            held = self._held.get(target.id, UNKNOWN)
            if held is None or isinstance(held, bool | int | float | str):
                node.value = ast.copy_location(ast.Constant(held), node.value)
                return node
        node.value = self.visit(node.value)
        node.targets = [self.visit(one) for one in node.targets]
        return node

    def _asks_device(self, value: ast.expr) -> bool:
        """Whether a value is made with a class of the user's or asked of the device, which a module cannot say."""
        known = [self._scope.get(n.id) for n in ast.walk(value) if isinstance(n, ast.Name)]
        classes = any(
            isinstance(kind, type) and kind not in self._kinds
            and not kind.__module__.startswith(("builtins", "jax", "numpy"))
            for kind in known
        )  # fmt: skip
        return classes or "get_tpu_info" in ast.unparse(value)

    # -- expressions -----------------------------------------------------------------------------

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        decided = self._decided(node.test)
        if decided is not None:
            return self.visit(node.body if decided else node.orelse)
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        decided = self._decided(node)
        if decided is not None:
            return ast.copy_location(ast.Constant(decided), node)
        return self.generic_visit(node)

    def _decided(self, test: ast.expr) -> bool | None:
        """A test whose names are all known and no numbers."""
        names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        scope: dict[str, Any] = {}
        for name in names:
            value = self._known.get(name, UNKNOWN)
            if value is UNKNOWN and name in self._scope and name not in self._held:
                value = self._scope[name]
            sized = type(value) in (int, float) or isinstance(value, tuple | list | dict)
            if name not in ("isinstance", "callable", "bool") and (value is UNKNOWN or sized):
                return None
            if value is not UNKNOWN:
                scope[name] = value
        try:
            found = eval(compile(ast.fix_missing_locations(ast.Expression(test)), "test", "eval"), scope)
        except Exception:  # noqa: BLE001 - then it is decided elsewhere
            return None
        return found if isinstance(found, bool) else None

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        field = self._records.attribute(node)
        if field is not None:
            return self.generic_visit(located(field, node))
        if isinstance(node.value, ast.Name):
            owner = self._known.get(node.value.id, self._held.get(node.value.id, UNKNOWN))
            if self._opaque(owner) and hasattr(owner, node.attr):
                value = getattr(owner, node.attr)
                if is_size(value) and not type(owner).__module__.startswith("jax"):
                    text = self._size(node.attr, value, node.lineno)
                    self._observed.owners.setdefault(node.attr, owner)
                    return located(text, node)
                if value is None or isinstance(value, bool | int | float | str):
                    return ast.copy_location(ast.Constant(value), node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and self._opaque(self._known.get(node.id)):
            return ast.copy_location(ast.Constant(None), node)
        return node

    def _frozen(self, node: ast.Call) -> str:
        """What a call returned, as text, of a function that is not taken in."""
        known, function = object_of(node.func, (), (self._scope,))
        code = getattr(plain_function(function), "__code__", None) if known else None
        key = (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
        return as_text(self._observed.returned[key]) if key in self._observed.frozen else ""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """An entry of a table of the module's that holds plain values, such as block sizes."""
        known, table = object_of(node.value, self._known, (self._scope,))
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not (known and isinstance(table, dict) and isinstance(key, str)):
            return self.generic_visit(node)
        value = table.get(key)
        if is_size(value):
            text = self._size(key, value, node.lineno)
        elif isinstance(value, list | tuple) and value and all(is_size(v) for v in value):
            sizes = [self._size(f"{key}_{n}", v, node.lineno) for n, v in enumerate(value)]
            text = f"({', '.join(sizes)},)"
        else:
            text = as_text(value)
        return located(text, node) if text else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if text := self._frozen(node):
            return located(text, node)
        plain = self._records.call(node)
        if plain is not None:
            return self.generic_visit(located(plain, node))
        keywords: list[ast.keyword] = []
        for keyword in node.keywords:
            named = keyword.value.id if isinstance(keyword.value, ast.Name) else ""
            if keyword.arg == "input_output_aliases" and self._held.get(named) == {}:
                continue
            known = self._known.get(keyword.value.id) if isinstance(keyword.value, ast.Name) else None
            if keyword.arg is None and isinstance(known, dict) and isinstance(keyword.value, ast.Name):
                for name in known:
                    text = f"{keyword.value.id}[{name!r}]"
                    keywords.append(ast.keyword(name, located(text, node)))
            else:
                keywords.append(keyword)
        node.keywords = keywords
        return self.generic_visit(node)


def as_text(value: Any) -> str:
    """A plain value as text of the dialect; empty for any other."""
    if isinstance(value, tuple | list):
        parts = [as_text(part) for part in value]
        return f"({', '.join(parts)},)" if parts and all(parts) else ""
    if isinstance(value, np.dtype):
        return f"jnp.{value.name}"
    plain = (
        value is None
        or isinstance(value, bool | int | str)
        or (isinstance(value, float) and math.isfinite(value))
    )
    return repr(value) if plain else ""
