"""The reference that is promoted with a function that was taken in: the function its operator names, packed by itself.

The package computes what ``TakenOperator.oracle`` does and needs NumPy, ml_dtypes, and torch or JAX, as the reference
does. Of a file, imports and definitions are packed, no statement that merely does something.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path

from tilewright.library.oracle import PLACEHOLDER
from tilewright.workers.intake.calls import dtypes
from tilewright.workers.intake.judge import reference
from tilewright.workers.intake.operator import TakenOperator

_ROOM = re.compile(r"tilewright\.workers\.intake\.\w+(?=\.)")

_ROOT = '''"""The reference of {name}: {said}, called as ({call})."""

from {placeholder} import reference


class Operator:
    """What judges the kernel."""

    def oracle(self, workload, inputs):
        """Results by name, in float64 where they are floats."""
        values = reference.run_reference(_function(), {call!r}, inputs, {precision!r})
        return {{name: {{name: values[place]}} for name, place in {places!r}}}


def _function():
{function}


def operator():
    """The operator."""
    return Operator()


def workload(dims):
    """One shape of it."""
    return dims
'''


def files_of(operator: TakenOperator) -> dict[str, str] | None:
    """Texts by path; None where the reference cannot stand alone. Raises OSError, SyntaxError."""
    judge, colon, name = operator.reference.rpartition(":")
    files: dict[str, str] = {}
    if judge == "itself" or operator.reference.startswith("itself:"):
        return None
    if colon:
        text = judge_of(Path(judge))
        if text is None:
            return None
        files["judge.py"] = text
        function = f"    from {PLACEHOLDER} import judge\n\n    return {_found(text, name)}"
    else:
        function = f"    return reference.function_of({operator.reference!r})"
    files["__init__.py"] = _ROOT.format(
        name=operator.name, said=f"{Path(judge).name}:{name}" if colon else name, call=operator.call,
        placeholder=PLACEHOLDER, precision=operator.precision, function=function,
        places=[(result.name, result.place) for result in operator.results],
    )  # fmt: skip
    for module in (reference, dtypes):
        own = Path(inspect.getfile(module))
        files[own.name] = _ROOM.sub(PLACEHOLDER, own.read_text(encoding="utf-8"))
    return files


def judge_of(path: Path) -> str | None:
    """The reference's file, or a Definition's; None where it imports files beside it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        text = str(json.loads(text)["reference"])
    tree = ast.parse(text)
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            if node.level:
                return None
            names = [node.module or ""]
        if any(_is_beside(path, name.partition(".")[0]) for name in names):
            return None
    main = "__name__"
    kept = [
        node
        for node in tree.body
        if not isinstance(node, ast.Expr | ast.For | ast.While | ast.With | ast.Assert)
        and not (isinstance(node, ast.If) and main in ast.unparse(node.test))
    ]
    return ast.unparse(ast.fix_missing_locations(ast.Module(kept, [])))


def _is_beside(path: Path, name: str) -> bool:
    return path.with_name(f"{name}.py").is_file() or (path.parent / name / "__init__.py").is_file()


def _found(text: str, name: str) -> str:
    """The function of the packed file, as an expression: a model's is made first, as its benchmark does."""
    nodes = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    if isinstance(nodes.get(name), ast.ClassDef) and "get_init_inputs" in nodes:
        return f"reference.forward_of(judge.{name}, judge.get_init_inputs())"
    return f"judge.{name}"
