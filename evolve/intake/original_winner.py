"""The winner of a function that runs as it stands: the user's own file, with the sizes that won in their places."""

import ast
import inspect
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from tilewright.fitness.original import texts_of
from tilewright.workers.intake.calls.objects import made_of
from tilewright.workers.intake.texts import stored_text


def original_text(
    data: Mapping[str, Any], params: Mapping[str, Any], function: str, entry: str, operands: Sequence[str]
) -> str:
    """The text of a module with ``entry(*operands)``, whose ``function`` is free to be defined. ``data``: see
    ``fitness.original.data_of``; what the user's file imports must be installed, as for that file."""
    texts = texts_of(data["files"], data["sites"], params)
    path = data["path"]
    others = {_module(p): text for p, text in texts.items() if p != path and text != data["files"][p]}
    package = _module(path).rpartition(".")[0] if f"{PurePosixPath(path).parent}/__init__.py" in texts else ""
    tree = Renamed(function, f"{function}_original").visit(ast.parse(texts[path]))
    first, _, rest = str(data["function"]).partition(".")
    called = ".".join(filter(None, (f"{function}_original" if first == function else first, rest)))
    head = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    body = [n for n in tree.body[ast.get_docstring(tree) is not None :] if n not in head]
    # a generator's name is left to the original, which could not be imported if it were taken
    body = [n for n in body if not isinstance(n, ast.Expr) or "register_prng(" not in ast.unparse(n)]
    parts = [ast.unparse(ast.Module([*head], []))]
    if others:
        parts += [stored_text("tuned_files"), f"FILES = tuned_files({others!r})"]
    if package:
        parts.append(f"__package__ = {package!r}")
    parts.append(ast.unparse(ast.fix_missing_locations(ast.Module(body, []))))
    parts += ["original_files(FILES)"] if others else []
    if "named(" in data["call"]:
        own = (_module(path), PurePosixPath(path).stem)
        names = stored_text("named").replace("{own!r}", repr(own))
        parts.append(f"import sys\n{names}{inspect.getsource(made_of)}")
    parts.append(
        f"import jax\nimport jax.numpy as jnp\n\nPARAMS = {dict(params)!r}\n\n\ndef {entry}({', '.join(operands)}):\n"
        f"    params = PARAMS\n    return {called}({data['call']})\n"
    )
    return "\n\n".join(part for part in parts if part)


def _module(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


class Renamed(ast.NodeTransformer):
    """Gives a function of a module, where it has one of that name, another wherever its file says it: the winner's own
    takes the name, and would call itself."""

    def __init__(self, before: str, after: str) -> None:
        self._before, self._after = before, after

    def visit_Module(self, node: ast.Module) -> ast.AST:
        bound = {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
        bound |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return self.generic_visit(node) if self._before in bound else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._after if node.id == self._before else node.id
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if any(a.arg == self._before for a in given):
            return node
        node.name = self._after if node.name == self._before else node.name
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for part in node.body:  # its methods have names of their own
            self.generic_visit(part) if isinstance(part, ast.FunctionDef) else self.visit(part)
        return node
