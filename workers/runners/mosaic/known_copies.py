"""Copies of a size that integers decide, written as copies of the sizes that occur.

Libtpu's simulator costs a copy whose size stands in the program, and no other. Where the size follows from the grid and
from tables of known values (``workers.runners.mosaic.known_operands``), the kernel's scalar code is run, and each such
copy, and each wait for one, becomes a choice among copies of the sizes that were met: comparisons and branches, which
the simulator runs for real. A copy of nothing is none.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from tilewright.workers.runners.mosaic import ir as read
from tilewright.workers.runners.mosaic.scalar_flow import Unresolved, copied_sizes

MOST_SIZES = 64
"""Most sizes of one copy."""


def with_known_sizes(kernel: read.MosaicKernel, tables: Mapping[int, np.ndarray]) -> int:
    """Rewrite copies in place, where that can be told; how many. ``tables``: see ``known_operands.Tables``."""
    try:
        copies = copied_sizes(kernel.function, kernel.grid, kernel.followed(tables))
    except Unresolved:
        return 0
    done = 0
    for op, sizes, met in copies:
        known = sorted(tuple(size for size in values if size is not None) for values in met)
        if not 0 < len(met) <= MOST_SIZES or any(len(values) < len(sizes) for values in known):
            continue
        try:
            with ir.InsertionPoint(op):
                _choose(op, sizes, known)
        except ir.MLIRError:  # a type whose layout says the size, too
            continue
        op.operation.erase()
        done += 1
    return done


def _choose(op: Any, sizes: Sequence[Any], met: Sequence[tuple[int, ...]]) -> None:
    """The copy, of the size that is in ``met``."""
    if len(met) == 1:
        if min(met[0]) > 0:
            given = dict(zip(sizes, met[0], strict=True))
            operands = [_stated(value, given)[0] for value in op.operation.operands]
            attributes = {name: op.operation.attributes[name] for name in op.operation.attributes}
            ir.Operation.create(op.operation.name, operands=operands, attributes=attributes)
        return
    place = next(n for n, values in enumerate(zip(*met, strict=True)) if len(set(values)) > 1)
    values = sorted({row[place] for row in met})
    middle = values[len(values) // 2]
    limit = read.constant(str(sizes[place].type), middle)
    less = read.compared(2, sizes[place], limit)
    branch = ir.Operation.create("stable_mosaic.scf.if", operands=[less], regions=2)
    parts = [row for row in met if row[place] < middle], [row for row in met if row[place] >= middle]
    for region, part in zip(branch.regions, parts, strict=True):
        with ir.InsertionPoint(region.blocks.append()):
            _choose(op, sizes, part)
            ir.Operation.create("stable_mosaic.scf.yield")


def _stated(value: Any, given: Mapping[Any, int]) -> tuple[Any, list[int]]:
    """A reference with its sizes in its type, made anew at the current place; and those sizes, in the type's order."""
    if "?" not in str(value.type):
        return value, []
    op = value.owner.operation
    source, numbers = _stated(op.operands[0], given)
    operands, attributes = [source, *list(op.operands)[1:]], {n: op.attributes[n] for n in op.attributes}
    if read.name_of(op) == "tpu.memref_slice":
        _, places, count = ir.DenseI32ArrayAttr(attributes["operandSegmentSizes"])
        operands, dynamic = operands[: 1 + places], operands[1 + places :]
        numbers = [given[size] for size in dynamic[:count]]
        attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([1, places, 0])
    left = iter(numbers)
    text = re.sub(r"\?", lambda _: str(next(left)), str(value.type), count=len(numbers))
    made = ir.Operation.create(op.name, [ir.Type.parse(text)], operands, attributes)
    return made.results[0], numbers
