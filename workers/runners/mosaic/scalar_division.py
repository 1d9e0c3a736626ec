"""Scalar divisions of a kernel, written as shifts and products: libtpu's simulator cannot follow a division.

After ``arith.divsi`` a register counts as unknown, and a loop whose bound follows from it runs no turn in the
simulation. Divisions by constants are exact as shifts (powers of two) or, where the dividend's range is known from the
grid, as a product and a shift. What is left is noticed when the work done is counted (``fitness.tpu.simulation``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir

from tilewright.workers.runners.mosaic import ir as read
from tilewright.workers.runners.mosaic.scalar_flow import COMPARE

_WORD = 31
_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui", "arith.floordivsi")
_SAME = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "tpu.assume_multiple")

Range = tuple[int, int]


def _corners(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    def of(a: Range, b: Range) -> Range:
        found = [function(x, y) for x in a for y in b]
        return min(found), max(found)

    return of


_RANGES: Mapping[str, Callable[[Range, Range], Range]] = {
    "arith.addi": _corners(lambda a, b: a + b),
    "arith.subi": _corners(lambda a, b: a - b),
    "arith.muli": _corners(lambda a, b: a * b),
    "arith.maxsi": _corners(max),
    "arith.minsi": _corners(min),
}


def without_divisions(kernel: read.MosaicKernel) -> int:
    """Rewrite the kernel's scalar divisions by constants in place; how many there were."""
    found = 0
    for function in (kernel.function, *kernel.index_maps):
        arguments = list(function.operation.regions[0].blocks[0].arguments)
        grid = dict(zip(arguments, kernel.grid, strict=False))
        divisions = [op for op in read.walk(function) if read.name_of(op) in _DIVISIONS]
        for op in divisions:
            found += _rewrite(op, grid)
    return found


def _rewrite(op: Any, grid: Mapping[Any, int]) -> bool:
    dividend, divisor = op.operation.operands
    kind = str(dividend.type)
    by = _constant_of(divisor)
    if by is None or by < 1 or kind not in ("i32", "index"):
        return False
    known = _range(dividend, grid)
    name = read.name_of(op)
    with ir.InsertionPoint(op):
        x = dividend if kind == "i32" else read.made("arith.index_cast", "i32", [dividend])
        quotient = _quotient(x, by, known, rounds_down=name == "arith.floordivsi")
        if quotient is None:
            return False
        if "rem" in name:
            quotient = read.made(
                "arith.subi", "i32", [x, read.made("arith.muli", "i32", [quotient, read.constant("i32", by)])]
            )
        if kind == "index":
            quotient = read.made("arith.index_cast", "index", [quotient])
    op.operation.results[0].replace_all_uses_with(quotient)
    op.operation.erase()
    return True


def _quotient(x: Any, by: int, known: Range | None, *, rounds_down: bool) -> Any:
    """x / by for int32, None where it cannot be written without a division."""
    shift = by.bit_length() - 1
    positive = known is not None and known[0] >= 0
    if by == 1 << shift:
        if not (positive or rounds_down):
            sign = read.made("arith.shrsi", "i32", [x, read.constant("i32", _WORD)])
            x = read.made(
                "arith.addi", "i32", [x, read.made("arith.andi", "i32", [sign, read.constant("i32", by - 1)])]
            )
        return read.made("arith.shrsi", "i32", [x, read.constant("i32", shift)])
    if known is None or not positive:
        return None
    for bits in range(_WORD):
        factor = -(-(1 << bits) // by)
        if known[1] * factor >= 1 << _WORD:
            return None
        if known[1] * (factor * by - (1 << bits)) < 1 << bits:
            product = read.made("arith.muli", "i32", [x, read.constant("i32", factor)])
            return read.made("arith.shrsi", "i32", [product, read.constant("i32", bits)])
    return None


def _range(value: Any, grid: Mapping[Any, int], depth: int = 0) -> Range | None:
    """What an integer that follows from the grid lies between."""
    if isinstance(value.owner, ir.Block):
        size = grid.get(value)
        return None if size is None or size < 1 else (0, size - 1)
    if depth > 32:
        return None
    op = value.owner
    name = read.name_of(op)
    if (constant := _constant_of(value)) is not None:
        return constant, constant
    operands = list(op.operation.operands)
    if name in _SAME:
        return _range(operands[0], grid, depth + 1)
    if name == "arith.select":
        return _join([_range(operand, grid, depth + 1) for operand in operands[1:]])
    if name in ("arith.divsi", "arith.divui", "arith.shrsi"):
        whole, by = _range(operands[0], grid, depth + 1), _constant_of(operands[1])
        if whole is None or by is None or whole[0] < 0 or by < (0 if name == "arith.shrsi" else 1):
            return None
        return (whole[0] >> by, whole[1] >> by) if name == "arith.shrsi" else (whole[0] // by, whole[1] // by)
    if name in ("arith.remsi", "arith.remui"):
        whole, by = _range(operands[0], grid, depth + 1), _constant_of(operands[1])
        return (0, by - 1) if whole is not None and by is not None and whole[0] >= 0 and by > 0 else None
    if name in _RANGES:
        first, second = (_range(operand, grid, depth + 1) for operand in operands)
        return None if first is None or second is None else _RANGES[name](first, second)
    return None


def _join(ranges: Sequence[Range | None]) -> Range | None:
    known = [found for found in ranges if found is not None]
    return (min(a for a, _ in known), max(b for _, b in known)) if len(known) == len(ranges) else None


def _constant_of(value: Any) -> int | None:
    """The number that a value always is; ``jnp`` divides by a choice between its divisor and 1, in place of 0."""
    if isinstance(value.owner, ir.Block):
        return None
    name, operation = read.name_of(value.owner), value.owner.operation
    if name == "arith.select" and read.name_of(operation.operands[0].owner) == "arith.cmpi":
        test = operation.operands[0].owner.operation
        sides = [_constant_of(side) for side in test.operands]
        holds = None in sides or COMPARE[ir.IntegerAttr(test.attributes["predicate"]).value](*sides)
        return None if None in sides else _constant_of(operation.operands[1 if holds else 2])
    if name != "arith.constant" or str(value.type) not in ("i32", "index", "i64"):
        return None
    return int(ir.IntegerAttr(operation.attributes["value"]).value)
