"""The kernels of a module alone, in a form that libtpu's simulator can cost.

The simulator's model of copies knows no stride within a stride ("dma-general"): a block of more than one element along
an axis and a part of an axis inside it, or an operation of XLA around a kernel that rearranges so, and it aborts. The
time model takes from the simulation which copies there are, their bytes and what waits for them, and nothing of their
addresses. So each kernel here stands alone, on operands of its own, and an array whose blocks stride twice is replaced
by one of the same blocks side by side: same grid, same blocks copied and kept at the same steps, same bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from tilewright.workers.runners.mosaic import ir as read
from tilewright.workers.runners.mosaic.ir import body_of, replace_body, serialized_module

_WINDOW = {"transform_indices", "window_bounds", "pipeline_mode", "window_kind"}


@dataclass(frozen=True)
class IsolatedKernels:
    """A module of kernels alone: its bytes, shape and dtype of operands and results, how many arrays were restated."""

    module: bytes
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    restated: int


def strides_twice(array: Sequence[int], block: Sequence[int]) -> int | None:
    """The axis inside which a copy of ``block`` out of ``array`` strides once more; None where it does not.

    The last axis is lanes, which a stride of rows covers. Of the others the innermost that is copied in part is the one
    stride; elements of any axis outside it are another.
    """
    for axis in range(len(array) - 2, -1, -1):
        if block[axis] < array[axis]:
            return axis if math.prod(block[:axis]) > 1 else None
    return None


def isolated_kernels(serialized: bytes) -> IsolatedKernels:
    """Every kernel of an exported module on operands of its own. Raises ``mosaic_ir.ModuleError``."""
    with mlir.make_ir_context(), ir.Location.unknown():
        module = read.inlined_module(serialized)
        calls = [op for op in read.walk(read.main_function(module)) if read.is_kernel(op)]
        if not calls:
            raise read.ModuleError("no Pallas kernel in the module")
        arrays = [_restate_call(call) for call in calls]
        inputs = [kind for operands, _ in arrays for kind in operands]
        outputs = [kind for _, results in arrays for kind in results]
        restated = sum(
            old != new
            for call, (operands, results) in zip(calls, arrays, strict=True)
            for old, new in zip(_types(call), [*operands, *results], strict=True)
        )
        alone = ir.Module.create()
        with ir.InsertionPoint(alone.body):
            main: Any = func.FuncOp("main", (inputs, outputs))
        entry = main.add_entry_block()
        with ir.InsertionPoint(entry):
            arguments, made = iter(entry.arguments), []
            for call, (operands, results) in zip(calls, arrays, strict=True):
                given, values = call.operation.attributes, [next(arguments) for _ in operands]
                kept = {name: given[name] for name in given if name != "output_operand_aliases"}
                copy = ir.Operation.create(call.operation.name, results, values, kept)
                made += list(copy.results)
            func.ReturnOp(made)
        described = tuple(map(_shape_of, inputs)), tuple(map(_shape_of, outputs))
        return IsolatedKernels(serialized_module(alone), *described, restated)


def restated(serialized: bytes) -> IsolatedKernels | None:
    """The kernels alone where a block of theirs strides twice and nothing but kernels would run; else None."""
    alone = isolated_kernels(serialized)
    if not alone.restated:
        return None
    with mlir.make_ir_context():
        main = read.main_function(read.inlined_module(serialized))
        names = {read.name_of(op) for op in read.walk(main) if not read.is_kernel(op)}
    return alone if names <= _FREE else None


_FREE = frozenset(["stablehlo.reshape", "stablehlo.constant", "func.return"])


def _types(call: Any) -> list[Any]:
    values = [*call.operation.operands, *call.operation.results]
    return [value.type for value in values]


_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "i1": "bool",
    "i4": "int4",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "ui8": "uint8",
    "ui16": "uint16",
    "ui32": "uint32",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
}


def _shape_of(kind: Any) -> tuple[tuple[int, ...], str]:
    tensor = ir.RankedTensorType(kind)
    name = str(tensor.element_type)
    if name not in _DTYPES:
        raise read.ModuleError(f"a kernel's operand of {name}")
    return tuple(tensor.shape), _DTYPES[name]


def _restate_call(call: Any) -> tuple[list[Any], list[Any]]:
    """Types of a call's operands and results, the body's maps of blocks changed where an array is another."""
    config, kernel = body_of(call)
    types = _types(call)
    attributes = kernel.function.operation.attributes
    changed = False
    if "window_params" in attributes:
        maps = {read.function_name(function): function for function in kernel.index_maps}
        used: set[str] = set()
        windows = list(ir.ArrayAttr(attributes["window_params"]))
        unstated = sum(size < 0 for size in kernel.grid)  # sizes of the grid that are operands, too
        for place, window in enumerate(windows, start=unstated + kernel.prefetched):
            if place >= len(types):
                break
            entries: Any = ir.DictAttr(window)
            names = {entry.name for entry in entries}
            if not {"transform_indices", "window_bounds"} <= names or not names <= _WINDOW:
                continue
            name = ir.FlatSymbolRefAttr(entries["transform_indices"]).value
            tensor = ir.RankedTensorType(types[place])
            block = list(ir.DenseI64ArrayAttr(entries["window_bounds"]))
            shape = list(tensor.shape)
            axis = strides_twice(shape, block) if len(shape) == len(block) else None
            if axis is None or name in used or "window_kind" in names:
                continue
            used.add(name)
            counts = [-(-size // part) for size, part in zip(shape, block, strict=True)]
            with kernel.module.context, ir.Location.unknown():
                _merge_axes(maps[name], counts, axis)
            side_by_side = [block[0] * math.prod(counts[: axis + 1]), *block[1 : axis + 1], *shape[axis + 1 :]]
            types[place] = ir.RankedTensorType.get(side_by_side, tensor.element_type)
            changed = True
    if changed:
        replace_body(call, config, kernel.module)
    number = len(call.operation.operands)
    return types[:number], types[number:]


def _merge_axes(function: Any, counts: Sequence[int], axis: int) -> None:
    """Make the block's position along the first axis its number among all blocks of the axes up to ``axis``."""
    block = function.operation.regions[0].blocks[0]
    terminator = block.operations[len(block.operations) - 1]
    positions = list(terminator.operands)
    kind = str(positions[0].type)
    with ir.InsertionPoint(terminator):
        number = positions[0]
        for position, count in zip(positions[1 : axis + 1], counts[1 : axis + 1], strict=True):
            before = read.made("arith.muli", kind, [number, read.constant(kind, count)])
            number = read.made("arith.addi", kind, [before, position])
        zero = read.constant(kind, 0)
    for place in range(1, axis + 1):
        terminator.operation.operands[place] = zero
    terminator.operation.operands[0] = number
