"""The text of a Pallas function in the dialect, for rewrites: what it uses of its file, by the dialect's names.

Nothing rests on it: a text that traces to anything else than the function is not used.
"""

import ast
import builtins
import functools
import inspect
import math
import re
import sys
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewright.fitness.dialect_names import ALL_BUILTINS, BUILTINS, names
from tilewright.workers.intake.child_program import Refusal
from tilewright.workers.intake.pallas.original import Original
from tilewright.workers.intake.source.knobs import with_params
from tilewright.workers.intake.source.names import closure_of, object_of, placed_expression, plain_function
from tilewright.workers.intake.source.traced_numbers import number_text
from tilewright.workers.runners.pallas.trace import load_build

_MODULES = {
    pltpu: "pltpu",
    pl: "pl",
    jnp: "jnp",
    jax.lax: "jax.lax",
    jax.nn: "jax.nn",
    math: "math",
    functools: "functools",
    jax.tree: "jax.tree",
    jax.tree_util: "jax.tree_util",
    np: "jnp",
    jax: "jax",
}
RESERVED = ALL_BUILTINS | frozenset(("jax", "jnp", "pl", "pltpu", "functools", "math", "build", "params"))
_OPTIONS = {
    "pallas_call": names("debug interpret cost_estimate metadata name input_output_aliases backend"),
    "CompilerParams": names("has_side_effects collective_id flags serialization_format"),
}
"""Options of a launch that only watch or place it. Operands that are reused as results are among them: where the kernel
writes all of a result the answer is the same, and where it does not the comparison with the reference says so."""


@dataclass
class FunctionText:
    """The module being made. ``sizes``: the parameter that stands in place of a number."""

    sizes: Mapping[int, str]
    constants: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def add(self, function: Any) -> str:
        """Add a function and what it uses; its name. Raises Refusal, OSError, SyntaxError."""
        fn = plain_function(function)
        if id(fn) not in self._names:
            name = self._names[id(fn)] = self._free(fn.__name__)
            node = ast.parse(textwrap.dedent(inspect.getsource(fn))).body[0]
            if not isinstance(node, ast.FunctionDef):
                raise Refusal(f"{fn.__name__} is no plain function", fn.__code__.co_firstlineno)
            node.name, node.decorator_list = name, []
            made = _Transform(self, (closure_of(fn), fn.__globals__), node).visit(node)
            self.functions[name] = ast.unparse(ast.fix_missing_locations(made))
        return self._names[id(fn)]

    def constant(self, name: str, text: str) -> str:
        """The name of a constant."""
        new = name.strip("_")
        if self.constants.get(new) != text:
            new = self._free(new)
        self.constants[new] = text
        return new

    def _free(self, wanted: str) -> str:
        name = wanted.strip("_") or "f"
        while name in {*RESERVED, *self._names.values(), *self.constants} or not name.isidentifier():
            name = re.sub(r"\W", "", name) + "_f"
        return name


@dataclass(frozen=True)
class FollowedText:
    """A kernel module in the dialect. ``head``: what stands before its declarations; ``body``: what stands after."""

    head: str
    body: str

    def source(self, declared: str) -> str:
        """See ``Original``."""
        return f"{self.head}\n{declared}\n{self.body}"

    def settled(self, texts: Mapping[str, str]) -> "FollowedText":
        """See ``Original``."""
        return replace(self, body=with_params(self.body, texts))

    def build(self, folder: Path) -> Callable[[Mapping[str, Any]], Callable[..., Any]]:
        """See ``Original``."""
        return load_build(self.source(""))


def followed_text(sizes: Mapping[int, str], original: Original, function: Any) -> FollowedText:
    """The text of a function. ``sizes``: see ``FunctionText``. Raises Refusal, OSError, SyntaxError."""
    made = FunctionText(sizes)
    entry = made.add(function)
    constants = "".join(f"{n} = {t}\n" for n, t in made.constants.items())
    functions = textwrap.indent("\n\n".join(made.functions.values()), "    ")
    imports = "".join(f"import {word}\n" for word in ("functools", "math") if f"{word}." in functions)
    head = (
        f'"""From {Path(original.path).name}."""\n\n{imports}import jax\nimport jax.numpy as jnp\n'
        "from jax.experimental import pallas as pl\nfrom jax.experimental.pallas import tpu as pltpu\n"
    )
    body = (
        f"{constants}\n\ndef build(params):\n{functions}\n\n"
        f"    def apply({', '.join(original.operands)}):\n        return {entry}({original.call})\n\n    return apply\n"
    )
    return FollowedText(head, body)


class _Transform(ast.NodeTransformer):
    """Rewrites one function. ``scopes``: its closure and globals."""

    def __init__(self, module: FunctionText, scopes: tuple[Mapping[str, Any], ...], node: ast.FunctionDef) -> None:
        self._module, self._scopes = module, scopes
        inner = [n for n in ast.walk(node) if n is not node]
        bound = [n.arg for n in inner if isinstance(n, ast.arg)]
        bound += [n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        functions = [n.name for n in inner if isinstance(n, ast.FunctionDef)]
        bound += functions
        self._local: dict[str, str] = {}
        for name in dict.fromkeys(bound):
            new = name.lstrip("_") or ("step" if name in functions else name if name == "_" else "u")
            while new in RESERVED or (new != name and new in {*bound, *self._local.values()}):
                new += "_"
            self._local[name] = new

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        size = self._module.sizes.get(node.value) if type(node.value) is int else None
        return placed_expression(f'params["{size}"]', node) if size else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._local:
            return ast.copy_location(ast.Name(self._local[node.id], node.ctx), node)
        return self._resolved(node, node.id) or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        made = self._resolved(node, node.attr)
        if made is None:
            node.value = self.visit(node.value)
        return made or node

    def _resolved(self, node: ast.expr, name: str) -> ast.AST | None:
        found, value = object_of(node, self._local, self._scopes)
        text = self._text(value, name) if found else None
        return None if text is None else placed_expression(text, node)

    def _text(self, value: Any, name: str) -> str | None:
        """A value as text; None where its own will do, or none does."""
        if isinstance(value, types.ModuleType):
            return _MODULES.get(value)
        if name in BUILTINS and getattr(builtins, name, self) is value:
            return name
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str | tuple):
            if type(value) is int and value in self._module.sizes:
                return f'params["{self._module.sizes[value]}"]'
            text = repr(value) if isinstance(value, tuple) else number_text(value)
            return text if value is None or text.startswith("float") else self._module.constant(name, text)
        for module, alias in _MODULES.items():
            if getattr(module, name, None) is value and module is not np:
                return f"{alias}.{name}"
        plain = plain_function(value)
        if isinstance(plain, types.FunctionType):
            home = str(plain.__module__)
            library = home.startswith(("jax.", "jaxlib.", "numpy.")) and ".pallas.ops." not in home
            if not library and home.partition(".")[0] not in sys.stdlib_module_names:
                return self._module.add(plain)
        return None

    # -- statements ------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns = self._local.get(node.name, node.name), None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        node.decorator_list = [d for d in node.decorator_list if not re.search(r"jit|named_", ast.unparse(d))]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self._local.get(node.arg, node.arg), None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([self.visit(node.target)], self.visit(node.value)), node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        error = ast.parse('ValueError("refused by the function")', mode="eval").body
        return ast.copy_location(ast.Raise(error, None), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.copy_location(ast.Assert(self.visit(node.test), None), node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        node.arg = node.arg and (node.arg.lstrip("_") or node.arg)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        dropped = _OPTIONS.get(ast.unparse(node.func).rpartition(".")[2], ())
        node.keywords = [k for k in node.keywords if k.arg not in dropped]
        return self.generic_visit(node)
