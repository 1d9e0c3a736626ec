"""A tile of a tensor of the host, as a kernel's text says it, and one behind a block pointer that a loop advances."""

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value
from tilewright.evolve.proposers.rewrite.gluon.masks import is_side
from tilewright.evolve.proposers.rewrite.triton.descriptors import is_unit
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, argument, device_name, turn_of


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

    limit: str = ""
    """What its rows stay below beside the tensor's side, as a text of the kernel."""

    sheets: tuple[str, ...] = ()
    """Of a tensor of three sides, whose sheets lie one under the other: what the host must find true of it."""

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns of the value."""
        return (self.inner, self.outer) if self.turned else (self.outer, self.inner)


_MADE = ("base", "shape", "strides", "offsets", "block_shape")


def block_tile(kernel: TritonKernel, call: cst.Call) -> Tile | None:
    """The tile that a load or store through a block pointer moves; None for one through something else.

    Raises Unsupported for a block pointer that is not followed.
    """
    pointer = call.args[0].value
    made, advances = _history(kernel, pointer) if isinstance(pointer, cst.Name) else (pointer, [])
    if not isinstance(made, cst.Call) or device_name(kernel.source, made.func) != "make_block_ptr":
        return None
    padding = argument(call, "padding_option", 4)
    if padding is not None and kernel.source.code(padding).strip("\"'") not in ("", "zero"):
        raise Unsupported("an operand padded with something other than zero")
    base, shape, strides, offsets, block = (argument(made, name, i) for i, name in enumerate(_MADE))
    given = kernel.given(base.value) if isinstance(base, cst.Name) else None
    if given is None:
        raise Unsupported("a block pointer to an address that is computed")
    sides, steps, starts, extents = (_pair(kernel, part) for part in (shape, strides, offsets, block))
    if not all(is_side(kernel, side) for side in sides):
        raise Unsupported("a block pointer whose shape is not its tensor's")
    for place in advances:
        starts = _advanced(kernel, call, place, starts)
    unit = [is_unit(kernel, step) for step in steps]
    if unit[0] == unit[1]:
        raise Unsupported("a block pointer without one contiguous axis")
    rows, columns = (Axis(start, extent) for start, extent in zip(starts, extents, strict=True))
    tensor = kernel.source.code(given)
    return Tile(tensor, rows, columns, False) if unit[1] else Tile(tensor, columns, rows, True)


def _history(kernel: TritonKernel, pointer: cst.Name) -> tuple[cst.BaseExpression | None, Sequence[cst.CSTNode]]:
    """(what makes a pointer, the statements that advance it)."""
    made: cst.BaseExpression | None = None
    advances = []
    for place in kernel.bound.get(pointer.value, ()):
        found = assigned_value(place)
        if found is None or len(found[0]) != 1:
            return None, []
        value = found[1]
        moves = isinstance(value, cst.Call) and device_name(kernel.source, value.func) == "advance"
        if moves and isinstance(value, cst.Call) and kernel.source.code(value.args[0].value) == pointer.value:
            advances.append(place)
        elif made is None:
            made = value
        else:
            return None, []
    return made, advances


def _advanced(kernel: TritonKernel, call: cst.Call, place: cst.CSTNode, starts: Sequence[str]) -> list[str]:
    """Where the tile begins in a turn of the loop that advances its pointer after it is used."""
    loop = kernel.source.enclosing(place, cst.For)
    turn = turn_of(kernel.source, loop) if loop is not None else None
    if loop is None or turn is None or kernel.source.enclosing(call, cst.For) is not loop:
        raise Unsupported("a block pointer advanced outside its loop")
    lines = list(loop.body.body)
    if lines.index(kernel.source.statement(call)) > lines.index(place):
        raise Unsupported("a block pointer advanced before it is used")
    found = assigned_value(place)
    assert found is not None and isinstance(found[1], cst.Call)
    return [
        start if move == "0" else f"{turn} * ({move})" if start == "0" else f"{start} + {turn} * ({move})"
        for start, move in zip(starts, _pair(kernel, argument(found[1], "offsets", 1)), strict=True)
    ]


def _pair(kernel: TritonKernel, node: cst.BaseExpression | None) -> list[str]:
    if not isinstance(node, cst.Tuple | cst.List) or len(node.elements) != 2:
        raise Unsupported("a block pointer of other than two axes")
    return [kernel.source.code(element.value) for element in node.elements]
