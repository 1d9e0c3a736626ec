"""Operands whose values are part of a timed workload, such as group sizes: bound before the module is costed.

The simulator runs a kernel's scalar code for real, but knows nothing of what operands hold. Where a grid walks groups
of given sizes, the operator states those of each workload (``seeds.operator.KnownOperands``), and three things follow,
all here, in the process that never ran candidate code:

* integer operations of the surrounding program that depend on known operands alone are evaluated (StableHLO's
  reference interpreter) and become constants, as they would be for one run;
* kernel operands fetched into scalar memory ahead of the grid (scalar prefetch) thus have known values, which the
  rules on control flow use (``workers.runners.mosaic``);
* the module that is simulated writes these values into that memory itself, once, when the first block's position is
  computed. Loads, branches and the blocks that are fetched or kept are then simulated as they would run; the cost is
  one scalar store a value.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from tilewright.workers.runners import mosaic_ir as read

MAX_VALUES = 1 << 14
"""Most values of all tables of one kernel: what fits scalar memory many times over, and costs few cycles."""

Tables = Mapping[int, tuple[int, ...]]
"""Number of a scalar-prefetch operand to the values it holds."""


@dataclass(frozen=True)
class Bound:
    """A module as the child sent it, the same with known integers folded, and that with known tables written."""

    original: bytes
    folded: bytes
    costed: bytes
    tables: tuple[Tables, ...]


def bind(serialized: bytes, known: Mapping[int, Sequence[int]]) -> Bound:
    """Bind operands of the exported module by number. Raises ``mosaic_ir.ModuleError`` for what cannot be bound."""
    if not known:
        return Bound(serialized, serialized, serialized, ())
    with mlir.make_ir_context(), ir.Location.unknown():
        module = read.parse(serialized)
        _fold(module, known)
        folded = _serialize(module)
        module = read.parse(folded)
        tables = [_write_tables(call, known) for call in _calls(read.main_function(module))]
        return Bound(serialized, folded, _serialize(module), tuple(tables))


def _calls(main: Any) -> list[Any]:
    return [op for op in read.walk(main) if read.is_kernel(op)]


def _serialize(module: Any) -> bytes:
    """Bytes of a module, which cannot be used any more."""
    return bytes(stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version()))


def _fold(module: Any, known: Mapping[int, Sequence[int]]) -> None:
    """Replace kernels' operands that follow from known operands alone by constants."""
    main = read.main_function(module)
    block = main.regions[0].blocks[0]
    arguments = {block.arguments[number]: _dense(block.arguments[number], known[number]) for number in known}
    inferred: set[Any] = set(arguments)
    pure = []
    for op in block.operations:
        if _is_pure(op) and _needs(op) <= inferred:
            pure.append(op)
            inferred.update(op.operation.results)
    operands = dict.fromkeys(v for call in _calls(main) for v in call.operands)
    wanted = [v for v in operands if v in inferred and v not in arguments]
    results = _evaluate(module, arguments, pure, wanted)
    with ir.InsertionPoint.at_block_begin(block):
        for value, found in results.items():
            value.replace_all_uses_with(stablehlo.ConstantOp(found).results[0])
    for op in reversed(pure):
        if not any(list(result.uses) for result in op.operation.results):
            op.operation.erase()


def _dense(value: Any, given: Sequence[int]) -> Any:
    kind = ir.RankedTensorType(value.type)
    if str(kind.element_type) != "i32" or kind.rank != 1 or kind.shape[0] != len(given):
        raise read.ModuleError(f"a known operand is {kind}, not {len(given)} values of int32")
    return ir.DenseElementsAttr.get(np.asarray(given, dtype=np.int32).data)


def _values(operand: Any, known: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """What a kernel's operand holds: a known argument's values, those of an int32 vector, or nothing known."""
    if isinstance(operand.owner, ir.Block):
        return tuple(known.get(ir.BlockArgument(operand).arg_number, ()))
    kind = ir.RankedTensorType(operand.type)
    if (
        read.name_of(operand.owner) != "stablehlo.constant"
        or str(kind.element_type) != "i32"
        or kind.rank != 1
    ):
        return ()
    dense = ir.DenseElementsAttr(operand.owner.operation.attributes["value"])
    if dense.is_splat:
        return (int(ir.IntegerAttr(dense.get_splat_value()).value),) * int(kind.shape[0])
    return tuple(int(n) for n in np.array(dense))


def _is_pure(op: Any) -> bool:
    name = read.name_of(op)
    return name == "func.call" or (name.startswith("stablehlo.") and name != "stablehlo.custom_call")


def _needs(op: Any) -> set[Any]:
    """Values an operation and its regions take from outside."""
    inner = list(read.walk(op))
    made = {result for i in inner for result in i.operation.results}
    for region in [r for i in (op, *inner) for r in i.operation.regions]:
        made.update(argument for block in region.blocks for argument in block.arguments)
    taken = {operand for i in inner for operand in i.operation.operands}
    return set(op.operation.operands) | (taken - made)


def _evaluate(
    module: Any, arguments: Mapping[Any, Any], pure: Sequence[Any], wanted: Sequence[Any]
) -> dict[Any, Any]:
    """Run the pure operations on the known operands: each wanted value to its constant."""
    if not wanted:
        return {}
    program = ir.Module.create()
    with ir.InsertionPoint(program.body):
        inputs, outputs = [v.type for v in arguments], [v.type for v in wanted]
        main: Any = func.FuncOp("main", (inputs, outputs))
        for op in module.body.operations:
            if read.function_name(op) != "main":
                op.operation.clone()
    entry = main.add_entry_block()
    copies = dict(zip(arguments, entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        for op in pure:
            copy = op.operation.clone()
            for inside in (copy, *read.walk(copy)):
                for number, operand in enumerate(inside.operation.operands):
                    if operand in copies:
                        inside.operation.operands[number] = copies[operand]
            copies.update(zip(op.operation.results, copy.results, strict=True))
        func.ReturnOp([copies[v] for v in wanted])
    try:
        results = stablehlo.eval_module(program, list(arguments.values()))
    except Exception as error:
        raise read.ModuleError(f"what follows from known operands cannot be evaluated: {error}") from error
    return dict(zip(wanted, results, strict=True))


def _write_tables(call: Any, known: Mapping[int, Sequence[int]]) -> Tables:
    """Make a kernel fill those of its tables that are known; which those are."""
    operands = {number: _values(operand, known) for number, operand in enumerate(call.operands)}
    config = json.loads(ir.StringAttr(call.attributes["backend_config"]).value)
    custom = config["custom_call_config"]
    with read.kernel_context(), ir.Location.unknown():
        module = read.parse_body(base64.b64decode(custom["body"]))
        kernel = read.MosaicKernel.of(module)
        tables = {
            number: values
            for number, values in operands.items()
            if values and number < kernel.prefetched and kernel.only_loaded(number)
        }
        if sum(map(len, tables.values())) > MAX_VALUES:
            raise read.ModuleError(f"a kernel with more than {MAX_VALUES} known values")
        if tables:
            _insert_stores(kernel, tables)
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer, desired_version=0)
    custom["body"] = base64.b64encode(buffer.getvalue()).decode()
    call.attributes["backend_config"] = ir.StringAttr.get(json.dumps(config), call.operation.context)
    _replace_constants(call, tables)
    return tables


def _replace_constants(call: Any, tables: Tables) -> None:
    """Give a kernel other constants for tables it fills: XLA would make equal or counted values by operations."""
    with ir.InsertionPoint(call):
        for number, values in tables.items():
            if not isinstance(call.operands[number].owner, ir.Block):
                other = ir.DenseElementsAttr.get((np.arange(len(values), dtype=np.int32) ** 2).data)
                call.operands[number] = stablehlo.ConstantOp(other).results[0]


def _insert_stores(kernel: read.MosaicKernel, tables: Tables) -> None:
    """At the first grid point, before the first block's position is computed (in the body if no block has one)."""
    function = kernel.index_maps[0] if kernel.index_maps else kernel.function
    block = function.operation.regions[0].blocks[0]
    grid = list(block.arguments)[: len(kernel.grid)]
    with ir.InsertionPoint.at_block_begin(block):
        zero = _constant("i32", 0)
        first = _constant("i1", 1)
        for index in grid:
            here = _operation(
                "arith.cmpi", "i1", [index, zero], predicate=ir.IntegerAttr.get(_type("i64"), 0)
            )
            first = _operation("arith.andi", "i1", [first, here])
        branch = ir.Operation.create("stable_mosaic.scf.if", operands=[first], regions=2)
        then, other = (region.blocks.append() for region in branch.regions)
    with ir.InsertionPoint(then):
        for number, values in tables.items():
            for place, value in enumerate(values):
                table = block.arguments[len(kernel.grid) + number]
                operands = [_constant("i32", value), table, _constant("index", place)]
                ir.Operation.create("stable_mosaic.memref.store", operands=operands)
        ir.Operation.create("stable_mosaic.scf.yield")
    with ir.InsertionPoint(other):
        ir.Operation.create("stable_mosaic.scf.yield")


def _type(text: str) -> Any:
    return ir.Type.parse(text)


def _constant(kind: str, value: int) -> Any:
    return _operation("arith.constant", kind, [], value=ir.IntegerAttr.get(_type(kind), value))


def _operation(name: str, kind: str, operands: Sequence[Any], **attributes: Any) -> Any:
    made = ir.Operation.create(
        f"stable_mosaic.{name}", results=[_type(kind)], operands=operands, attributes=attributes
    )
    return made.results[0]
