"""Exact matrix work of a Mosaic kernel: its scalar control flow run on every grid point, its vectors never.

Tables in scalar memory that the kernel writes, too, carry state from one point of the grid to the next.

The matrix units' instruction counts do not tell: a product over K = 128 fills half of a 256-deep unit and costs
the same instructions as one over 256. The shapes of ``tpu.matmul`` do, times how often each one is reached.
"""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from tilewright.workers.runners.mosaic import ir as read

MAX_STEPS = 2_000_000
"""Scalar steps after which a kernel's control flow is given up on."""


class Unresolved(ValueError):
    """Control flow that does not follow from grid indices and constants, or takes too long to follow."""


COMPARE: Sequence[Callable[[int, int], int]] = (
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: a % 2**32 < b % 2**32,
    lambda a, b: a % 2**32 <= b % 2**32,
    lambda a, b: a % 2**32 > b % 2**32,
    lambda a, b: a % 2**32 >= b % 2**32,
)
"""``arith.cmpi`` predicates by number: eq ne slt sle sgt sge ult ule ugt uge."""


def _remainder(a: int, b: int) -> int:
    """Remainder with the sign of ``a``, as the hardware's."""
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def _apply(function: Callable[..., int], operands: Sequence[int]) -> int | None:
    """None where the result is undefined."""
    try:
        return int(function(*operands))
    except (ArithmeticError, ValueError):
        return None


_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": lambda a, b: (a - _remainder(a, b)) // b,
    "arith.remsi": _remainder,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.maxsi": max,
    "arith.minsi": min,
    "arith.shli": lambda a, b: a << (b % 64),
    "arith.shrsi": lambda a, b: a >> (b % 64),
    "arith.shrui": lambda a, b: a % 2**32 >> (b % 64),
}
_PASS = ("arith.extui", "arith.extsi", "arith.trunci", "arith.index_cast", "tpu.assume_multiple")


@dataclass
class _Node:
    """One step of the scalar program: what to compute, or control flow over inner programs."""

    kind: str
    result: tuple[int, ...] = ()
    operands: tuple[int, ...] = ()
    function: Callable[..., int] | None = None
    value: int = 0
    programs: "tuple[list[_Node], ...]" = ()
    arguments: tuple[int, ...] = ()
    yields: tuple[tuple[int, ...], ...] = ()


Table = dict[tuple[int | None, ...], int | None]
"""What a table holds at each place; None where that is not known."""


@dataclass
class _Run:
    values: dict[int, int | None] = field(default_factory=dict)
    steps: int = 0
    tables: dict[int, Table] = field(default_factory=dict)
    sizes: dict[int, set[tuple[int | None, ...]]] = field(default_factory=dict)


def matmul_flops(function: Any, grid: Sequence[int], tables: Mapping[Any, np.ndarray]) -> int:
    """``2 M N K`` summed over every ``tpu.matmul`` the kernel reaches on its whole grid. Raises Unresolved.

    ``tables`` are arguments in scalar memory whose values are known.
    """
    return _followed(function, grid, tables, _Numbers(), _Run())


def copied_sizes(
    function: Any, grid: Sequence[int], tables: Mapping[Any, np.ndarray]
) -> list[tuple[Any, list[Any], set[tuple[int | None, ...]]]]:
    """Copies, and waits for one, of a size that is computed: the operation, the values that say its size, and what
    these are wherever it is reached on the grid. Raises Unresolved."""
    if not any(_sizes_of(op) for op in read.walk(function)):
        return []
    numbers, run = _Numbers(), _Run()
    numbers.copies = []
    _followed(function, grid, tables, numbers, run)
    return [(op, _sizes_of(op), run.sizes.get(place, set())) for place, op in enumerate(numbers.copies)]


def _sizes_of(op: Any) -> list[Any]:
    """The values that say the size of what a copy reads and writes; none where its types do."""
    found: list[Any] = []
    if read.name_of(op) not in ("tpu.enqueue_dma", "tpu.wait_dma2"):
        return found
    for value in op.operation.operands:
        while "?" in str(value.type):
            if isinstance(value.owner, ir.Block) or read.name_of(value.owner) not in _VIEWS:
                return []
            if read.name_of(value.owner) == "tpu.memref_slice":
                _, places, count = ir.DenseI32ArrayAttr(value.owner.attributes["operandSegmentSizes"])
                found += list(value.owner.operands)[1 + places :][:count]
            value = value.owner.operands[0]
    return list(dict.fromkeys(found))


_VIEWS = ("tpu.memref_slice", "tpu.memref_squeeze")


def _followed(
    function: Any, grid: Sequence[int], tables: Mapping[Any, np.ndarray], numbers: "_Numbers", run: _Run
) -> int:
    block = function.operation.regions[0].blocks[0]
    numbers.tables.update(numbers[argument] for argument in tables)
    arguments = [numbers[argument] for argument in block.arguments][: len(grid)]
    program = _translate(block, numbers)
    if not _interesting(program):
        return sum(node.value for node in program if node.kind == "matmul") * math.prod(grid)
    used = set(arguments) if _holds(program, "store") else _used(program)
    axes = [range(size) if argument in used else (0,) for argument, size in zip(arguments, grid, strict=True)]
    repeats = math.prod(size for argument, size in zip(arguments, grid, strict=True) if argument not in used)
    run.tables = {numbers[argument]: _table(values) for argument, values in tables.items()}
    total = 0
    for point in itertools.product(*axes):
        run.values = dict(zip(arguments, point, strict=True))
        total += _execute(program, run)
    return total * repeats


class _Numbers(dict[Any, int]):
    """Numbers for SSA values, in the order they are met, and those of the tables that loads may read."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: set[int] = set()
        self.copies: list[Any] | None = None
        """Copies of a size that is computed, where these are wanted."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


def _table(values: np.ndarray) -> Table:
    return {place: int(value) for place, value in np.ndenumerate(values)}


def _interesting(program: list[_Node]) -> bool:
    return any(node.kind in _CONTROL or node.kind in ("store", "copy") for node in program)


def _holds(program: list[_Node], kind: str) -> bool:
    return any(node.kind == kind or any(_holds(inner, kind) for inner in node.programs) for node in program)


def _used(program: list[_Node]) -> set[int]:
    """Values that decide a branch or a loop bound, and everything they follow from."""
    wanted: set[int] = set()
    while True:
        before = len(wanted)
        _collect(program, wanted)
        if len(wanted) == before:
            return wanted


def _collect(program: list[_Node], wanted: set[int]) -> None:
    for node in reversed(program):
        if node.kind in _CONTROL:
            wanted.update(node.operands[: 1 if node.kind == "if" else None])
            for inner, yields in zip(node.programs, node.yields, strict=True):
                wanted.update(yields)
                _collect(inner, wanted)
        elif node.kind == "copy" or wanted.intersection(node.result):
            wanted.update(node.operands)


def _execute(program: list[_Node], run: _Run) -> int:
    values, total = run.values, 0
    for node in program:
        run.steps += 1
        if run.steps > MAX_STEPS:
            raise Unresolved("the kernel's control flow takes too many steps to follow")
        if node.kind == "matmul":
            total += node.value
        elif node.kind == "constant":
            values[node.result[0]] = node.value
        elif node.kind == "scalar":
            operands = [value for number in node.operands if (value := values.get(number)) is not None]
            known = node.function is not None and len(operands) == len(node.operands)
            values[node.result[0]] = _apply(node.function, operands) if known and node.function else None
        elif node.kind == "load":
            values[node.result[0]] = run.tables[node.value].get(_place(node.operands, run))
        elif node.kind == "store":
            _store(node, run)
        elif node.kind == "copy":
            run.sizes.setdefault(node.value, set()).add(_place(node.operands, run))
        elif node.kind in _CONTROL:
            total += _CONTROL[node.kind](node, run)
    return total


def _place(numbers: Sequence[int], run: _Run) -> tuple[int | None, ...]:
    return tuple(run.values.get(number) for number in numbers)


def _store(node: _Node, run: _Run) -> None:
    """Write a table; one that is written nobody knows where is not known any more."""
    table, place = run.tables[node.value], _place(node.operands[1:], run)
    if None in place:
        table.clear()
    else:
        table[place] = run.values.get(node.operands[0])


def _branch(node: _Node, run: _Run) -> int:
    condition = run.values.get(node.operands[0])
    if condition is None:
        raise Unresolved("a branch does not follow from the grid")
    branch = 0 if condition else 1
    if branch >= len(node.programs):
        return 0
    total = _execute(node.programs[branch], run)
    for result, source in zip(node.result, node.yields[branch], strict=False):
        run.values[result] = run.values.get(source)
    return total


def _loop(node: _Node, run: _Run) -> int:
    lower, upper, step = (run.values.get(number) for number in node.operands[:3])
    if lower is None or upper is None or step is None or step <= 0:
        raise Unresolved("a loop's bounds do not follow from the grid")
    carried = [run.values.get(number) for number in node.operands[3:]]
    body, total = node.programs[0], 0
    trips = range(lower, min(upper, lower + 2**40), step)
    followed = {number for inner in body for number in inner.result}.intersection(node.yields[0])
    if not _interesting(body) and not followed:  # nothing but vectors is carried
        run.values.update(dict.fromkeys(node.result))
        return len(trips) * sum(inner.value for inner in body if inner.kind == "matmul")
    for index in trips:
        run.values[node.arguments[0]] = index
        run.values.update(zip(node.arguments[1:], carried, strict=True))
        total += _execute(body, run)
        carried = [run.values.get(number) for number in node.yields[0]]
    run.values.update(zip(node.result, carried, strict=True))
    return total


def _while(node: _Node, run: _Run) -> int:
    before, after = node.programs
    (condition, *kept), yields = node.yields
    carried, total = [run.values.get(number) for number in node.operands], 0
    while True:
        run.values.update(zip(node.arguments, carried, strict=False))
        total += _execute(before, run)
        going = run.values.get(condition)
        if going is None:
            raise Unresolved("a loop's condition does not follow from the grid")
        carried = [run.values.get(number) for number in kept]
        if not going:
            run.values.update(zip(node.result, carried, strict=True))
            return total
        run.values.update(zip(node.arguments[len(node.operands) :], carried, strict=True))
        total += _execute(after, run)
        carried = [run.values.get(number) for number in yields]
        run.steps += 1
        if run.steps > MAX_STEPS:
            raise Unresolved("the kernel's control flow takes too many steps to follow")


_CONTROL: Mapping[str, Callable[[_Node, _Run], int]] = {"if": _branch, "for": _loop, "while": _while}
"""Control flow by the kind of a node: runs it, and gives the FLOP of the products that were reached."""


def _translate(block: Any, numbers: _Numbers) -> list[_Node]:
    """The scalar program of a block; steps that only concern vectors are left out."""
    program = []
    for op in block.operations:
        node = _node(op, numbers)
        if node is not None:
            program.append(node)
        elif len(op.operation.regions):
            for region in op.operation.regions:
                for inner in region.blocks:
                    program.extend(_translate(inner, numbers))
    return program


def _node(op: Any, numbers: _Numbers) -> _Node | None:
    operation = op.operation
    name = str(operation.name).removeprefix("stable_mosaic.")
    results = tuple(numbers[value] for value in operation.results)
    if name in ("tpu.matmul", "vector.contract"):
        return _Node("matmul", value=_matmul(operation))
    if name in ("scf.if", "scf.for", "scf.while"):
        return _control(operation, name, results, numbers)
    if name == "memref.store" and numbers[operation.operands[1]] in numbers.tables:
        value, table, *place = (numbers[v] for v in operation.operands)
        return _Node("store", (), (value, *place), value=table)
    if numbers.copies is not None and (sizes := _sizes_of(op)):
        numbers.copies.append(op)
        return _Node("copy", (), tuple(numbers[size] for size in sizes), value=len(numbers.copies) - 1)
    if len(results) != 1 or str(operation.results[0].type) not in ("i1", "i32", "i64", "index"):
        return None
    if name == "memref.load":
        table, *place = (numbers[v] for v in operation.operands)
        kind = "load" if table in numbers.tables else "scalar"
        return _Node(kind, results, tuple(place), value=table)
    operands = tuple(numbers[value] for value in operation.operands)
    if name == "arith.constant":
        text = str(operation.attributes["value"]).split(":")[0].strip()
        return _Node("constant", results, value=int({"true": "1", "false": "0"}.get(text, text)))
    if name == "arith.cmpi":
        predicate = int(ir.IntegerAttr(operation.attributes["predicate"]).value)
        return _Node("scalar", results, operands, COMPARE[predicate])
    if name in _PASS:
        return _Node("scalar", results, operands, lambda a: a)
    if name == "arith.select":
        return _Node("scalar", results, operands, lambda c, a, b: a if c else b)
    return _Node("scalar", results, operands, _BINARY.get(name))


def _control(operation: Any, name: str, results: tuple[int, ...], numbers: _Numbers) -> _Node:
    blocks = [region.blocks[0] for region in operation.regions if len(region.blocks)]
    arguments = tuple(numbers[value] for block in blocks for value in block.arguments)
    programs = tuple(_translate(block, numbers) for block in blocks)
    yields = tuple(
        tuple(numbers[value] for value in block.operations[len(block.operations) - 1].operands) for block in blocks
    )
    operands = tuple(numbers[value] for value in operation.operands)
    return _Node(name.removeprefix("scf."), results, operands, None, 0, programs, arguments, yields)


_CONTRACTED = re.compile(r"dot_dimension_numbers<\[([\d, ]+)\]")


def _matmul(operation: Any) -> int:
    """2 x (elements of the result) x (contracted length): results of a batch count once, however large it is."""
    left, right, result = (
        list(ir.ShapedType(value.type).shape)
        for value in (operation.operands[0], operation.operands[1], operation.results[0])
    )
    numbers = operation.attributes.get("dimension_numbers")
    axes = _CONTRACTED.search(str(numbers)) if numbers is not None else None
    if axes is not None:
        depth = math.prod(left[int(axis)] for axis in axes[1].split(","))
    else:
        size = math.prod(result)
        depth = math.isqrt(math.prod(left) * math.prod(right) // size) if size else 0
    return 2 * math.prod(result) * depth
