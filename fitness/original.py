"""Kernel modules that hold a user's function as it stands, as data: ``ORIGINAL``, with no code of the dialect.

The dialect says nothing about the function's text. Only the operator, which the user trusts, may bring one: a candidate
has the text of the operator's own seed, with other parameters.
"""

from __future__ import annotations

import ast
from typing import Any

NAME = "ORIGINAL"


def is_original(source: str) -> bool:
    """Whether a module claims to hold a function as it stands."""
    return f"\n{NAME} = " in source


def data_of(source: str) -> dict[str, Any] | None:
    """What ``ORIGINAL`` says; None of any other module. Raises ValueError where that is no data."""
    if not is_original(source):
        return None
    for node in ast.parse(source).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == NAME
        ):
            found: dict[str, Any] = ast.literal_eval(node.value)
            return found
    return None
