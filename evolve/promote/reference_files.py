"""The reference that is promoted with a kernel: the operator's own modules, packed for programs to ask its oracle.

The modules are found by following imports from the operator's; what comes from outside the seeds (NumPy, ml_dtypes) is
not packed. A function that was taken in brings the file its reference is in, of which imports and definitions are
packed and no statement that merely does something; that package computes what ``TakenOperator.oracle`` does and needs
NumPy, ml_dtypes, and torch or JAX, as the reference does.
"""

import ast
import inspect
import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tilewright.library.oracle import PLACEHOLDER
from tilewright.seeds import catalogue
from tilewright.seeds.operator import Operator
from tilewright.workers.intake.calls import dtypes, objects
from tilewright.workers.intake.judge import reference as taken_reference
from tilewright.workers.intake.operator import TakenOperator

_SEEDS = re.compile(r"\b(from|import)\s+(?:tilewright\.)?seeds\b")

_ROOT = '''"""The reference of {name}."""

from importlib import import_module

from {placeholder}.seeds.operator import Workload


def operator():
    """The operator."""
    return import_module("{placeholder}.{module}").operators()["{recipe}"]


def workload(dims):
    """One shape of it."""
    return Workload("called", dims)
'''


def packed_reference(operator: Operator, reference: str) -> bytes | None:
    """``reference.zip`` for the operator that a campaign names ``family/recipe``; None where it cannot stand alone."""
    if isinstance(operator, TakenOperator):
        try:
            texts = _taken_files(operator)
        except (OSError, SyntaxError, ValueError, KeyError):
            return None
        return None if texts is None else _zip(texts)
    family, _, recipe = reference.rpartition("/")
    seeds = catalogue.HERE
    shipped = family in catalogue.families()
    start = (seeds / family if shipped else Path(family)) / "operator.py"
    module = f"seeds.{family}.operator" if shipped else "brought.operator"
    files: dict[str, str] = {}
    try:
        _follow(start, module.replace(".", "/") + ".py", seeds, files)
        _follow(seeds / "operator.py", "seeds/operator.py", seeds, files)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    for folder in {str(Path(path).parent) for path in files}:
        files.setdefault(f"{folder}/__init__.py", "")
    files["__init__.py"] = _ROOT.format(name=operator.name, placeholder=PLACEHOLDER, module=module, recipe=recipe)
    return _zip(files)


def _zip(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), text.encode(), zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _follow(path: Path, name: str, seeds: Path, files: dict[str, str]) -> None:
    """A module, the kernels beside it, and the modules of the seeds it imports. Raises OSError, SyntaxError."""
    if name in files:
        return
    text = path.read_text(encoding="utf-8")
    files[name] = _SEEDS.sub(rf"\1 {PLACEHOLDER}.seeds", text)
    if path.name == "operator.py":
        for kernel in sorted((path.parent / "kernels").glob("*.py")):
            _pack_kernel(kernel, f"{Path(name).parent}/kernels/{kernel.name}", seeds, files)
    for imported in _imports_of(text):
        inner = Path(*imported.split("."))
        for candidate in (inner.with_suffix(".py"), inner / "__init__.py"):
            if (seeds / candidate).is_file():
                _follow(seeds / candidate, f"seeds/{candidate}", seeds, files)


def _pack_kernel(path: Path, name: str, seeds: Path, files: dict[str, str]) -> None:
    """A kernel module as it is, and the shared ones whose definitions are put into its source (``seeds.inlined``)."""
    if name in files:
        return
    files[name] = path.read_text(encoding="utf-8")
    for imported in _imports_of(files[name]):
        inner = Path(*imported.split(".")).with_suffix(".py")
        if (seeds / inner).is_file():
            _pack_kernel(seeds / inner, f"seeds/{inner}", seeds, files)


def _imports_of(text: str) -> set[str]:
    """Modules of the seeds that a module names in imports, by their path within."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            inner = name.removeprefix("tilewright.")
            if inner.startswith("seeds."):
                found.add(inner.removeprefix("seeds."))
    return found


# -- a function that was taken in --------------------------------------------------------------------

_INTAKE = re.compile(r"tilewright\.workers\.intake\.\w+(?=\.)")

_TAKEN_ROOT = '''"""The reference of {name}: {said}, called as ({call})."""

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


def _taken_files(operator: TakenOperator) -> dict[str, str] | None:
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
        function = f"    from {PLACEHOLDER} import judge\n\n    return {_function_expression(text, name)}"
    else:
        function = f"    return reference.function_of({operator.reference!r})"
    files["__init__.py"] = _TAKEN_ROOT.format(
        name=operator.name,
        said=f"{Path(judge).name}:{name}" if colon else name,
        call=operator.call,
        placeholder=PLACEHOLDER,
        precision=operator.precision,
        function=function,
        places=[(result.name, result.place) for result in operator.results],
    )
    for module in (taken_reference, dtypes, objects):
        own = Path(inspect.getfile(module))
        files[own.name] = _INTAKE.sub(PLACEHOLDER, own.read_text(encoding="utf-8"))
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


def _function_expression(text: str, name: str) -> str:
    """The function of the packed file, as an expression: a model's is made first, as its benchmark does."""
    nodes = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    if isinstance(nodes.get(name), ast.ClassDef) and "get_init_inputs" in nodes:
        return f"reference.forward_of(judge.{name}, judge.get_init_inputs())"
    return f"judge.{name}"
