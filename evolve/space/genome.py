"""Genome: kernel source plus parameter values, immutable, identified by its normalised form."""

import ast
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType

Value = int | float | bool | str
"""A parameter value."""

_PARAMS = json.JSONEncoder(sort_keys=True)

DECLARATIONS = ("SPACE", "DEFAULTS", "CONSTRAINTS")
"""Literals a kernel module declares about itself. They steer the search, not what the kernel computes."""


@lru_cache(maxsize=4096)
def normalise(source: str) -> str:
    """Source without comments, layout, docstrings and declarations; text that cannot be parsed, or written again, is
    returned as it is."""
    try:
        return _text_without_declarations(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source  # a number of thousands of digits has no text


def _text_without_declarations(tree: ast.Module) -> str:
    names = [ast.unparse(n.targets[0]) if isinstance(n, ast.Assign) and len(n.targets) == 1 else "" for n in tree.body]
    tree.body = [node for node, name in zip(tree.body, names, strict=True) if name not in DECLARATIONS]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def source_id(source: str) -> str:
    """Identity of a source apart from parameter values: 16 hex digits."""
    return hashlib.sha256(normalise(source).encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Genome:
    """``source`` is a dialect module, ``params`` the value of every parameter of its space."""

    source: str
    params: Mapping[str, Value]

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(dict(sorted(self.params.items()))))

    @cached_property
    def source_id(self) -> str:
        return source_id(self.source)

    @cached_property
    def id(self) -> str:
        """16 hex digits over the normalised source and the sorted parameters."""
        text = self.source_id + _PARAMS.encode(dict(self.params))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Genome) and self.id == other.id
