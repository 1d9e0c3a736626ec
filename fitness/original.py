"""Kernel modules that hold a user's function as it stands, as data: ``ORIGINAL``, with no code of the dialect.

The dialect says nothing about the function's text. Only the operator, which the user trusts, may bring one: a candidate
has the text of the operator's own seed, with other parameters.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "ORIGINAL"
Site = tuple[str, int, int, int]
"""A number in a file: its path below the root, line from 1, and its first byte and the byte after its last."""


def is_original(source: str) -> bool:
    """Whether a module claims to hold a function as it stands."""
    return f"\n{NAME} = " in source


def data_of(source: str, name: str = NAME) -> dict[str, Any] | None:
    """What ``ORIGINAL`` says; None of any other module. Raises ValueError where that is no data."""
    if f"\n{name} = " not in source:
        return None
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            found: dict[str, Any] = ast.literal_eval(node.value)
            return found
    return None


def texts_of(
    files: Mapping[str, str], sites: Mapping[str, Sequence[Site]], params: Mapping[str, Any]
) -> dict[str, str]:
    """The user's files by path with the numbers of a candidate. ``sites``: those that each parameter replaces."""
    found = {path: text.encode().split(b"\n") for path, text in files.items()}
    places = [(site, params[name]) for name, of in sites.items() if name in params for site in of]
    for (path, line, first, last), value in sorted(places, reverse=True):
        row = found[path][line - 1]
        found[path][line - 1] = row[:first] + repr(value).encode() + row[last:]
    return {path: b"\n".join(rows).decode() for path, rows in found.items()}
