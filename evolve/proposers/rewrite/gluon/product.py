"""A tiled product as a Triton kernel writes it: its loop over K, operands, the tile a program computes, its stores.

Everything is read from the source by structure: which loads a ``dot`` multiplies, where their tiles begin, which names
number the tiles of rows and of columns, and which statements the result needs.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import dedented
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, calls, device_call, is_idle, statements_of
from tilewright.evolve.proposers.rewrite.gluon.tile import Axis, Tile
from tilewright.evolve.proposers.rewrite.gluon.tiles import StoredTile, numbered, operand, stores
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, argument, device_calls


@dataclass(frozen=True)
class Product:
    """What ``read`` finds. ``before``, ``body`` and ``after`` are the statements around and in the loop over K."""

    kernel: TritonKernel
    outside: tuple[Statement, ...]
    """Before a loop over tiles, if the kernel has one."""

    before: tuple[Statement, ...]
    loop: ast.For
    body: tuple[Statement, ...]
    after: tuple[Statement, ...]
    dot: Statement
    accumulates: str | None
    """The name a product adds to itself, which nothing else in the loop touches."""

    left: Tile
    right: Tile
    row_tile: str
    """The name that numbers tiles of rows; ``row_tile * rows`` is the first row."""

    column_tile: str
    stored: tuple[StoredTile, ...]

    column_number: str
    """What the old kernel says for ``column_tile``."""

    shared: bool = False
    """Whether groups of warps share the rows of one tile, which may begin anywhere, in place of a tile each. Tiles
    are numbered by the axes of the grid then."""

    @property
    def rows(self) -> str:
        return self.left.axes[0].extent

    @property
    def columns(self) -> str:
        return self.right.axes[1].extent

    @property
    def depth(self) -> str:
        return self.left.axes[1].extent


def read(kernel: TritonKernel) -> Product:
    """Raises Unsupported with what is not understood."""
    outer, body = program_of(kernel)
    place, loop = loop_of(kernel, body)
    call = device_calls(kernel.source, loop, "dot")[0]
    left, right = (operand(kernel, call.args[i].value, loop) for i in (0, 1))
    if left.axes[1].extent != right.axes[0].extent:
        raise Unsupported("operands of a dot with different depths")
    column_tile = numbered(kernel, right.axes[1])
    row_tile, shared = _row_tile(kernel, left, column_tile)
    if row_tile == column_tile:
        raise Unsupported("one name numbers tiles of rows and of columns")
    if right.limit or (right.sheets and not shared):
        raise Unsupported("an operand whose mask is more than its tensor's bounds")
    numbers = (column_tile,) if shared else (row_tile, column_tile)
    bounds = [cst.parse_expression(axis.start) for axis in (left.axes[1], right.axes[0])]
    if any(_depends(kernel, place_of_step, n) for place_of_step in (*bounds, loop.iter) for n in numbers):
        raise Unsupported("a loop over K that depends on the tile")
    naming = Naming(kernel, {"row_tile": row_tile, "column_tile": column_tile})
    tree = naming.of_loop(_tree(kernel, loop))
    inside = [Statement(node) for node in tree.body]
    dots = [s for s in inside if calls(s.node, kernel.tl, "dot")]
    if len(dots) != 1 or isinstance(dots[0].node, ast.For | ast.If | ast.While):
        raise Unsupported("a dot that is not a statement of its loop")
    before, after = (naming.of_statements(statement_texts(kernel, part)) for part in (body[:place], body[place + 1 :]))
    product = Product(
        kernel,
        tuple(statement_texts(kernel, outer)),
        tuple(before),
        tree,
        tuple(s for s in inside if not is_idle(s, kernel.tl)),
        tuple(after),
        dots[0],
        _accumulates(dots[0], inside, kernel.tl),
        naming.of_tile(left),
        naming.of_tile(right),
        naming.names["row_tile"],
        naming.names["column_tile"],
        tuple(
            StoredTile(naming.of_statements([s.statement])[0], naming.of_text(s.value), naming.of_tile(s.tile))
            for s in stores(kernel, body[place + 1 :], left.axes[0], column_tile, left.limit)
        ),
        column_tile,
        shared,
    )
    _refuse(product)
    return product


def _row_tile(kernel: TritonKernel, left: Tile, column_tile: str) -> tuple[str, bool]:
    """(what numbers tiles of rows, whether they may begin anywhere)."""
    try:
        if left.limit:
            raise Unsupported("an operand whose mask is more than its tensor's bounds")
        return numbered(kernel, left.axes[0]), False
    except Unsupported as refused:
        axes = {}
        for call in device_calls(kernel.source, kernel.function, "program_id"):
            axis = argument(call, "axis", 0)
            names = [n for n in kernel.bound if kernel.value_of(n) is call]
            text = names[0] if names else kernel.source.code(call)
            if not isinstance(axis, cst.Integer) or axis.evaluated_value in axes:
                raise refused from None
            axes[axis.evaluated_value] = text
        same_extents = left.axes[0].extent == left.axes[1].extent
        if set(axes) != {0, 1} or column_tile not in axes.values() or len(kernel.grid()) != 2 or same_extents:
            raise refused from None
        return next(text for text in axes.values() if text != column_tile), True


def _depends(kernel: TritonKernel, node: cst.BaseExpression, number: str) -> bool:
    """Whether an expression depends on what numbers tiles."""
    names = {n.id for n in ast.walk(ast.parse(number)) if isinstance(n, ast.Name)} - {kernel.tl}
    closure = kernel.definition_closure(node)
    if number.isidentifier() or names & closure:
        return bool(names & closure)
    places = [node, *(place for name in closure for place in kernel.bound.get(name, ()))]
    return any(number in kernel.source.code(p.iter if isinstance(p, cst.For) else p) for p in places)


class Naming(ast.NodeTransformer):
    """Gives the expressions that number tiles names, where they have none."""

    def __init__(self, kernel: TritonKernel, expressions: Mapping[str, str]) -> None:
        self.names, self.known = {}, {}
        for wanted, text in expressions.items():
            self.names[wanted] = text if text.isidentifier() else kernel.source.fresh(wanted)
            if not text.isidentifier():
                self.known[ast.unparse(ast.parse(text, mode="eval"))] = self.names[wanted]

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and self.known and (name := self.known.get(ast.unparse(node))):
            return ast.Name(name, ast.Load())
        return self.generic_visit(node)

    def of_text(self, text: str) -> str:
        return ast.unparse(self.visit(ast.parse(text, mode="eval").body))

    def of_tile(self, tile: Tile) -> Tile:
        outer, inner = (Axis(self.of_text(a.start), a.extent) for a in (tile.outer, tile.inner))
        limit = self.of_text(tile.limit) if tile.limit else ""
        return replace(tile, outer=outer, inner=inner, limit=limit)

    def of_statements(self, statements: Sequence[Statement]) -> list[Statement]:
        return [Statement(ast.parse(ast.unparse(self.visit(ast.parse(s.text)))).body[0]) for s in statements]

    def of_loop(self, loop: ast.For) -> ast.For:
        (made,) = ast.parse(ast.unparse(self.visit(ast.parse(ast.unparse(loop))))).body
        assert isinstance(made, ast.For)
        return made


def _refuse(product: Product) -> None:
    tl = product.kernel.tl
    everything = [*product.outside, *product.before, *product.body, *product.after]
    for statement in everything:
        if any(isinstance(n, ast.Return | ast.While) for n in ast.walk(statement.node)):
            raise Unsupported("a program that returns early or loops while a condition holds")
        if any(n for n in ast.walk(statement.node) if device_call(n, tl).startswith("atomic")):
            raise Unsupported("atomics, where programs past the end would add twice")
    for statement in [*product.outside, *product.before, *product.body]:
        if calls(statement.node, tl, "store"):
            raise Unsupported("a store before the last step of K")


def statement_texts(kernel: TritonKernel, nodes: Sequence[cst.CSTNode]) -> list[Statement]:
    text = "\n".join(dedented(kernel.source, node) for node in nodes)
    return [s for s in statements_of(text) if not is_idle(s, kernel.tl)]


def _tree(kernel: TritonKernel, loop: cst.For) -> ast.For:
    (node,) = ast.parse(dedented(kernel.source, loop)).body
    assert isinstance(node, ast.For)
    return node


def program_of(kernel: TritonKernel) -> tuple[Sequence[cst.CSTNode], Sequence[cst.CSTNode]]:
    """(statements before a loop over tiles, statements of one program)."""
    body = list(kernel.body)
    for place, statement in enumerate(body):
        nested = isinstance(statement, cst.For) and any(
            isinstance(inner, cst.For) and device_calls(kernel.source, inner, "dot") for inner in walk(statement.body)
        )
        if nested:
            assert isinstance(statement, cst.For)
            if place != len(body) - 1:
                raise Unsupported("statements after a loop over tiles")
            bound = _bound(kernel, body[:place]) & _bound(kernel, list(statement.body.body))
            if bound:
                raise Unsupported(f"a loop over tiles that carries {min(bound)}")
            return body[:place], list(statement.body.body)
    return [], body


def _bound(kernel: TritonKernel, nodes: Sequence[cst.CSTNode]) -> set[str]:
    return {name for s in statement_texts(kernel, nodes) for name in s.writes}


def loop_of(kernel: TritonKernel, body: Sequence[cst.CSTNode]) -> tuple[int, cst.For]:
    found = [(i, s) for i, s in enumerate(body) if isinstance(s, cst.For) and device_calls(kernel.source, s, "dot")]
    if len(found) != 1 or len(device_calls(kernel.source, kernel.function, "dot")) != 1:
        raise Unsupported("not one loop with one dot")
    place, loop = found[0]
    ranged = isinstance(loop.iter, cst.Call) and kernel.source.code(loop.iter.func) in ("range", f"{kernel.tl}.range")
    if not ranged or not isinstance(loop.target, cst.Name) or loop.orelse is not None:
        raise Unsupported("a loop over something other than a range")
    return place, loop


def _accumulates(dot: Statement, inside: Sequence[Statement], tl: str) -> str | None:
    node = dot.node
    name = None
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and device_call(node.value, tl) == "dot":
        name = node.target.id if isinstance(node.target, ast.Name) else None
    elif isinstance(node, ast.Assign) and device_call(node.value, tl) == "dot":
        assert isinstance(node.value, ast.Call)
        target = node.targets[0]
        given = [*node.value.args[2:3], *(k.value for k in node.value.keywords if k.arg == "acc")]
        if given and isinstance(target, ast.Name) and ast.unparse(given[0]) == target.id:
            name = target.id
        elif given:
            raise Unsupported("a dot that adds to another name")
    if name is None or any(name in s.reads | s.writes for s in inside if s is not dot):
        return None
    return name
