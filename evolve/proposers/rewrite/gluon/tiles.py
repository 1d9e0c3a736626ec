"""Tiles of the host's tensors that a kernel loads and stores: where they begin, how far they reach, what masks them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.dataflow import dedented, parameters, resolve
from tilewright.evolve.proposers.rewrite.gluon.masks import row_limit, within_bounds
from tilewright.evolve.proposers.rewrite.gluon.statements import Statement, statements_of
from tilewright.evolve.proposers.rewrite.gluon.tile import Axis, Tile, block_tile
from tilewright.evolve.proposers.rewrite.sums import Sum
from tilewright.evolve.proposers.rewrite.triton.descriptors import Address, address_of, has_more_sides, tile_address
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, argument, device_name, range_of


@dataclass(frozen=True)
class StoredTile:
    """A store of the whole tile: the statement, the value's text and where it goes."""

    statement: Statement
    value: str
    tile: Tile


def operand(kernel: TritonKernel, node: cst.BaseExpression, loop: cst.For) -> Tile:
    """The tile that an operand of a dot is loaded from. Raises Unsupported for one that is computed."""
    if isinstance(node, cst.Name):
        value = kernel.value_of(node.value)
        if value is None:
            raise Unsupported(f"operand {node.value} is bound several times")
        return operand(kernel, value, loop)
    if isinstance(node, cst.IfExp):
        one, two = operand(kernel, node.body, loop), operand(kernel, node.orelse, loop)
        if one != two:
            raise Unsupported("an operand loaded from one of two places")
        return one
    if isinstance(node, cst.Attribute) and node.attr.value == "T":
        return _turned(operand(kernel, node.value, loop))
    if isinstance(node, cst.Call):
        name = device_name(kernel.source, node.func)
        if name == "trans" and len(node.args) == 1:
            return _turned(operand(kernel, node.args[0].value, loop))
        if name == "load":
            return _loaded(kernel, node)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "load":
            return _described(kernel, node)
    raise Unsupported(f"an operand computed by {kernel.source.code(node)[:40]}")


def _turned(tile: Tile) -> Tile:
    return replace(tile, turned=not tile.turned)


def _loaded(kernel: TritonKernel, call: cst.Call) -> Tile:
    block = block_tile(kernel, call)
    if block is not None:
        return block
    other = argument(call, "other", 2)
    if other is not None and kernel.source.code(other) not in ("0", "0.0"):
        raise Unsupported("an operand padded with something other than zero")
    address = address_of(kernel, call.args[0].value, call)
    if address is None:
        return _sheet(kernel, call)
    tile = _within(kernel, address, argument(call, "mask", 1))
    if tile is None or (tile.limit and tile.turned):
        raise Unsupported("an operand whose mask is more than its tensor's bounds")
    return tile


def _within(kernel: TritonKernel, address: Address, mask: cst.BaseExpression | None) -> Tile | None:
    """The tile of an address; None where a mask says more than its bounds and a limit of its rows."""
    rows, columns = (Axis(a.start, a.extent) for a in (address.rows, address.columns))
    limit = ""
    if mask is not None and not within_bounds(kernel, mask, (rows.start, columns.start)):
        limit = row_limit(kernel, mask, (rows.start, columns.start))
        if not limit:
            return None
    if address.contiguous_columns:
        return Tile(address.tensor, rows, columns, False, limit)
    return Tile(address.tensor, columns, rows, True, limit)


def _sheet(kernel: TritonKernel, call: cst.Call) -> Tile:
    """A tile ``base + sheet * height * width + rows[:, None] * width + columns[None, :]`` of three sides, whose rows
    are steps of K: where K is a multiple of a step, the tile of a matrix of all sheets under one another."""
    refused = Unsupported(f"an address that is no tile: {kernel.source.code(call)[:40]}")
    address = tile_address(kernel, call.args[0].value, call)
    loop = kernel.source.enclosing(call, cst.For)
    if address is None or loop is None or not address.contiguous_columns or not has_more_sides(kernel, address.base):
        raise refused
    rows, columns, width = address.rows, address.columns, address.rows.stride.text()
    heights = [
        (product, f)
        for product in rows.first.parts
        for f in product
        if f != width and kernel.given(f) is not None and f not in kernel.constexprs
    ]
    bounds = range_of(kernel.source, loop)
    if len(heights) != 1 or bounds is None:
        raise refused
    product, height = heights[0]
    step = rows.first - Sum({product: rows.first.parts[product]})
    if bounds != ("0", height, rows.extent):
        raise refused
    mask = argument(call, "mask", 1)
    if mask is not None and not within_bounds(kernel, mask, (step.text(), columns.start)):
        raise Unsupported("an operand whose mask is more than its tensor's bounds")
    tensor = address.tensor
    host = [kernel.source.code(kernel.given(n)) for n in (height, width)]  # type: ignore[arg-type]
    fits = (
        f"{host[0]} == {tensor}.shape[1]",
        f"{host[1]} == {tensor}.stride(1)",
        f"{tensor}.stride(0) == {tensor}.shape[1] * {tensor}.stride(1)",
        f"{host[0]} % {in_host(kernel, rows.extent)} == 0",
    )
    outer, inner = (Axis(a.start, a.extent) for a in (rows, columns))
    return Tile(tensor, outer, inner, False, "", fits)


def in_host(kernel: TritonKernel, extent: str) -> str:
    """A tile's extent as the host says it."""
    if extent.isdigit():
        return extent
    given = kernel.given(extent) if extent in kernel.constexprs else None
    if given is None:
        raise Unsupported(f"a tile extent that is no constexpr: {extent}")
    text = kernel.source.code(given)
    resolved = kernel.source.code(resolve(kernel.source, given))
    return resolved if '["' in resolved or "['" in resolved or resolved.isdigit() else text


def _described(kernel: TritonKernel, call: cst.Call) -> Tile:
    """``desc.load([row, column])`` of a descriptor made on the host or in the kernel."""
    assert isinstance(call.func, cst.Attribute)
    where = call.args[0].value
    if not isinstance(where, cst.List | cst.Tuple) or len(where.elements) != 2:
        raise Unsupported("a descriptor's load that is no tile")
    starts = [kernel.source.code(e.value) for e in where.elements]
    tensor, extents = _described_tensor(kernel, call.func.value)
    rows, columns = (Axis(s, e) for s, e in zip(starts, extents, strict=True))
    return Tile(tensor, rows, columns, False)


def _described_tensor(kernel: TritonKernel, node: cst.BaseExpression) -> tuple[str, list[str]]:
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


def numbered(kernel: TritonKernel, axis: Axis) -> str:
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


def stores(
    kernel: TritonKernel, nodes: Sequence[cst.CSTNode], rows: Axis, column_tile: str, limit: str
) -> list[StoredTile]:
    """Stores of the whole tile that a copy can make; with ``limit``, of tiles whose rows all are below it."""
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
            if (
                pair
                and pair[1].limit == limit
                and (pair[1].axes[0] == rows if limit else numbered(kernel, pair[1].axes[0]) == numbered(kernel, rows))
                and numbered(kernel, pair[1].axes[1]) == column_tile
            ):
                (statement,) = statements_of(dedented(kernel.source, node))
                found.append(StoredTile(statement, *pair))
        except Unsupported:
            continue
    return found


def _stored(kernel: TritonKernel, call: cst.Call) -> tuple[str, Tile] | None:
    """(value, tile) of a store; None for one that is no copy of a box."""
    if device_name(kernel.source, call.func) == "store" and len(call.args) >= 2:
        block = block_tile(kernel, call)
        if block is not None:
            return None if block.turned else (kernel.source.code(call.args[1].value), block)
        address = address_of(kernel, call.args[0].value, call)
        if address is None or not address.contiguous_columns:
            return None
        tile = _within(kernel, address, argument(call, "mask", 2))
        return None if tile is None else (kernel.source.code(call.args[1].value), tile)
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "store" and len(call.args) == 2:
        return kernel.source.code(call.args[1].value), _described(kernel, call)
    return None
