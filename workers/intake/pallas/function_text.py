"""The text of a Pallas function in the dialect, with the functions and constants that it uses."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import math
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.fitness.dialect_names import ALL_BUILTINS, BUILTINS
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.source.names import closure_of, located, object_of, plain_function
from tilewright.workers.intake.source.traced_numbers import number_text

MODULES = {
    "jax": "jax", "jax.numpy": "jnp", "jax.lax": "jax.lax", "jax.nn": "jax.nn", "jax.experimental.pallas": "pl",
    "jax.experimental.pallas.tpu": "pltpu", "functools": "functools", "math": "math",
    "jax.tree": "jax.tree", "jax.tree_util": "jax.tree_util",
}  # fmt: skip
RESERVED = ALL_BUILTINS | frozenset(("jax", "jnp", "pl", "pltpu", "functools", "math", "build", "params"))
_DROPPED_OPTIONS = frozenset(
    ("debug", "interpret", "cost_estimate", "metadata", "name", "input_output_aliases", "backend")
)
"""Options of a launch that only watch or place it. Operands that are reused as results are among them: where the kernel
writes all of a result the answer is the same, and where it does not the comparison with the reference says so."""
_COMPILER_OPTIONS = frozenset(
    ("dimension_semantics", "allow_input_fusion", "vmem_limit_bytes", "fuse_transposed_lhs_in_matmul")
)
_RENAMED = {"TPUCompilerParams": "CompilerParams", "TPUMemorySpace": "MemorySpace"}
"""Names of older versions of JAX."""


@dataclass
class FunctionText:
    """The module being made. ``sites``: the parameter that replaces a number, by file, line and column."""

    sites: Mapping[tuple[str, int, int], str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def add(self, function: Any) -> str:
        """Add a function and what it uses; its name. Raises Refusal, OSError, SyntaxError."""
        fn = plain_function(function)
        if id(fn) in self._names:
            return self._names[id(fn)]
        name = self._free(fn.__name__.replace("<lambda>", "expression"))
        self._names[id(fn)] = name
        node = _named_lambda(_statement_of(fn), name)
        if not isinstance(node, ast.FunctionDef):
            raise Refusal(f"{fn.__name__} is no plain function", fn.__code__.co_firstlineno)
        transform = _Transform(self, fn.__globals__, closure_of(fn), node, inspect.getsourcefile(fn) or "")
        _named_defaults(node, transform.site)
        made = transform.visit(node)
        made.name = name
        made.decorator_list = []
        self.functions[name] = ast.unparse(ast.fix_missing_locations(made))
        return name

    @property
    def functions_named(self) -> frozenset[str]:
        """Names of functions that were taken."""
        return frozenset(self._names.values())

    def _free(self, wanted: str) -> str:
        name = wanted.strip("_") or "f"
        while name in {*RESERVED, *self._names.values(), *self.constants}:
            name += "_f"
        return name

    def size_of(self, file: str, name: str) -> str:
        """The parameter that a constant of a file stands for; empty where there is none."""
        for (path, line, column), parameter in self.sites.items():
            before = linecache.getline(file, line).encode()[:column].decode() if path == file else ""
            if re.match(rf"{name}\b[^=]*=\s*$", before):
                return parameter
        return ""

    def constant(self, name: str, text: str) -> str:
        new = name.strip("_") or "c"
        while new in RESERVED or new in self._names.values() or self.constants.get(new, text) != text:
            new += "_c"
        self.constants[new] = text
        return new


def _statement_of(fn: types.FunctionType) -> ast.stmt:
    """The statement that defines a function, at its place in its file. Raises Refusal."""
    tree = ast.parse("".join(linecache.getlines(inspect.getsourcefile(fn) or "")))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Assign):
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if min([node.lineno, *(d.lineno for d in decorators)]) == fn.__code__.co_firstlineno:
                return node
    raise Refusal(f"{fn.__name__} has no text", fn.__code__.co_firstlineno)


def _named_lambda(statement: ast.stmt, name: str) -> ast.stmt:
    """``name = lambda x: ...`` as a function; any other statement as it is."""
    value = getattr(statement, "value", None)
    if not (isinstance(statement, ast.Assign) and isinstance(value, ast.Lambda)):
        return statement
    body: list[ast.stmt] = [ast.copy_location(ast.Return(value.body), value)]
    made = ast.parse(f"def {name}(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args, made.body = value.args, body
    return ast.fix_missing_locations(ast.copy_location(made, statement))


def _plain_grid(keyword: ast.keyword) -> list[ast.keyword]:
    """A grid specification without scalars to prefetch as the plain keywords it is made of, which rewrites follow."""
    value = keyword.value
    if keyword.arg != "grid_spec" or not isinstance(value, ast.Call) or value.args:
        return [keyword]
    name = ast.unparse(value.func).rpartition(".")[2]
    first = next((k.value for k in value.keywords if k.arg == "num_scalar_prefetch"), None)
    none = first is None or (isinstance(first, ast.Constant) and first.value == 0)
    if name not in ("GridSpec", "PrefetchScalarGridSpec") or not none:
        return [keyword]
    return [k for k in value.keywords if k.arg != "num_scalar_prefetch"]


def _plain_tuple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_plain_tuple, value))
    return isinstance(value, bool | int | float | str)


def _named_defaults(node: ast.FunctionDef, site: Callable[[ast.expr], str]) -> None:
    """A default that is a function (``activation=lambda x: x``) or a size becomes None, and the body says it."""
    for arguments, defaults in (
        (node.args.args[len(node.args.args) - len(node.args.defaults) :], node.args.defaults),
        (node.args.kwonlyargs, node.args.kw_defaults),
    ):
        for place, (argument, default) in enumerate(zip(arguments, list(defaults), strict=True)):
            if default is not None and (isinstance(default, ast.Lambda) or site(default)):
                name = argument.arg
                text = f"if {name} is None:\n    {name} = {site(default) or ast.unparse(default)}"
                statement = ast.copy_location(ast.parse(text).body[0], default)
                defaults[place] = ast.copy_location(ast.Constant(None), default)
                node.body.insert(0, statement)
    ast.fix_missing_locations(node)


class _Transform(ast.NodeTransformer):
    """Rewrites one function."""

    def __init__(
        self, module: FunctionText, known: Mapping[str, Any], closure: Mapping[str, Any], node: ast.FunctionDef,
        file: str,
    ) -> None:  # fmt: skip
        self._module, self._known, self._closure, self._file = module, known, closure, file
        bound = [n.arg for n in ast.walk(node) if isinstance(n, ast.arg)]
        bound += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        bound += [n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node]
        self._local = set(bound)
        arguments = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        self._mapping: dict[str, str] = {}
        for name in bound:
            new = name
            if name == "_" and any(isinstance(n, ast.FunctionDef) and n.name == "_" for n in ast.walk(node)):
                new = "step"
            elif name.startswith("_") and name != "_":
                new = name.strip("_") or "u"
            if new in RESERVED or (new in module.functions_named and name not in arguments):
                new += "_"
            while new != name and (new in self._local or new in self._mapping.values()):
                new += "_"
            self._mapping.setdefault(name, new)

    def _object(self, node: ast.expr) -> tuple[bool, Any]:
        return object_of(node, self._local, (self._closure, self._known))

    def site(self, node: ast.expr) -> str:
        """The text of the parameter that replaces a number; empty for any other expression."""
        name = self._module.sites.get((self._file, node.lineno, node.col_offset))
        return f'params["{name}"]' if name and isinstance(node, ast.Constant) else ""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return located(self.site(node), node) if self.site(node) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._local:
            return ast.copy_location(ast.Name(self._mapping.get(node.id, node.id), node.ctx), node)
        found, value = self._object(node)
        return self._value(node, value, node.id) if found else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = _RENAMED.get(node.attr, node.attr)
        found, value = self._object(node)
        if found and not isinstance(value, types.ModuleType):
            return self._value(node, value, node.attr)
        if found and value.__name__ in MODULES:
            return located(MODULES[value.__name__], node)
        node.value = self.visit(node.value)
        return node

    def _value(self, node: ast.expr, value: Any, name: str) -> ast.AST:
        text = self._text(value, name, node.lineno)
        return node if text is None else located(text, node)

    def _text(self, value: Any, name: str, line: int = 0) -> str | None:
        if isinstance(value, types.ModuleType):
            found = MODULES.get(value.__name__)
            return "jnp" if found is None and value is np else found
        if name in BUILTINS and getattr(builtins, name, self) is value:
            return name
        for module, alias in ((pltpu, "pltpu"), (pl, "pl"), (jnp, "jnp"), (jax.lax, "jax.lax"), (jax.nn, "jax.nn"),
                              (math, "math"), (functools, "functools"), (jax, "jax")):  # fmt: skip
            if getattr(module, name, None) is value and not isinstance(value, bool | int | float | str):
                return f"{alias}.{name}"
        if value is np.prod:
            return "math.prod"
        if isinstance(value, type) and issubclass(value, np.generic) and hasattr(jnp, value.__name__):
            return f"jnp.{value.__name__}"
        if type(value) is int and (size := self._module.size_of(self._file, name)):
            return f'params["{size}"]'
        if value is None:
            return "None"
        if isinstance(value, bool | int | float | str):
            text = number_text(value)
            return text if text.startswith("float") else self._module.constant(name, text)
        if isinstance(value, tuple) and _plain_tuple(value):
            return self._module.constant(name, repr(value))
        if isinstance(value, np.generic):
            return self._module.constant(name, repr(value.item()))
        plain = plain_function(value)
        if isinstance(plain, types.FunctionType):
            home = str(plain.__module__)
            library = home.startswith(("jax.", "jaxlib.", "numpy.")) and ".pallas.ops." not in home
            if library or home.partition(".")[0] in sys.stdlib_module_names:
                return None  # the library's own: the dialect knows it or does not
            return self._module.add(plain)
        return None

    # -- statements ------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
                         *filter(None, [arguments.vararg, arguments.kwarg])):  # fmt: skip
            argument.annotation = None
            argument.arg = self._mapping.get(argument.arg, argument.arg)
        arguments.defaults = [self.visit(d) for d in arguments.defaults]
        arguments.kw_defaults = [d if d is None else self.visit(d) for d in arguments.kw_defaults]
        node.returns = None
        node.decorator_list = [
            self.visit(d)
            for d in node.decorator_list
            if not re.search(r"jit|named_scope|named_call", ast.unparse(d))
        ]
        if node.name in self._mapping:
            node.name = self._mapping[node.name]
        if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            node.body = node.body[1:]
        node.body = self._block(node.body) or [ast.Pass()]
        return node

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            result = self.visit(statement)
            made += result if isinstance(result, list) else [] if result is None else [result]
        return made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([self.visit(node.target)], self.visit(node.value)), node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        error = ast.parse('ValueError("refused by the function")', mode="eval").body
        return ast.copy_location(ast.Raise(error, None), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.copy_location(ast.Assert(self.visit(node.test), None), node)

    def visit_With(self, node: ast.With) -> Any:
        if all(
            "named_scope" in ast.unparse(i.context_expr) or "annotate" in ast.unparse(i.context_expr)
            for i in node.items
        ):
            return self._block(node.body)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        node.test = self.visit(node.test)
        node.body = self._block(node.body) or [ast.copy_location(ast.Pass(), node)]
        node.orelse = self._block(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        node.target, node.iter = self.visit(node.target), self.visit(node.iter)
        node.body = self._block(node.body) or [ast.copy_location(ast.Pass(), node)]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        if isinstance(node.value, ast.Call) and re.match(
            r"(jax\.debug|pl\.debug|print|logging|logger)", ast.unparse(node.value.func)
        ):
            return None
        stored = re.fullmatch(r"(pl|pallas)\.store", ast.unparse(getattr(node.value, "func", node.value)))
        call = node.value
        if stored and isinstance(call, ast.Call) and len(call.args) == 3 and not call.keywords:
            ref, index, value = call.args
            made = ast.copy_location(ast.Assign([ast.Subscript(ref, index, ast.Store())], value), node)
            return self.visit(ast.fix_missing_locations(made))
        node.value = self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = ast.unparse(node.func)
        if called.endswith("pallas_call"):
            node.keywords = [k for k in node.keywords if k.arg not in _DROPPED_OPTIONS]
            node.keywords = [part for k in node.keywords for part in _plain_grid(k)]
        if called.endswith("CompilerParams"):
            node.keywords = [k for k in node.keywords if k.arg in _COMPILER_OPTIONS]
        loaded = re.fullmatch(r"(pl|plgpu|pltpu|pallas)\.load", called)
        if loaded and len(node.args) == 2 and not node.keywords:
            return self.visit(ast.copy_location(ast.Subscript(node.args[0], node.args[1], ast.Load()), node))
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg is not None and isinstance(node.func, ast.Name | ast.Attribute):
                keyword.arg = keyword.arg.lstrip("_") or keyword.arg
        return node
