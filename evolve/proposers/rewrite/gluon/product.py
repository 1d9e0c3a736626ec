"""A tiled product as a Triton kernel writes it: its loop over K, operands, the tile a program computes, its stores.

Everything is read from the source by structure: which loads a ``dot`` multiplies, where their tiles begin, which names
number the tiles of rows and of columns, and which statements the result needs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import parameters, resolve
from tilewright.evolve.proposers.rewrite.gluon.statements import (
    Statement,
    calls,
    device_call,
    is_idle,
    statements_of,
)
from tilewright.evolve.proposers.rewrite.triton.descriptors import address_of
from tilewright.evolve.proposers.rewrite.triton.view import (
    TritonKernel,
    argument,
    device_calls,
    device_name,
)


@dataclass(frozen=True)
class Axis:
    """One axis of a tile: first element, and how many, as texts of the kernel."""

    start: str
    extent: str


@dataclass(frozen=True)
class Tile:
    """A two-dimensional tile of a tensor of the host: ``outer`` and ``inner`` (contiguous) axis.

    ``turned``: the kernel's value has the contiguous axis first.
    """

    tensor: str
    outer: Axis
    inner: Axis
    turned: bool

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns of the value."""
        return (self.inner, self.outer) if self.turned else (self.outer, self.inner)


@dataclass(frozen=True)
class StoredTile:
    """A store of the whole tile: the statement, the value's text and where it goes."""

    statement: Statement
    value: str
    tile: Tile


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
    outer, body = _program(kernel)
    place, loop = _loop(kernel, body)
    call = device_calls(kernel.source, loop, "dot")[0]
    left, right = (_operand(kernel, call.args[i].value, loop) for i in (0, 1))
    if left.axes[1].extent != right.axes[0].extent:
        raise Unsupported("operands of a dot with different depths")
    row_tile, column_tile = _numbered(kernel, left.axes[0]), _numbered(kernel, right.axes[1])
    if row_tile == column_tile:
        raise Unsupported("one name numbers tiles of rows and of columns")
    numbering = {
        n.id for t in (row_tile, column_tile) for n in ast.walk(ast.parse(t)) if isinstance(n, ast.Name)
    }
    bounds = [cst.parse_expression(axis.start) for axis in (left.axes[1], right.axes[0])]
    for place_of_step in (*bounds, loop.iter):
        if numbering & kernel.definition_closure(place_of_step):
            raise Unsupported("a loop over K that depends on the tile")
    naming = _Naming(kernel, {"row_tile": row_tile, "column_tile": column_tile})
    tree = naming.of_loop(_tree(kernel, loop))
    inside = [Statement(node) for node in tree.body]
    dots = [s for s in inside if calls(s.node, kernel.tl, "dot")]
    if len(dots) != 1 or isinstance(dots[0].node, ast.For | ast.If | ast.While):
        raise Unsupported("a dot that is not a statement of its loop")
    before, after = (naming.of_statements(_texts(kernel, part)) for part in (body[:place], body[place + 1 :]))
    product = Product(
        kernel,
        tuple(_texts(kernel, outer)),
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
            StoredTile(
                naming.of_statements([s.statement])[0], naming.of_text(s.value), naming.of_tile(s.tile)
            )
            for s in _stores(kernel, body[place + 1 :], row_tile, column_tile)
        ),
    )
    _refuse(product)
    return product


class _Naming(ast.NodeTransformer):
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
        return Tile(tile.tensor, outer, inner, tile.turned)

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


def _texts(kernel: TritonKernel, nodes: Sequence[cst.CSTNode]) -> list[Statement]:
    text = "\n".join(_dedented(kernel, node) for node in nodes)
    return [s for s in statements_of(text) if not is_idle(s, kernel.tl)]


def _dedented(kernel: TritonKernel, node: cst.CSTNode) -> str:
    if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        node = node.with_changes(leading_lines=[])
    return cst.Module(body=[]).code_for_node(node).strip("\n")


def _tree(kernel: TritonKernel, loop: cst.For) -> ast.For:
    (node,) = ast.parse(_dedented(kernel, loop)).body
    assert isinstance(node, ast.For)
    return node


def _program(kernel: TritonKernel) -> tuple[Sequence[cst.CSTNode], Sequence[cst.CSTNode]]:
    """(statements before a loop over tiles, statements of one program)."""
    body = list(kernel.body)
    for place, statement in enumerate(body):
        nested = isinstance(statement, cst.For) and any(
            isinstance(inner, cst.For) and device_calls(kernel.source, inner, "dot")
            for inner in walk(statement.body)
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
    return {name for s in _texts(kernel, nodes) for name in s.writes}


def _loop(kernel: TritonKernel, body: Sequence[cst.CSTNode]) -> tuple[int, cst.For]:
    found = [
        (i, s) for i, s in enumerate(body) if isinstance(s, cst.For) and device_calls(kernel.source, s, "dot")
    ]
    if len(found) != 1 or len(device_calls(kernel.source, kernel.function, "dot")) != 1:
        raise Unsupported("not one loop with one dot")
    place, loop = found[0]
    ranged = isinstance(loop.iter, cst.Call) and kernel.source.code(loop.iter.func) in (
        "range",
        f"{kernel.tl}.range",
    )
    if not ranged or not isinstance(loop.target, cst.Name) or loop.orelse is not None:
        raise Unsupported("a loop over something other than a range")
    return place, loop


def _accumulates(dot: Statement, inside: Sequence[Statement], tl: str) -> str | None:
    node = dot.node
    name = None
    if (
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and device_call(node.value, tl) == "dot"
    ):
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


# -- operands -----------------------------------------------------------------------------------------------


def _operand(kernel: TritonKernel, node: cst.BaseExpression, loop: cst.For) -> Tile:
    """The tile that an operand of a dot is loaded from. Raises Unsupported for one that is computed."""
    if isinstance(node, cst.Name):
        value = kernel.value_of(node.value)
        if value is None:
            raise Unsupported(f"operand {node.value} is bound several times")
        return _operand(kernel, value, loop)
    if isinstance(node, cst.IfExp):
        one, two = _operand(kernel, node.body, loop), _operand(kernel, node.orelse, loop)
        if one != two:
            raise Unsupported("an operand loaded from one of two places")
        return one
    if isinstance(node, cst.Attribute) and node.attr.value == "T":
        return _turned(_operand(kernel, node.value, loop))
    if isinstance(node, cst.Call):
        name = device_name(kernel.source, node.func)
        if name == "trans" and len(node.args) == 1:
            return _turned(_operand(kernel, node.args[0].value, loop))
        if name == "load":
            return _loaded(kernel, node)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "load":
            return _described(kernel, node)
    raise Unsupported(f"an operand computed by {kernel.source.code(node)[:40]}")


def _turned(tile: Tile) -> Tile:
    return Tile(tile.tensor, tile.outer, tile.inner, not tile.turned)


def _loaded(kernel: TritonKernel, call: cst.Call) -> Tile:
    other = argument(call, "other", 2)
    if other is not None and kernel.source.code(other) not in ("0", "0.0"):
        raise Unsupported("an operand padded with something other than zero")
    mask = argument(call, "mask", 1)
    if mask is not None and not within_bounds(kernel, mask):
        raise Unsupported("an operand whose mask is more than its tensor's bounds")
    address = address_of(kernel, call.args[0].value, call)
    if address is None:
        raise Unsupported(f"an address that is no tile: {kernel.source.code(call)[:40]}")
    rows, columns = (Axis(a.start, a.extent) for a in (address.rows, address.columns))
    if address.contiguous_columns(kernel):
        return Tile(address.tensor, rows, columns, False)
    return Tile(address.tensor, columns, rows, True)


def _described(kernel: TritonKernel, call: cst.Call) -> Tile:
    """``desc.load([row, column])`` of a descriptor made on the host or in the kernel."""
    assert isinstance(call.func, cst.Attribute)
    where = call.args[0].value
    if not isinstance(where, cst.List | cst.Tuple) or len(where.elements) != 2:
        raise Unsupported("a descriptor's load that is no tile")
    starts = [kernel.source.code(e.value) for e in where.elements]
    tensor, extents = described_tensor(kernel, call.func.value)
    rows, columns = (Axis(s, e) for s, e in zip(starts, extents, strict=True))
    return Tile(tensor, rows, columns, False)


def described_tensor(kernel: TritonKernel, node: cst.BaseExpression) -> tuple[str, list[str]]:
    """(tensor of the host, extents of the box in the kernel's words) of a descriptor."""
    name = kernel.source.code(node)
    made = kernel.value_of(name)
    if isinstance(made, cst.Call) and device_name(kernel.source, made.func) == "make_tensor_descriptor":
        base, box = argument(made, "base", 0), argument(made, "block_shape", 3)
        if base is None or not isinstance(box, cst.List | cst.Tuple):
            raise Unsupported("a descriptor without a literal box")
        given = kernel.given(kernel.source.code(base))
        if given is None:
            raise Unsupported("a descriptor of an address that is computed")
        return kernel.source.code(given), [kernel.source.code(e.value) for e in box.elements]
    given = kernel.given(name)
    made = resolve(kernel.source, given) if given is not None else None
    if not isinstance(made, cst.Call) or not kernel.source.qualified(made.func).endswith("TensorDescriptor"):
        raise Unsupported(f"{name} is no descriptor that is understood")
    tensor, box = argument(made, "base", 0), argument(made, "block_shape", 3)
    if tensor is None or not isinstance(box, cst.List | cst.Tuple):
        raise Unsupported("a descriptor without a literal box")
    return kernel.source.code(tensor), [_in_kernel(kernel, e.value) for e in box.elements]


def _in_kernel(kernel: TritonKernel, host: cst.BaseExpression) -> str:
    """What the kernel calls a value that the launch passes it."""
    text = kernel.source.code(host)
    if text.isdigit():
        return text
    wanted = kernel.source.code(resolve(kernel.source, host))
    for parameter in parameters(kernel.function):
        given = kernel.given(parameter.name.value)
        if given is not None and parameter.name.value in kernel.constexprs:
            same = kernel.source.code(given) == text
            if same or kernel.source.code(resolve(kernel.source, given)) == wanted:
                return parameter.name.value
    raise Unsupported(f"a box of {text}, which the kernel is not told")


def within_bounds(kernel: TritonKernel, mask: cst.BaseExpression) -> bool:
    """Whether a mask only says ``index < extent``, with extents that are sides of the launch's tensors."""
    if isinstance(mask, cst.Name):
        value = kernel.value_of(mask.value)
        return value is not None and within_bounds(kernel, value)
    if isinstance(mask, cst.BinaryOperation) and isinstance(mask.operator, cst.BitAnd):
        return within_bounds(kernel, mask.left) and within_bounds(kernel, mask.right)
    if isinstance(mask, cst.Subscript):
        return within_bounds(kernel, mask.value)
    if not isinstance(mask, cst.Comparison) or len(mask.comparisons) != 1:
        return False
    (compared,) = mask.comparisons
    if not isinstance(compared.operator, cst.LessThan):
        return False
    names = {n.value for n in walk(compared.comparator) if isinstance(n, cst.Name)}
    own = {p.name.value for p in parameters(kernel.function)} - kernel.constexprs
    extents = names & own
    return bool(extents) and all(_is_extent(kernel, name) for name in extents)


def _is_extent(kernel: TritonKernel, name: str) -> bool:
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


def _numbered(kernel: TritonKernel, axis: Axis) -> str:
    """``x`` of an axis that begins at ``x * extent``."""
    node = cst.parse_expression(axis.start)
    seen = 0
    while isinstance(node, cst.Name) and seen < 4:
        value, seen = kernel.value_of(node.value), seen + 1
        if value is None:
            break
        node = value
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        sides = [kernel.source.code(side) for side in (node.left, node.right)]
        for mine, other in (sides, sides[::-1]):
            if "".join(other.split()) == axis.extent and not mine.isdigit():
                return mine
    raise Unsupported(f"a tile that begins at {axis.start[:40]}, no multiple of its extent")


# -- stores -------------------------------------------------------------------------------------------------


def _stores(
    kernel: TritonKernel, nodes: Sequence[cst.CSTNode], row_tile: str, column_tile: str
) -> list[StoredTile]:
    """Stores of the whole tile that a copy can make."""
    found = []
    for node in nodes:
        if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
            continue
        line = node.body[0]
        call = line.value if isinstance(line, cst.Expr) else None
        if not isinstance(call, cst.Call):
            continue
        try:
            pair = _stored(kernel, call)
            if pair and (_numbered(kernel, pair[1].axes[0]), _numbered(kernel, pair[1].axes[1])) == (
                row_tile,
                column_tile,
            ):
                (statement,) = statements_of(_dedented(kernel, node))
                found.append(StoredTile(statement, *pair))
        except Unsupported:
            continue
    return found


def _stored(kernel: TritonKernel, call: cst.Call) -> tuple[str, Tile] | None:
    """(value, tile) of a store; None for one that is no copy of a box."""
    if device_name(kernel.source, call.func) == "store" and len(call.args) >= 2:
        mask = argument(call, "mask", 2)
        if mask is not None and not within_bounds(kernel, mask):
            return None
        address = address_of(kernel, call.args[0].value, call)
        if address is None or not address.contiguous_columns(kernel):
            return None
        rows, columns = (Axis(a.start, a.extent) for a in (address.rows, address.columns))
        return kernel.source.code(call.args[1].value), Tile(address.tensor, rows, columns, False)
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "store" and len(call.args) == 2:
        tensor, extents = described_tensor(kernel, call.func.value)
        where = call.args[0].value
        if not isinstance(where, cst.List | cst.Tuple) or len(where.elements) != 2:
            return None
        starts = [kernel.source.code(e.value) for e in where.elements]
        rows, columns = (Axis(s, e) for s, e in zip(starts, extents, strict=True))
        return kernel.source.code(call.args[1].value), Tile(tensor, rows, columns, False)
    return None
