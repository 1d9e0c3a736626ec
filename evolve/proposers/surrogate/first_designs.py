"""First points of a space that nobody has searched: where kernels of any kind are seldom bad.

A constraint's limit is a machine's: threads of a block, bytes of shared memory, registers. What fills a limit leaves
room for one block where several would hide each other's latency, and what uses little of it does too little work at
once, so a quantity is presumed good at a quarter of its limit. A remainder that must vanish speaks of a share of work,
such as ``tile % (threads * vector)``: its quotient is presumed good at a few. Of single parameters the middle is
presumed better than the ends, a little.

Where a quantity is zero a parameter is, which most often stands for "off" or "as the compiler likes": nothing is
presumed there. Nor is anything of a quantity that never leaves an octave below its limit, as where a space lists but
tiles that fill a machine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from tilewright.evolve.proposers.surrogate.features import tabulate
from tilewright.evolve.space.space import Rows, Space

SHARE_OF_LIMIT = -2.0
QUOTIENT = 1.5
"""log2 of what is presumed best: a share of a limit, and a quotient."""

ZERO = -9.0
"""log2 of what counts as zero (see ``tabulate``)."""

DRAWS = 2000
"""Legal points that stand for a space that has too many to list."""

LEAST_OCTAVES = 1.0
"""Octaves that a limited quantity has to range over for its place to mean anything."""

MOST_PENALTY = 16.0
"""Of one quantity: nothing is worse than bad."""

MIDDLE = 0.5
"""Penalty of a single parameter at an end of its values."""


class Presumption:
    """How far points are from where good ones are presumed, before anything is known."""

    def __init__(self, space: Space) -> None:
        live = {name for name, values in space.parameters.items() if len(values) > 1}
        told = dict.fromkeys(found for text, _ in space.constraints for found in _quantities(text, live))
        tables = [(best, tabulate(quantity, space)) for quantity, best in told]
        self._tables = [(best, *table) for best, table in tables if table is not None]
        self._tables = [table for table in self._tables if _means_something(space, *table)]
        sizes = [len(values) for values in space.parameters.values()]
        ordinal = [space.is_ordinal(name) and size > 2 for name, size in zip(space.names, sizes, strict=True)]
        self._columns = np.flatnonzero(ordinal)
        self._last = np.array(sizes)[self._columns] - 1.0

    def penalty(self, rows: Rows) -> np.ndarray:
        """Float [points], 0 at best: squared octaves from the presumed best, summed over quantities."""
        total = np.zeros(len(rows))
        for best, columns, values in self._tables:
            found = values[tuple(rows[:, columns].T)]
            total += np.where(found > ZERO, np.minimum((found - best) ** 2, MOST_PENALTY), 0.0)
        total += MIDDLE * ((2.0 * rows[:, self._columns] / self._last - 1.0) ** 2).sum(axis=1)
        return total


def _means_something(space: Space, best: float, columns: list[int], values: np.ndarray) -> bool:
    """Whether a quantity ranges far enough over legal points."""
    if best != SHARE_OF_LIMIT:
        return True
    rows = space.points if space.points is not None else space.sample_rows(np.random.default_rng(0), DRAWS)
    found = values[tuple(rows[:, columns].T)]
    found = found[found > ZERO]
    return len(found) > 0 and float(np.ptp(found)) > LEAST_OCTAVES


def _quantities(expression: str, live: set[str]) -> Iterator[tuple[str, float]]:
    """Quantities of two or more live parameters that a constraint limits, as shares, and quotients."""

    def names(node: ast.AST) -> set[str]:
        return {leaf.id for leaf in ast.walk(node) if isinstance(leaf, ast.Name)} & live

    for node in ast.walk(ast.parse(expression.strip(), mode="eval")):
        if isinstance(node, ast.Compare):
            terms = [node.left, *node.comparators]
            for left, op, right in zip(terms, node.ops, terms[1:], strict=False):
                small, large = (right, left) if isinstance(op, ast.Gt | ast.GtE) else (left, right)
                if (
                    isinstance(op, ast.Gt | ast.GtE | ast.Lt | ast.LtE)
                    and len(names(small)) > 1
                    and not names(large)
                ):
                    yield f"({ast.unparse(small)}) / ({ast.unparse(large)})", SHARE_OF_LIMIT
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and len(names(node)) > 1:
            yield f"({ast.unparse(node.left)}) / ({ast.unparse(node.right)})", QUOTIENT
