"""The winner of a function that runs as it stands: the user's own file, with the sizes that won in their places."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from tilewright.fitness.original import texts_of
from tilewright.workers.intake.calls.objects import made_of

_OTHERS = '''import importlib
import sys
import types


def tuned_files(files):
    """Import modules of these texts in place of the installed ones; give those back."""
    before = {}
    for name, text in files.items():
        parent, _, last = name.rpartition(".")
        package = importlib.import_module(parent) if parent else types.SimpleNamespace()
        before[name] = (sys.modules.get(name), package, last, getattr(package, last, None))
        module = sys.modules[name] = types.ModuleType(name)
        module.__package__ = parent
        exec(compile(text, name, "exec"), module.__dict__)
        setattr(package, last, module)
    return before


def original_files(before):
    """Undo ``tuned_files``."""
    for name, (module, package, last, attribute) in before.items():
        sys.modules.pop(name)
        if module is not None:
            sys.modules[name] = module
        if attribute is not None:
            setattr(package, last, attribute)
'''


_NAMED = """import importlib


def named(path):
    \"\"\"What ``package.module.Name`` stands for; of the file that this one is made of, what stands here.\"\"\"
    for own in {own!r}:
        if path.startswith(own + "."):
            found, parts = sys.modules[__name__], path.removeprefix(own + ".").split(".")
            break
    else:
        parts, left = [], path
        while True:
            left, _, last = left.rpartition(".")
            parts.insert(0, last)
            try:
                found = importlib.import_module(left)
                break
            except ImportError:
                if "." not in left:
                    raise
    for part in parts:
        found = getattr(found, part)
    return found


"""


def original_module(
    data: Mapping[str, Any], params: Mapping[str, Any], function: str, operands: Sequence[str], note: str
) -> str:
    """A module with ``function(*operands)``. ``data``: see ``fitness.original.data_of``; what the user's file imports
    must be installed, as for that file."""
    texts = texts_of(data["files"], data["sites"], params)
    path = data["path"]
    others = {_module(p): text for p, text in texts.items() if p != path and text != data["files"][p]}
    package = _module(path).rpartition(".")[0] if f"{PurePosixPath(path).parent}/__init__.py" in texts else ""
    tree = ast.parse(texts[path])
    called = str(data["function"])
    if called.partition(".")[0] == function:
        _Renamed(function).visit(tree)
        called = called.replace(function, f"{function}_original", 1)
    last = max((n.end_lineno or 0 for n in tree.body if _is_head(n)), default=0)
    head = [n for n in tree.body if (n.lineno <= last and _is_head(n)) and not _is_text(n)]
    rest = [n for n in tree.body if n not in head and not (_is_text(n) and n is tree.body[0])]
    parts = [f'"""{note}"""', ast.unparse(ast.Module(head, []))]
    if others:
        parts += [_OTHERS, f"FILES = tuned_files({others!r})"]
    if package:
        parts.append(f"__package__ = {package!r}")
    parts.append(ast.unparse(ast.fix_missing_locations(ast.Module(rest, []))))
    parts += ["original_files(FILES)"] if others else []
    given = ", ".join(operands)
    if "named(" in data["call"]:
        own = (_module(path), PurePosixPath(path).stem)
        parts.append(f"import sys\n{_NAMED.replace('{own!r}', repr(own))}{inspect.getsource(made_of)}")
    parts.append(
        f"import jax\nimport jax.numpy as jnp\n\nPARAMS = {dict(params)!r}\n\n\ndef {function}({given}):\n"
        f"    params = PARAMS\n    return {called}({data['call']})\n"
    )
    return "\n\n".join(part for part in parts if part)


def _module(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


def _is_head(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Renamed(ast.NodeTransformer):
    """Gives the user's function another name wherever its file says it: the new one calls it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == self._name:
            node.id = f"{self._name}_original"
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name == self._name:
            node.name = f"{self._name}_original"
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node
