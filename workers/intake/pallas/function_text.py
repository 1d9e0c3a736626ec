"""The text of a Pallas function in the dialect, with the functions and constants that it uses."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import math
import re
import sys
import textwrap
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.fitness.dialect_names import ALL_BUILTINS, BUILTINS
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.pallas.block_sizes import launches, lift, names_block
from tilewright.workers.intake.pallas.cut import cut
from tilewright.workers.intake.pallas.observation import Observed
from tilewright.workers.intake.source.knobs import Knob, block_values, is_size
from tilewright.workers.intake.source.names import closure_of, line_map, located, object_of, plain_function
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
class Module:
    """The module being made."""

    constants: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    lines: dict[str, dict[int, int]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By name: file and first line of a function's code."""
    notes: list[str] = field(default_factory=list)
    knobs: dict[str, Knob] = field(default_factory=dict)
    observed: Observed | None = None
    """What one call did: functions are cut down to that."""
    knobs_below: list[Knob] = field(default_factory=list)
    """Block sizes that functions name themselves, which so stand within ``build``."""
    below: dict[str, int] = field(default_factory=dict)
    """Names and values of those."""
    reserved: frozenset[str] = frozenset()
    """Names of the parameters of the function that is called."""

    _names: dict[int, str] = field(default_factory=dict)

    def add(self, function: Any, entry: bool = False, wanted: str = "", avoid: Collection[str] = ()) -> str:
        """Add a function and what it uses, under the ``wanted`` name if that is free; its name.

        ``avoid``: local names of who calls it, of which ``limit = _limit()`` has one.
        """
        fn = plain_function(function)
        if id(fn) in self._names:
            return self._names[id(fn)]
        name = self._free(wanted or fn.__name__.replace("<lambda>", "expression"), avoid)
        self._names[id(fn)] = name
        lines, start = inspect.getsourcelines(fn)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, start - 1)
        node = _named_lambda(tree.body[0], name)
        if not isinstance(node, ast.FunctionDef):
            raise Refusal(f"{fn.__name__} is no plain function", start)
        closure = closure_of(fn)
        if self.observed is not None:
            file = inspect.getsourcefile(fn) or ""
            node = cut(node, file, fn.__globals__, self.observed, self._size, fn.__code__.co_firstlineno)
        elif entry:
            self._lift(node, fn)
        if launches(fn):
            own = {a.arg for a in node.args.kwonlyargs} if entry else ()
            lift(node, fn.__globals__, closure, self.lifted, own)
        _named_defaults(node)
        methods = self.observed.methods if self.observed is not None else {}
        made = _Transform(self, fn.__globals__, {**methods, **closure}, node).visit(node)
        made.name = name
        made.decorator_list = []
        ast.fix_missing_locations(made)
        self.functions[name] = ast.unparse(made)
        self.files[name] = inspect.getsourcefile(fn) or ""
        self.places[name] = (self.files[name], fn.__code__.co_firstlineno)
        self.lines[name] = line_map(made, self.functions[name])
        return name

    @property
    def functions_named(self) -> frozenset[str]:
        """Names of functions that were taken."""
        return frozenset(self._names.values())

    def _free(self, wanted: str, avoid: Collection[str] = ()) -> str:
        name = wanted.strip("_") or "f"
        while name in {*RESERVED, *self._names.values(), *self.constants, *avoid}:
            name += "_f"
        return name

    def _lift(self, node: ast.FunctionDef, fn: Any) -> None:
        """Literal sizes that the wrapper assigns become keyword parameters of it, with the literal as default."""
        lifted: list[tuple[str, int, int]] = []
        for place, statement in enumerate(node.body):
            if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
                continue
            value = statement.value
            if isinstance(value, ast.Constant) and isinstance(value.value, int) and is_size(value.value):
                lifted.append((statement.targets[0].id, value.value, statement.lineno))
                node.body[place] = ast.copy_location(ast.Pass(), statement)
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        bound = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        bound |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        globals_used = {n.id for n in names if isinstance(n.ctx, ast.Load)} - bound
        for name in sorted(globals_used):
            known = fn.__globals__.get(name)
            if is_size(known) and not names_block(name):  # a block's is one knob wherever it is named
                lifted.append((name, known, node.lineno))
        for name, size, line in lifted:
            node.args.kwonlyargs.append(ast.arg(name))
            node.args.kw_defaults.append(ast.Constant(size))
            self.knobs[name] = Knob(
                name.lower().strip("_"), size, block_values(size), f"literal at line {line}"
            )
        for part in (*node.args.kwonlyargs, *node.args.kw_defaults):
            if part is not None:
                ast.copy_location(part, node)
        ast.fix_missing_locations(node)

    def _size(self, name: str, value: int, line: int) -> str:
        """A block size of an object: a knob, by the name of its field."""
        plain = name.strip("_").lower()
        self.knobs.setdefault(name, Knob(plain, value, block_values(value), f"field {name} at line {line}"))
        return f'params["{plain}"]'

    def lifted(self, name: str, value: int, line: int) -> str:
        """The text of a block size below the function that is called: one knob for a name and a value."""
        plain, known, count = name.strip("_").lower(), "", 0
        while not known or known in self.reserved or self.below.get(known, value) != value:
            count += 1
            known = plain if count == 1 else f"{plain}_{count}"
        if known not in self.below:
            self.below[known] = value
            self.knobs_below.append(
                Knob(known, value, block_values(value), f"{name} = {value} at line {line}")
            )
        return f'params["{known}"]'

    def constant(self, name: str, text: str) -> str:
        new = name.strip("_") or "c"
        while new in RESERVED or new in self._names.values() or self.constants.get(new, text) != text:
            new += "_c"
        self.constants[new] = text
        return new


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


def _named_defaults(node: ast.FunctionDef) -> None:
    """A default that is a function (``activation=lambda x: x``) becomes None, and the body says the function."""
    for arguments, defaults in (
        (node.args.args[len(node.args.args) - len(node.args.defaults) :], node.args.defaults),
        (node.args.kwonlyargs, node.args.kw_defaults),
    ):
        for place, (argument, default) in enumerate(zip(arguments, list(defaults), strict=True)):
            if isinstance(default, ast.Lambda):
                name = argument.arg
                text = f"if {name} is None:\n    {name} = {ast.unparse(default)}"
                statement = ast.copy_location(ast.parse(text).body[0], default)
                defaults[place] = ast.copy_location(ast.Constant(None), default)
                node.body.insert(0, statement)
    ast.fix_missing_locations(node)


class _Transform(ast.NodeTransformer):
    """Rewrites one function."""

    def __init__(
        self, module: Module, known: Mapping[str, Any], closure: Mapping[str, Any], node: ast.FunctionDef
    ) -> None:
        self._module, self._known, self._closure = module, known, closure
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
        if is_size(value) and names_block(name):
            return self._module.lifted(name, value, line)
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
            methods = self._module.observed.methods if self._module.observed is not None else {}
            mine = {*self._local, *self._mapping.values()}
            return self._module.add(plain, wanted=name if methods.get(name) is value else "", avoid=mine)
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
