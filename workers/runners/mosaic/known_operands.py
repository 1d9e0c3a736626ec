"""Operands whose values are part of a timed workload, such as group sizes: bound before the module is costed.

The simulator runs a kernel's scalar code for real, but knows nothing of what operands hold. Where a grid walks groups
of given sizes, the operator states those of each workload (``seeds.operator.KnownOperands``), and three things follow,
all here, in the process that never ran candidate code:

* integer operations of the surrounding program that depend on known operands alone are evaluated (StableHLO's
  reference interpreter) and become constants, as they would be for one run;
* kernel operands in scalar memory (scalar prefetch, or operands that the kernel keeps there) thus have known values,
  which the rules on control flow use (``workers.runners.mosaic.facts``);
* the module that is simulated writes these values into that memory itself, once, when the first block's position is
  computed or the body begins. Loads, branches and the blocks that are fetched or kept are then simulated as they
  would run; the cost is one scalar store a value.

Whatever is known, the simulated module's kernels divide no scalars (``workers.runners.mosaic.scalar_division``).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from tilewright.workers.runners.mosaic import ir as read
from tilewright.workers.runners.mosaic.ir import body_of, replace_body, serialized_module
from tilewright.workers.runners.mosaic.scalar_division import without_divisions
from tilewright.workers.runners.mosaic.scalar_flow import Unresolved, copied_sizes

MAX_VALUES = 1 << 14
"""Most values of all tables of one kernel: what fits scalar memory many times over, and costs few cycles."""

Tables = Mapping[int, np.ndarray]
"""Number of an operand in scalar memory to the values it holds, in its shape."""

Known = Mapping[int, Any]
"""Number of an operand of the module to its values: an array of int32, or integers in row-major order."""


@dataclass(frozen=True)
class Bound:
    """A module as the child sent it, the same with known integers folded, and that with known tables written."""

    original: bytes
    folded: bytes
    costed: bytes
    tables: tuple[Tables, ...]


def bind(serialized: bytes, known: Known) -> Bound:
    """Bind operands of the exported module by number, and tables that are constants of the program. Raises
    ``mosaic_ir.ModuleError`` for what cannot be bound."""
    with mlir.make_ir_context(), ir.Location.unknown():
        module = read.inlined_module(serialized)
        _fold(module, known)
        for call in _calls(read.main_function(module)):
            _state_grid(call, known)
        folded = serialized_module(module)
        module = read.parse(folded)
        tables = [_write_tables(call, known) for call in _calls(read.main_function(module))]
        for call in _calls(module):
            _simplify_scalars(call)
        return Bound(serialized, folded, serialized_module(module), tuple(tables))


def _simplify_scalars(call: Any) -> None:
    """Write a kernel's scalar code so that the simulator can follow it."""
    config, kernel = body_of(call)
    with kernel.module.context, ir.Location.unknown():
        simplified = with_known_sizes(kernel, {}) + without_divisions(kernel)
    if simplified:
        replace_body(call, config, kernel.module)


def _calls(main: Any) -> list[Any]:
    return [op for op in read.walk(main) if read.is_kernel(op)]


def _fold(module: Any, known: Known) -> None:
    """Replace kernels' operands that follow from known operands alone by constants."""
    main = read.main_function(module)
    block = main.regions[0].blocks[0]
    arguments = {block.arguments[number]: _dense(block.arguments[number], known[number]) for number in known}
    inferred: set[Any] = set(arguments)
    pure = []
    for op in block.operations:
        name = read.name_of(op)
        is_pure = name == "func.call" or (name.startswith("stablehlo.") and name != "stablehlo.custom_call")
        if is_pure and _needs(op) <= inferred:
            pure.append(op)
            inferred.update(op.operation.results)
    operands = dict.fromkeys(v for call in _calls(main) for v in call.operands)
    wanted = [v for v in operands if v in inferred and v not in arguments and _is_table(v)]
    results = _evaluate(module, arguments, pure, wanted)
    with ir.InsertionPoint.at_block_begin(block):
        for value, found in results.items():
            value.replace_all_uses_with(stablehlo.ConstantOp(found).results[0])
    for op in reversed(pure):
        if not any(list(result.uses) for result in op.operation.results):
            op.operation.erase()


def _is_table(value: Any) -> bool:
    kind = ir.RankedTensorType(value.type)
    return str(kind.element_type) == "i32" and math.prod(kind.shape) <= MAX_VALUES


def _dense(value: Any, given: Any) -> Any:
    kind = ir.RankedTensorType(value.type)
    values = np.asarray(given, dtype=np.int32)
    shape = tuple(kind.shape)
    if str(kind.element_type) != "i32" or math.prod(shape) != values.size:
        raise read.ModuleError(f"a known operand is {kind}, not {values.size} values of int32")
    return _attribute(values.reshape(shape))


def _attribute(values: np.ndarray) -> Any:
    if values.ndim == 0:
        return ir.DenseElementsAttr.get(
            [ir.IntegerAttr.get(ir.Type.parse("i32"), int(values))], ir.Type.parse("tensor<i32>")
        )
    return ir.DenseElementsAttr.get(np.ascontiguousarray(values).data)


def _values(operand: Any, known: Known) -> np.ndarray | None:
    """What a kernel's operand holds: a known argument's values, those of an int32 constant, or nothing known."""
    kind = ir.RankedTensorType(operand.type)
    shape = tuple(kind.shape)
    if isinstance(operand.owner, ir.Block):
        given = known.get(ir.BlockArgument(operand).arg_number)
        return None if given is None else np.asarray(given, dtype=np.int32).reshape(shape)
    if read.name_of(operand.owner) != "stablehlo.constant" or not _is_table(operand):
        return None
    dense = ir.DenseElementsAttr(operand.owner.operation.attributes["value"])
    if dense.is_splat:
        return np.full(shape, ir.IntegerAttr(dense.get_splat_value()).value, np.int32)
    return np.array(dense, dtype=np.int32).reshape(shape)


def _needs(op: Any) -> set[Any]:
    """Values an operation and its regions take from outside."""
    inner = list(read.walk(op))
    made = {result for i in inner for result in i.operation.results}
    for region in [r for i in (op, *inner) for r in i.operation.regions]:
        made.update(argument for block in region.blocks for argument in block.arguments)
    read_values = {operand for i in inner for operand in i.operation.operands}
    return set(op.operation.operands) | (read_values - made)


def _evaluate(module: Any, arguments: Mapping[Any, Any], pure: Sequence[Any], wanted: Sequence[Any]) -> dict[Any, Any]:
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
        if not arguments:
            return {}
        raise read.ModuleError(f"what follows from known operands cannot be evaluated: {error}") from error
    return dict(zip(wanted, results, strict=True))


def _state_grid(call: Any, known: Known) -> None:
    """Write the sizes of a kernel's grid into it, where they come as operands whose values are known."""
    config, kernel = body_of(call)
    unstated = [axis for axis, size in enumerate(kernel.grid) if size < 0]
    found = [_values(operand, known) for operand in list(call.operands)[: len(unstated)]]
    sizes = [int(size) for size in found if size is not None]
    if not unstated or len(sizes) < len(unstated):
        return
    grid = list(kernel.grid)
    for axis, size in zip(unstated, sizes, strict=True):
        grid[axis] = size
    with kernel.module.context, ir.Location.unknown():
        bounds = ir.DenseI64ArrayAttr.get(grid)
        kernel.function.operation.attributes["iteration_bounds"] = bounds
        for op in [op for op in read.walk(kernel.function) if read.name_of(op) == "tpu.iteration_bound"]:
            with ir.InsertionPoint(op):
                size = read.constant("i32", grid[ir.IntegerAttr(op.operation.attributes["dim"]).value])
            op.operation.results[0].replace_all_uses_with(size)
            op.operation.erase()
    replace_body(call, config, kernel.module)
    attributes = {name: call.operation.attributes[name] for name in call.operation.attributes}
    if "operand_layouts" in attributes:
        attributes["operand_layouts"] = ir.ArrayAttr.get(list(attributes["operand_layouts"])[len(unstated) :])
    if "output_operand_aliases" in attributes:
        attributes["output_operand_aliases"] = ir.ArrayAttr.get(
            [
                stablehlo.OutputOperandAlias.get(
                    a.output_tuple_indices, a.operand_index - len(unstated), a.operand_tuple_indices
                )
                for a in map(stablehlo.OutputOperandAlias, attributes["output_operand_aliases"])
            ]
        )
    with ir.InsertionPoint(call):
        other = ir.Operation.create(
            call.operation.name,
            results=[result.type for result in call.operation.results],
            operands=list(call.operands)[len(unstated) :],
            attributes=attributes,
        )
    for old, new in zip(call.operation.results, other.results, strict=True):
        old.replace_all_uses_with(new)
    call.operation.erase()


def _write_tables(call: Any, known: Known) -> Tables:
    """Make a kernel fill those of its tables that are known; which those are."""
    operands = {number: _values(operand, known) for number, operand in enumerate(call.operands)}
    config, kernel = body_of(call)
    tables = {
        number: values
        for number, values in operands.items()
        if values is not None and min(kernel.grid, default=1) > 0 and kernel.is_table(number)
    }
    if sum(values.size for values in tables.values()) > MAX_VALUES:
        if known:
            raise read.ModuleError(f"a kernel with more than {MAX_VALUES} known values")
        return {}
    with kernel.module.context, ir.Location.unknown():
        with_known_sizes(kernel, tables)
        for early in (True, False):
            # blocks may be placed by prefetched tables before the body runs, others are copied in by then
            written = {n: values for n, values in tables.items() if (n < kernel.prefetched) is early}
            if written:
                placed = early and kernel.index_maps
                _insert_stores(kernel, kernel.index_maps[0] if placed else kernel.function, written)
    replace_body(call, config, kernel.module)
    with ir.InsertionPoint(call):  # other constants: equal or counted values XLA would make by operations
        for number, values in tables.items():
            if not isinstance(call.operands[number].owner, ir.Block):
                squares = np.arange(values.size, dtype=np.int32).reshape(values.shape) ** 2
                other = _attribute(squares)
                call.operands[number] = stablehlo.ConstantOp(other).results[0]
    return tables


def _insert_stores(kernel: read.MosaicKernel, function: Any, tables: Tables) -> None:
    """Fill tables where ``function`` begins, at the first grid point."""
    block = function.operation.regions[0].blocks[0]
    grid = list(block.arguments)[: len(kernel.grid)]
    with ir.InsertionPoint.at_block_begin(block):
        zero = read.constant("i32", 0)
        first = read.constant("i1", 1)
        for index in grid:
            first = read.made("arith.andi", "i1", [first, read.compared(0, index, zero)])  # eq
        branch = ir.Operation.create("stable_mosaic.scf.if", operands=[first], regions=2)
        then, other = (region.blocks.append() for region in branch.regions)
    with ir.InsertionPoint(then):
        for number, values in tables.items():
            for place, value in np.ndenumerate(values):
                table = block.arguments[len(kernel.grid) + number]
                operands = [read.constant("i32", int(value)), table, *(read.constant("index", p) for p in place)]
                ir.Operation.create("stable_mosaic.memref.store", operands=operands)
        ir.Operation.create("stable_mosaic.scf.yield")
    with ir.InsertionPoint(other):
        ir.Operation.create("stable_mosaic.scf.yield")


MOST_SIZES = 64
"""Most sizes of one copy."""


def with_known_sizes(kernel: read.MosaicKernel, tables: Tables) -> int:
    """The number of copies of a size that integers decide, rewritten in place as copies of the sizes that occur.

    The simulator costs a copy whose size stands in the program, and no other. Where sizes follow from the grid and from
    tables, the kernel's scalar code is run, and each such copy, and each wait for one, becomes a choice among copies of
    the sizes that were met: comparisons and branches, which the simulator runs for real. A copy of nothing is none."""
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
