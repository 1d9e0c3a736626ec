"""Mutants that compute the same, or almost: the line as it is then, and why no test can tell."""

from __future__ import annotations

EQUAL: dict[str, dict[str, str]] = {}
"""Module to the changed line to the reason."""


def why_equal(module: str, changed: str) -> str:
    """The reason, or nothing where none is known."""
    return EQUAL.get(module, {}).get(changed.strip(), "")
