"""Functions that kernels of a family share: one text, put into the source of every module that imports them.

A dialect module imports nothing of this project. So a family's kernels say ``from
tilewright.seeds.FAMILY.kernels.MODULE
import name``, as they would, and what a campaign starts from has that module's imports there, and those
functions, with what they call, before its space.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

_IMPORT = re.compile(r"^(from tilewright\.seeds\.\w+\.kernels\.(\w+) import (\([^)]*\)|.+)\n)", re.MULTILINE)
_IMPORTED = re.compile(r"^import .+\n", re.MULTILINE)


def inlined(path: Path) -> str:
    """The text of a kernel module without imports of its neighbours, whose functions stand before ``SPACE``."""
    text = path.read_text(encoding="utf-8")
    functions = []
    for line, module, names in _IMPORT.findall(text):
        shared = (path.parent / f"{module}.py").read_text(encoding="utf-8")
        imports = [found for found in _IMPORTED.findall(shared) if found not in text]
        text = text.replace(line, "".join(imports), 1)
        functions += _functions(shared, set(re.findall(r"\w+", names)))
    return text.replace("SPACE = ", "\n\n".join([*functions, "SPACE = "]), 1)


def _functions(text: str, wanted: set[str]) -> list[str]:
    """The texts of these functions of a module and of those that they name, in its order."""
    defined = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    left, needed = list(wanted), set()
    while left:
        name = left.pop()
        if name not in needed:
            needed.add(name)
            inner = {node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)}
            left += inner & defined.keys()
    lines = text.splitlines()
    found = []
    for name, node in defined.items():
        if name in needed:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.append("\n".join(lines[first - 1 : node.end_lineno]) + "\n")
    return found
