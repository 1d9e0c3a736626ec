"""Definitions that kernels share: one text, put into the source of every module that imports them.

A dialect module imports nothing of this project, and a genome is one text. So a kernel module says ``from
tilewright.seeds.FAMILY.kernels.MODULE import name``, and the source that a campaign starts from has in the place of
that line the definitions of those names, of what they use, and the imports that these need.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

SEEDS = Path(__file__).parent
_PREFIX = "tilewright.seeds."

_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.M)

Imports = ast.Import | ast.ImportFrom


def inlined(path: Path, root: Path = SEEDS) -> str:
    """The text of a kernel module with what it imports of ``root``'s modules defined behind its other imports.

    A ``.cu`` file beside it becomes the constant ``CUDA`` at its end, with the ``.cuh`` files that it includes. Raises
    ImportError for a name that its module does not define.
    """
    text = path.read_text(encoding="utf-8")
    if (code := path.with_suffix(".cu")).is_file():
        text = with_device_code(text, _with_headers(code))
    imports = [node for node in ast.parse(text).body if isinstance(node, Imports)]
    shared = {node: module for node in imports if (module := _module(node, root)) is not None}
    if not shared:
        return text
    known = {name for node in imports if node not in shared for name in _bound(node)}
    lines, missing, definitions = text.splitlines(), list[str](), dict[str, str]()
    for node, module in shared.items():
        source = inlined(module, root)
        found = _definitions(source, [alias.name for alias in node.names])
        definitions |= found
        for line in _imports_of(source, found.values(), known):
            missing.append(line)
    last = max(node.end_lineno or 0 for node in imports)
    dropped = {n for node in shared for n in range(node.lineno, (node.end_lineno or 0) + 1)}
    head = [line for number, line in enumerate(lines[:last], 1) if number not in dropped]
    while head and not head[-1]:
        head.pop()
    if missing and len(shared) == len(imports):
        head.append("")  # behind the docstring
    parts = [
        "\n".join([*head, *sorted(missing, key=lambda line: line.split()[1])]),
        *definitions.values(),
        "\n".join(lines[last:]).strip("\n") + "\n",
    ]
    return "\n\n\n".join(parts)


def _with_headers(path: Path) -> str:
    """Device code with the ``.cuh`` files beside it in the place of the lines that include them."""
    code = path.read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: path.with_name(found[1]).read_text(encoding="utf-8").rstrip(), code)


def with_device_code(text: str, code: str) -> str:
    """A module whose constant ``CUDA`` is this device code; lines count from the string's first. Raises ImportError."""
    if '"""' in code:
        raise ImportError('device code may not hold """')
    return f'{text.rstrip()}\n\nCUDA = r"""{code}"""\n'


def _module(node: Imports, root: Path) -> Path | None:
    """The file of a module of ``root`` that an import names; None for any other import."""
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(_PREFIX):
        return None
    return root.joinpath(*(node.module or "").removeprefix(_PREFIX).split(".")).with_suffix(".py")


def _bound(node: Imports) -> list[str]:
    return [alias.asname or alias.name.split(".")[0] for alias in node.names]


def _definitions(text: str, wanted: Iterable[str]) -> dict[str, str]:
    """Functions and constants of a module, those wanted and those that they name, in its order."""
    defined: dict[str, ast.FunctionDef | ast.Assign] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            defined[node.targets[0].id] = node
    left, needed = list(wanted), set[str]()
    while left:
        name = left.pop()
        if name not in defined:
            raise ImportError(f"a shared kernel module defines no {name}")
        if name not in needed:
            needed.add(name)
            left += _names(defined[name]) & defined.keys()
    lines = text.splitlines()
    found = {}
    for name, node in defined.items():
        if name in needed:
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            found[name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def _imports_of(text: str, definitions: Iterable[str], known: set[str]) -> list[str]:
    """Import lines of a module for the names that these definitions use; ``known`` ones are left out and noted."""
    used = {name for definition in definitions for name in _names(ast.parse(definition))}
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, Imports):
            needed = [a for a, name in zip(node.names, _bound(node), strict=True) if name in used - known]
            known.update(alias.asname or alias.name.split(".")[0] for alias in needed)
            if needed:
                if isinstance(node, ast.ImportFrom):
                    found.append(ast.unparse(ast.ImportFrom(node.module, needed, 0)))
                else:
                    found.append(ast.unparse(ast.Import(needed)))
    return found


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
