"""Kernels cut to fewer steps of their grids: what a long kernel takes follows from a part of it.

The outermost axes are cut first, so that what an inner axis does (blocks that stay, a triangle that is walked, a sum
over K) runs whole. Which part of a grid is left is a fact of the reproduction; the time model fills a kernel's
pipeline once and repeats the rest (``rows.Row``).
"""

import math
from typing import Any


def cut_grids(module: bytes, steps: int) -> tuple[bytes, list[float]]:
    """The module with no grid longer than ``steps``, where axes allow it, and how often each kernel's rest is left."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    from tilewright.workers.runners.mosaic import ir as read
    from tilewright.workers.runners.mosaic.ir import body_of, replace_body, serialized_module

    with mlir.make_ir_context(), ir.Location.unknown():
        parsed = read.parse(module)
        ratios = []
        for call in [op for op in read.walk(parsed) if read.is_kernel(op)]:
            config, kernel = body_of(call)
            shorter = cut(kernel.grid, steps)
            ratios.append(math.prod(kernel.grid) / math.prod(shorter))
            if tuple(shorter) != kernel.grid:
                with kernel.module.context, ir.Location.unknown():
                    attributes: Any = kernel.function.operation.attributes
                    attributes["iteration_bounds"] = ir.DenseI64ArrayAttr.get(shorter)
                replace_body(call, config, kernel.module)
        return serialized_module(parsed), ratios


def emptied(module: bytes) -> bytes:
    """The module with kernels that do nothing: what XLA runs around them is the same, and compiles at once."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    from tilewright.workers.runners.mosaic import ir as read
    from tilewright.workers.runners.mosaic.ir import body_of, replace_body, serialized_module

    with mlir.make_ir_context(), ir.Location.unknown():
        parsed = read.parse(module)
        for call in [op for op in read.walk(parsed) if read.is_kernel(op)]:
            config, kernel = body_of(call)
            block = kernel.function.operation.regions[0].blocks[0]
            for op in reversed(list(block.operations)[:-1]):
                op.operation.erase()
            replace_body(call, config, kernel.module)
        return serialized_module(parsed)


def cut(grid: tuple[int, ...], steps: int) -> list[int]:
    """A grid of at most ``steps`` points, outer axes cut before inner ones; a grid that is not known stays."""
    shorter = list(grid)
    if min(grid, default=1) < 1:
        return shorter
    for axis, size in enumerate(grid):
        others = math.prod(shorter) // shorter[axis]
        shorter[axis] = min(size, max(1, steps // others))
    return shorter
