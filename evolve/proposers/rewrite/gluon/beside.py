"""Loads beside the operands': one number for each row of the tile in each step, such as a scale; the ring can carry it.

``load(base + place + step * stride)``, where ``place`` are the rows of the tile, is a run of memory that one bulk copy
brings. Rows past the tensor's end may then hold other numbers, so nothing behind the product may mix rows.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.gluon.masks import is_side
from tilewright.evolve.proposers.rewrite.gluon.schedule import Plan
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, device_call
from tilewright.evolve.proposers.rewrite.sums import Sum, SumReader
from tilewright.fitness.dialect_names import names

MIXING = names(
    "argmax argmin associative_scan cat cumprod cumsum flip gather histogram join max min permute reduce "
    "reshape sort split sum topk trans view xor_sum T"
)
"""What may bring the value of one row into another."""


@dataclass(frozen=True)
class RowNumbers:
    """``name`` is bound by ``statement`` to numbers of ``tensor`` (the host's text), from ``offset`` plus the first
    row on; ``strides`` are the parameters that a step's offset is a multiple of."""

    statement: Statement
    name: str
    tensor: str
    offset: str
    strides: tuple[str, ...]


def row_numbers(plan: Plan) -> RowNumbers | None:
    """The first such load that nothing else before the product needs."""
    if mixes_rows(plan):
        return None
    for statement in plan.early:
        if any(s is not statement and statement.writes & (s.reads | s.writes) for s in plan.early):
            continue
        found = _read(statement, plan)
        if found is not None:
            return found
    return None


def mixes_rows(plan: Plan) -> bool:
    """Whether something behind the product may bring the value of one row into another."""
    return mixes((*plan.late, *plan.after), plan)


def mixes(statements: Sequence[Statement], plan: Plan) -> bool:
    """Whether one of them may bring the value of one row or column into another."""
    return any(_mixes(s.node, plan) for s in statements)


def _mixes(node: ast.AST, plan: Plan) -> bool:
    tl = plan.product.kernel.tl
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and device_call(part, tl) in MIXING:
            # ``max`` and ``min`` of two numbers mix nothing
            return not (device_call(part, tl) in ("max", "min") and len(part.args) > 1 and not part.keywords)
        if isinstance(part, ast.Attribute) and part.attr in MIXING and ast.unparse(part.value) != tl:
            return True
    return False


def _read(statement: Statement, plan: Plan) -> RowNumbers | None:
    node, product = statement.node, plan.product
    kernel = product.kernel
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
        return None
    call = node.value
    if not isinstance(call, ast.Call) or device_call(call, kernel.tl) != "load" or len(call.args) != 1:
        return None
    if any(k.arg not in ("cache_modifier", "eviction_policy") for k in call.keywords):
        return None
    turn = product.loop.target
    if not isinstance(turn, ast.Name):
        return None
    try:
        place = _Places(plan, {product.row_tile, product.column_tile, turn.id}).read(call.args[0])
    except Unsupported:
        return None
    bases = [n for (n, *rest), c in place.parts.items() if not rest and c == 1 and _tensor(n, plan)]
    if len(bases) != 1:
        return None
    rows = Sum({tuple(sorted((product.row_tile, product.rows))): 1, (f"@:{product.rows}",): 1})
    offset = place - rows - Sum({(bases[0],): 1})
    strides = [name for factors in offset.parts for name in factors if name != turn.id]
    plain = all(c == 1 and len(p) == 2 and turn.id in p for p, c in offset.parts.items())
    if not plain or not set(strides) <= set(_parameters(plan)):
        return None
    return RowNumbers(statement, node.targets[0].id, _tensor(bases[0], plan), offset.text(), tuple(strides))


class _Places(SumReader):
    """Reads places by what statements before the product bind once, but ``kept`` names; rows that are wrapped or held
    below a side of a tensor count as they are."""

    def __init__(self, plan: Plan, kept: set[str]) -> None:
        found = list[tuple[str, ast.expr | None]]()
        for statement in (*plan.product.outside, *plan.product.before, *plan.product.body):
            node = statement.node
            plain = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            found += [(name, node.value if plain else None) for name in statement.writes]  # type: ignore[attr-defined]
        names = [name for name, _ in found]
        bound = {n: v for n, v in found if v is not None and names.count(n) == 1 and n not in kept}
        super().__init__(plan.product.kernel.tl, bound, {})
        self.kernel = plan.product.kernel

    def read(self, node: ast.expr, depth: int = 0) -> Sum:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and self.varies(node):
            if is_side(self.kernel, ast.unparse(node.right)):
                return self.read(node.left, depth + 1)
        elif isinstance(node, ast.Call) and device_call(node, self.tl) == "minimum" and self.varies(node):
            side = node.args[1]
            last = isinstance(side, ast.BinOp) and isinstance(side.op, ast.Sub) and ast.unparse(side.right) == "1"
            if last and isinstance(side, ast.BinOp) and is_side(self.kernel, ast.unparse(side.left)):
                return self.read(node.args[0], depth + 1)
        return super().read(node, depth)


def _tensor(name: str, plan: Plan) -> str:
    """The host's tensor behind a pointer parameter; "" for another name."""
    kernel = plan.product.kernel
    given = kernel.given(name) if name not in kernel.constexprs else None
    text = kernel.source.code(given) if given is not None else ""
    return text if text and not is_side(kernel, name) and not text.isdigit() else ""


def _parameters(plan: Plan) -> Sequence[str]:
    kernel = plan.product.kernel
    return [p.name.value for p in kernel.function.params.params if p.name.value not in kernel.constexprs]
