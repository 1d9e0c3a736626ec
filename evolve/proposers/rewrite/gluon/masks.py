"""Masks that only keep a tile within its tensor, however they are written."""

import ast
from collections.abc import Sequence

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import parameters
from tilewright.evolve.proposers.rewrite.sums import Sum, SumReader, conjuncts
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, parsed


class _Everything(SumReader):
    """Reads every name that is bound once as what it is bound to, so that equal places have equal sums."""

    def follows(self, node: ast.expr) -> bool:
        return True


def within_bounds(kernel: TritonKernel, mask: cst.BaseExpression, starts: Sequence[str]) -> bool:
    """Whether a mask says no more than ``start + i < side`` of the axes of a tile, ``side`` a tensor's.

    ``starts``: where the tile's axes begin, as texts of the kernel.
    """
    return all(_keeps_within(kernel, part, starts) for part in _parts(kernel, mask))


def row_limit(kernel: TritonKernel, mask: cst.BaseExpression, starts: Sequence[str]) -> str:
    """What the rows of a tile stay below, where a mask says so beside its tensor's bounds; "" for any other mask."""
    limits = []
    for part in _parts(kernel, mask):
        if _keeps_within(kernel, part, starts):
            continue
        if not isinstance(part, ast.Compare) or len(part.ops) != 1 or not isinstance(part.ops[0], ast.Lt):
            return ""
        try:
            row = _read(kernel, part.left) - _read(kernel, starts[0])
        except Unsupported:
            return ""
        if not _is_range(row):
            return ""
        limits.append(ast.unparse(part.comparators[0]))
    return limits[0] if len(set(limits)) == 1 else ""


def _parts(kernel: TritonKernel, mask: cst.BaseExpression) -> list[ast.expr]:
    return [part for part, _ in conjuncts(parsed(kernel.source.code(mask)), kernel.values)]


def _keeps_within(kernel: TritonKernel, part: ast.expr, starts: Sequence[str]) -> bool:
    try:
        sides = _Everything(kernel.tl, kernel.values, {}).less(part, 0)
        firsts = [_read(kernel, start).along(0) for start in starts]
    except Unsupported:
        return False
    if sides is None or not _is_range((sides[0] - sides[1]) - (sides[0] - sides[1]).scalar):
        return False
    room = (sides[1] - sides[0]).scalar
    names = [p.name.value for p in parameters(kernel.function) if p.name.value not in kernel.constexprs]
    return any(room == Sum({(name,): 1}) - first and is_side(kernel, name) for name in names for first in firsts)


def _read(kernel: TritonKernel, place: ast.expr | str) -> Sum:
    node = parsed(place) if isinstance(place, str) else place
    return _Everything(kernel.tl, kernel.values, {}).read(node)


def _is_range(value: Sum) -> bool:
    """Whether it is what the elements of a tile add along one axis, one by one from 0."""
    return len(value.parts) == 1 and all(
        c == 1 and len(p) == 1 and p[0].startswith("@") for p, c in value.parts.items()
    )


def is_side(kernel: TritonKernel, name: str) -> bool:
    """Whether the launch passes a side of a tensor for parameter ``name``."""
    given = kernel.given(name)
    if given is None:
        return False
    text = kernel.source.code(given)
    if ".shape[" in text or ".size(" in text:
        return True
    scope = kernel.source.enclosing(kernel.launch(), cst.FunctionDef)
    for statement in walk(scope.body) if scope is not None else ():
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for line in statement.body:
            if not isinstance(line, cst.Assign):
                continue
            value, target = kernel.source.code(line.value), line.targets[0].target
            sided = value.endswith(".shape") or ".shape[" in value or ".size(" in value or ".shape," in value
            if sided and text in {n.value for n in walk(target) if isinstance(n, cst.Name)}:
                return True
    return False
