"""What a taken-in operator computes, as text for whoever writes a kernel for it."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.workers.intake.operator import Operand, Result, TakenOperator


def contract_of(operator: TakenOperator) -> str:
    """Operands, results, and the reference with its source where it is a file's."""
    said = [
        "``launch(inputs, params)`` is given these tensors by name: " + _tensors(operator.operands) + ".",
        "It returns a tuple of " + _tensors(operator.results) + ".",
    ]
    path, colon, name = operator.reference.rpartition(":")
    if not colon or path == "itself" or operator.reference.startswith("itself:"):
        what = "the seed kernel" if operator.reference.startswith("itself:") else operator.reference
        return "\n".join([*said, f"It must compute what {what} does, called with ({operator.call})."])
    said.append(f"It must compute what this reference does, called as {name}({operator.call}):")
    return "\n".join([*said, "", textwrap.indent(_source(Path(path), name.partition(".")[0]), "    ")])


def _tensors(tensors: Iterable[Operand | Result]) -> str:
    return ", ".join(f"{t.name} {t.dtype}[{', '.join(map(str, t.shape))}]" for t in tensors)


def _source(path: Path, name: str) -> str:
    """A function or class of a file as it stands there; the name where that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        nodes = ast.parse(text).body
    except (OSError, ValueError, SyntaxError):
        return name
    named = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name]
    return (named and ast.get_source_segment(text, named[-1])) or name
