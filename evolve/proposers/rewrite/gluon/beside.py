"""Loads beside the operands': one number for each row of the tile in each step, such as a scale; the ring can carry it.

``load(base + place + step * stride)``, where ``place`` are the rows of the tile, is a run of memory that one bulk copy
brings. Rows past the tensor's end may then hold other numbers, so nothing behind the product may mix rows.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.evolve.proposers.rewrite.gluon.schedule import Plan
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, calls, device_call
from tilewright.evolve.proposers.rewrite.triton.masks import is_side
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
    if not (
        isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    ):
        return None
    call = node.value
    if not isinstance(call, ast.Call) or device_call(call, kernel.tl) != "load" or len(call.args) != 1:
        return None
    if any(k.arg not in ("cache_modifier", "eviction_policy") for k in call.keywords):
        return None
    turn = product.loop.target
    if not isinstance(turn, ast.Name):
        return None
    stop = {product.row_tile, product.column_tile, turn.id}
    terms = _terms(_expanded(call.args[0], _definitions(plan), stop, 8))
    bases = [t for t in terms if isinstance(t, ast.Name) and _tensor(t.id, plan)]
    rows = [t for t in terms if _is_rows(t, plan)]
    others = [t for t in terms if t not in bases and t not in rows]
    strides = [_stride(t, turn.id, plan) for t in others]
    if len(bases) != 1 or len(rows) != 1 or not all(strides):
        return None
    base = bases[0]
    assert isinstance(base, ast.Name)
    tensor = _tensor(base.id, plan)
    offset = " + ".join(f"({ast.unparse(t)})" for t in others) or "0"
    return RowNumbers(statement, node.targets[0].id, tensor, offset, tuple(s for s in strides if s))


def _definitions(plan: Plan) -> Mapping[str, ast.expr]:
    """Names that one statement before the loop binds."""
    found: dict[str, ast.expr] = {}
    several: set[str] = set()
    for statement in (*plan.product.outside, *plan.product.before, *plan.product.body):
        for name in statement.writes:
            node = statement.node
            plain = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if name in found or not plain:
                several.add(name)
            elif isinstance(node, ast.Assign):
                found[name] = node.value
    return {name: value for name, value in found.items() if name not in several}


def _expanded(node: ast.expr, known: Mapping[str, ast.expr], stop: set[str], depth: int) -> ast.expr:
    class Expand(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            if name.id in stop or name.id not in known or depth == 0:
                return name
            fresh = ast.parse(ast.unparse(known[name.id]), mode="eval").body
            return _expanded(fresh, known, stop, depth - 1)

    made = Expand().visit(node)
    assert isinstance(made, ast.expr)
    return ast.parse(ast.unparse(ast.fix_missing_locations(made)), mode="eval").body


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]


def _tensor(name: str, plan: Plan) -> str:
    """The host's tensor behind a pointer parameter; "" for another name."""
    kernel = plan.product.kernel
    given = kernel.given(name) if name not in kernel.constexprs else None
    text = kernel.source.code(given) if given is not None else ""
    return text if text and not is_side(kernel, name) and not text.isdigit() else ""


def _is_rows(node: ast.expr, plan: Plan) -> bool:
    """``row_tile * ROWS + arange(0, ROWS)``, perhaps held below a side of a tensor."""
    product = plan.product
    tl = product.kernel.tl
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        return _is_rows(node.func.value, plan)
    if isinstance(node, ast.Call) and (device_call(node, tl) == "minimum" and len(node.args) == 2):
        side = node.args[1]
        last = isinstance(side, ast.BinOp) and isinstance(side.op, ast.Sub) and ast.unparse(side.right) == "1"
        held = last and isinstance(side, ast.BinOp) and is_side(product.kernel, ast.unparse(side.left))
        return held and _is_rows(node.args[0], plan)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return is_side(product.kernel, ast.unparse(node.right)) and _is_rows(node.left, plan)
    parts = {"".join(ast.unparse(t).split()) for t in _terms(node)}
    ranges = calls(node, tl, "arange")
    start = f"{product.row_tile}*{product.rows}"
    return len(ranges) == 1 and parts == {start, f"{tl}.arange(0,{product.rows})"}


def _stride(node: ast.expr, turn: str, plan: Plan) -> str:
    """``s`` of ``turn * s``, a parameter; "" for another term."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return ""
    sides = [ast.unparse(node.left), ast.unparse(node.right)]
    for one, other in (sides, sides[::-1]):
        if one == turn and other in _parameters(plan):
            return other
    return ""


def _parameters(plan: Plan) -> Sequence[str]:
    kernel = plan.product.kernel
    return [p.name.value for p in kernel.function.params.params if p.name.value not in kernel.constexprs]
