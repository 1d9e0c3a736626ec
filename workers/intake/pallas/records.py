"""Objects of a user's own classes, in functions that are cut down to one call, said as dictionaries.

A candidate has no classes. An object that a wrapper makes to hold sizes, references or copies becomes a dictionary of
its attributes, and its methods become functions of it. An object that holds plain constants alone, such as block sizes,
is no such record: its attributes are known.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.workers.intake.pallas.observation import UNKNOWN, Observed, opaque, static
from tilewright.workers.intake.source.names import object_of


def records_of(observed: Observed) -> frozenset[type]:
    """Classes of observed objects that become dictionaries."""
    seen = [value for names in observed.samples.values() for value in names.values()]
    made = _constructed(observed)
    seen = [value for value in seen if value is not UNKNOWN]
    return frozenset(type(v) for v in seen if not _plain(v) or type(v) in made)


def _plain(value: Any) -> bool:
    """Whether an object holds nothing but what is known before any array is."""
    if dataclasses.is_dataclass(value):
        return opaque(value) and all(static(getattr(value, f.name, None)) for f in dataclasses.fields(value))
    return opaque(value)


def _constructed(observed: Observed) -> set[type]:
    """Classes that a line which ran makes an object of with anything but constants."""
    found: set[type] = set()
    homes = {getattr(m, "__file__", None): m for m in list(sys.modules.values())}
    for file, lines in observed.lines.items():
        with open(file, encoding="utf-8") as text:
            tree = ast.parse(text.read())
        scope = vars(homes[file]) if file in homes else {}
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.lineno in lines):
            known, kind = object_of(call.func, (), (scope,))
            given = [*call.args, *(k.value for k in call.keywords)]
            if known and isinstance(kind, type) and not all(isinstance(g, ast.Constant) for g in given):
                found.add(kind)
    return found


class Records:
    """Says attributes, calls and constructions of records. ``samples``: an object of each name's class. Methods are
    added to those of ``observed``."""

    def __init__(
        self, kinds: frozenset[type], samples: Mapping[str, Any], scope: Mapping[str, Any], observed: Observed
    ) -> None:
        self._kinds, self.samples, self._scope, self._observed = kinds, samples, scope, observed

    def sample(self, node: ast.expr) -> Any:
        """An object of the class that an expression's value is of; None where that is no record."""
        found: Any = None
        if isinstance(node, ast.Name):
            found = self.samples.get(node.id)
        elif isinstance(node, ast.Attribute):
            owner = self.sample(node.value)
            found = None if owner is None else getattr(owner, node.attr, None)
        return found if type(found) in self._kinds else None

    def attribute(self, node: ast.Attribute) -> ast.expr | None:
        """What stands for an attribute of a record; None of any other. Its parts are not visited."""
        owner = self.sample(node.value)
        if owner is None:
            return None
        held = getattr(type(owner), node.attr, None)
        getter = getattr(held, "fget", None) or getattr(held, "func", None)
        if getter is not None and isinstance(held, property | functools.cached_property):
            return ast.Call(self._function(type(owner), node.attr, getter), [node.value], [])
        return ast.Subscript(node.value, ast.Constant(node.attr), node.ctx)

    def call(self, node: ast.Call) -> ast.expr | None:
        """What stands for a method called, an object made, or a question for a class; None of any other call."""
        func = node.func
        if isinstance(func, ast.Attribute):
            owner = self.sample(func.value)
            held = None if owner is None else vars_of(type(owner)).get(func.attr)
            if isinstance(held, types.FunctionType):
                called = self._function(type(owner), func.attr, held)
                return ast.Call(called, [func.value, *node.args], node.keywords)
            if isinstance(held, staticmethod):
                return ast.Call(
                    self._function(type(owner), func.attr, held.__func__), node.args, node.keywords
                )
        if isinstance(func, ast.Name) and func.id == "isinstance" and len(node.args) == 2:
            return self._asked(*node.args)
        known, kind = object_of(func, (), (self._scope,))
        return self._made(kind, node) if known and isinstance(kind, type) and kind in self._kinds else None

    def _asked(self, value: ast.expr, kind: ast.expr) -> ast.expr | None:
        known, wanted = object_of(kind, (), (self._scope,))
        if not (known and self._observed.own(wanted) and isinstance(value, ast.Name | ast.Attribute)):
            return None
        owner = self.samples.get(value.id) if isinstance(value, ast.Name) else self.sample(value)
        return ast.Constant(isinstance(owner, wanted))

    def _made(self, kind: type, node: ast.Call) -> ast.expr | None:
        if any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            return None
        fields = _fields(kind)
        if fields is None:
            init = vars_of(kind).get("__init__")
            if not isinstance(init, types.FunctionType):
                return None
            return ast.Call(self._function(kind, "init", init), node.args, node.keywords)
        given: dict[str, ast.expr] = {
            n: ast.parse(repr(v), mode="eval").body for n, v in fields.items() if _said(v)
        }
        given.update(zip(fields, node.args, strict=False))
        given.update({str(k.arg): k.value for k in node.keywords})
        ordered = [name for name in fields if name in given]
        return ast.Dict([ast.Constant(name) for name in ordered], [given[name] for name in ordered])

    def _function(self, kind: type, name: str, function: Callable[..., Any]) -> ast.Name:
        said = f"{kind.__name__.strip('_')}_{name.strip('_')}"
        self._observed.methods[said] = function
        return ast.Name(said, ast.Load())

    def made_by(self, node: ast.FunctionDef) -> None:
        """``__init__`` of a record, in place: it returns the dictionary that it makes."""
        first = node.args.args[0].arg if node.args.args else ""
        if node.name != "__init__" or type(self.samples.get(first)) not in self._kinds:
            return
        del node.args.args[0]
        node.body = [
            *ast.parse(f"{first} = {{}}").body, *node.body, *ast.parse(f"return {first}").body,
        ]  # fmt: skip
        for part in (node.body[0], node.body[-1]):
            for inner in ast.walk(part):
                ast.copy_location(inner, node)


def vars_of(kind: type) -> dict[str, Any]:
    """Attributes of a class and of those it is derived from."""
    return {n: v for base in reversed(kind.__mro__[:-1]) for n, v in vars(base).items()}


_NOT_GIVEN = object()


def _fields(kind: type) -> dict[str, Any] | None:
    """Fields of a dataclass or a named tuple with their defaults; None of a class that makes its objects itself."""
    if dataclasses.is_dataclass(kind):
        made = {f.name: f for f in dataclasses.fields(kind) if f.init}
        return {n: _NOT_GIVEN if f.default is dataclasses.MISSING else f.default for n, f in made.items()}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        defaults: Mapping[str, Any] = getattr(kind, "_field_defaults", {})
        return {n: defaults.get(n, _NOT_GIVEN) for n in kind._fields}
    return None


def _said(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
