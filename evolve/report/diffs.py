"""Differences of a child from its parent: parameters first, source after."""

from __future__ import annotations

import difflib

from tilewright.evolve.space.genome import Genome


def parameter_changes(parent: Genome, child: Genome) -> list[tuple[str, str, str]]:
    """(parameter, before, after) of every difference; a parameter only one side has reads ``-``."""
    names = sorted(set(parent.params) | set(child.params))
    values = [(n, _text(parent, n), _text(child, n)) for n in names]
    return [row for row in values if row[1] != row[2]]


def source_diff(parent: Genome, child: Genome) -> str:
    """Unified diff of the kernel sources, empty when they are equal."""
    lines = difflib.unified_diff(
        parent.source.splitlines(),
        child.source.splitlines(),
        f"{parent.id}.py",
        f"{child.id}.py",
        lineterm="",
    )
    return "\n".join(lines)


def full_diff(parent: Genome, child: Genome) -> str:
    """Both kinds of change as one text for a file."""
    changes = [f"{name}: {before} -> {after}" for name, before, after in parameter_changes(parent, child)]
    source = source_diff(parent, child)
    parts = [f"# from {parent.id} to {child.id}"]
    parts += ["# parameters", *changes] if changes else []
    parts += ["# source", source] if source else []
    return "\n".join(parts) + "\n"


def _text(genome: Genome, name: str) -> str:
    return str(genome.params[name]) if name in genome.params else "-"
