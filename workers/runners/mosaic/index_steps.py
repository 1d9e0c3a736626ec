"""Integers that a kernel computes from a grid index by way of floating point, written as steps.

A triangle of blocks is walked by ``floor((sqrt(8 i + 1) - 1) / 2)``, which libtpu's simulator cannot follow: it then
sees no block and no product. Such a value is a known step function of one grid index: a sum of comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from tilewright.workers.runners.mosaic import ir as read

MAX_STEPS = 64
"""Places at which such a value may change: each is three scalar operations."""

_FLOAT: Mapping[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "math.sqrt": np.sqrt,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "arith.sitofp": np.float32,
    "arith.fptosi": lambda x: np.trunc(x).astype(np.int64),
    "arith.index_cast": lambda x: x,
}


def as_steps(kernel: read.MosaicKernel) -> int:
    """Rewrite such values of the kernel in place; how many there were."""
    found = 0
    for function in (kernel.function, *kernel.index_maps):
        arguments = list(function.operation.regions[0].blocks[0].arguments)
        grid = dict(zip(arguments, kernel.grid, strict=False))
        for op in [op for op in read.walk(function) if read.name_of(op) == "arith.fptosi"]:
            result = op.operation.results[0]
            indices: set[Any] = set()
            if str(result.type) != "i32" or not _follows(result, grid, indices) or len(indices) != 1:
                continue
            (index,) = indices
            values = _value(result, {index: np.arange(grid[index])})
            changes = np.flatnonzero(np.diff(values)) + 1
            if len(changes) > MAX_STEPS:
                continue
            with ir.InsertionPoint(op):
                result.replace_all_uses_with(_emit_steps(index, values, changes.tolist()))
            op.operation.erase()
            found += 1
    return found


def _follows(value: Any, grid: Mapping[Any, int], indices: set[Any], depth: int = 0) -> bool:
    """Whether a scalar follows from grid indices and constants by known operations; collects the indices."""
    if isinstance(value.owner, ir.Block):
        indices.add(value)
        return grid.get(value, 0) > 0
    if depth > 32 or str(value.type) not in ("i32", "f32", "index"):
        return False
    if read.name_of(value.owner) == "arith.constant":
        return True
    known = read.name_of(value.owner) in _FLOAT
    return known and all(_follows(v, grid, indices, depth + 1) for v in value.owner.operation.operands)


def _value(value: Any, at: Mapping[Any, np.ndarray]) -> np.ndarray:
    """A scalar at every point of the grid index, in the arithmetic of the hardware's float32."""
    if value in at:
        return at[value]
    op = value.owner
    if read.name_of(op) == "arith.constant":
        attribute = op.operation.attributes["value"]
        if str(value.type) == "f32":
            return np.asarray(ir.FloatAttr(attribute).value, np.float32)
        return np.asarray(ir.IntegerAttr(attribute).value)
    with np.errstate(all="ignore"):
        return np.asarray(_FLOAT[read.name_of(op)](*(_value(v, at) for v in op.operation.operands)))


def _emit_steps(index: Any, values: np.ndarray, changes: Sequence[int]) -> Any:
    total = read.constant("i32", int(values[0]))
    for place in changes:
        here = read.compared(5, index, read.constant("i32", int(place)))  # sge
        by = read.constant("i32", int(values[place] - values[place - 1]))
        step = read.made("arith.select", "i32", [here, by, read.constant("i32", 0)])
        total = read.made("arith.addi", "i32", [total, step])
    return total
