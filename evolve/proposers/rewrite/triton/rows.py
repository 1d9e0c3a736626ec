"""The rule that gives a program of a row kernel several rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import (
    assigned_value,
    parameter_access,
    parameters,
    reads,
    resolve,
    small,
    statements,
    target_names,
)
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.masks import is_side
from tilewright.evolve.proposers.rewrite.triton.view import (
    NodeRule,
    TritonKernel,
    argument,
    device_calls,
    device_name,
    jit_kernels,
)

ELEMENTWISE = frozenset(
    {
        "abs",
        "add",
        "cast",
        "cdiv",
        "ceil",
        "clamp",
        "cos",
        "div_rn",
        "erf",
        "exp",
        "exp2",
        "fdiv",
        "floor",
        "fma",
        "load",
        "log",
        "log2",
        "max_contiguous",
        "maximum",
        "minimum",
        "multiple_of",
        "rsqrt",
        "sigmoid",
        "sin",
        "sqrt",
        "sqrt_rn",
        "static_assert",
        "store",
        "sub",
        "umulhi",
        "where",
    }
)

RowAxis = tuple[int, list[cst.Call], cst.BaseExpression, list[cst.BaseExpression]]
"""An axis of the grid: number, its program ids, extent, scalars that a loop carries."""

"""Calls that mean the same of a row as of several."""

REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "argmin", "xor_sum"})
MADE = frozenset({"zeros", "full"})
TYPES = re.compile(r"b?float\d+\w*|u?int\d+|constexpr|dtype|pointer_type")


class RowsPerProgram(NodeRule[RowAxis]):
    """Let a program compute several neighbouring rows as one tile: vectors become matrices, reductions keep their axis.

    Programs past the last row repeat it, which writes the same values again; so a kernel that reads what it writes,
    or adds to memory, is left alone.
    """

    name = "triton_rows_per_program"
    launched = True
    why = (
        "A short row leaves most of a program's threads idle and its loads too few to hide memory's latency. Several "
        "rows at a time have enough of both, and share what does not depend on the row."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, RowAxis]]:
        grid = kernel.grid()
        by_axis: dict[int, list[cst.Call]] = {}
        for call in device_calls(kernel.source, kernel.function, "program_id"):
            along = argument(call, "axis", 0)
            if not isinstance(along, cst.Integer):
                raise Unsupported("a program's number along an axis that is computed")
            by_axis.setdefault(along.evaluated_value, []).append(call)
        if not device_calls(kernel.source, kernel.function, "arange"):
            return
        _require_rows(kernel)
        for axis, mine in sorted(by_axis.items()):
            if axis < len(grid):
                vectors = _depending(kernel, mine)
                yield f"rows of axis {axis}", (axis, mine, grid[axis], _carried_scalars(kernel, vectors))

    def change(
        self,
        edit: Edit,
        kernel: TritonKernel,
        payload: RowAxis,
    ) -> None:
        axis, calls, count, carried = payload
        source, tl = kernel.source, kernel.tl
        rows = kernel.add_tunable(edit, "rows", (1, 2, 4, 8, 16, 32), 4)
        total = source.fresh("total_rows")
        access = parameter_access(source, kernel.launch(), next(iter(edit.added)))
        text = source.code(count)
        kernel.add_argument(edit, total, text, constexpr=False)
        edit.replace(count, f"-(-({text}) // {access})")
        number = (
            f"{tl}.minimum({tl}.program_id({axis}) * {rows} + {tl}.arange(0, {rows}), {total} - 1)[:, None]"
        )
        for call in calls:
            edit.replace(call, number)
        for call in device_calls(source, kernel.function, "arange"):
            edit.transform(call, _as_row)
        for call in device_calls(source, kernel.function, *REDUCTIONS):
            edit.transform(call, partial(_along_columns, tl=tl))
        for call in device_calls(source, kernel.function, *MADE):
            edit.transform(call, partial(_of_rows, rows=rows))
        for value in carried:
            edit.replace(value, f"{tl}.full(({rows}, 1), {source.code(value)}, {tl}.float32)")


def _require_rows(kernel: TritonKernel) -> None:
    """Raises Unsupported for a kernel that does what a tile of rows could not."""
    source = kernel.source
    helpers = {k.name: k for k in jit_kernels(source) if k.function is not kernel.function}
    for node in walk(kernel.function.body):
        if isinstance(node, cst.Return | cst.While):
            raise Unsupported("a kernel that leaves early or loops while something holds")
        if isinstance(node, cst.Subscript):
            raise Unsupported("values of two axes")
        if not isinstance(node, cst.Call):
            continue
        name = device_name(source, node.func)
        if isinstance(node.func, cst.Name) and node.func.value in helpers:
            if not _is_elementwise(helpers[node.func.value]):
                raise Unsupported(f"{node.func.value}, which may not be elementwise")
        elif name in REDUCTIONS:
            along = argument(node, "axis", 1)
            if along is not None and source.code(along) not in ("0", "-1", "None"):
                raise Unsupported("a reduction along another axis")
            if len(node.args) > 2 or any(
                a.keyword and a.keyword.value not in ("axis", "input") for a in node.args
            ):
                raise Unsupported("a reduction with options")
        elif name in MADE:
            shape = argument(node, "shape", 0)
            if not isinstance(shape, cst.Tuple | cst.List) or len(shape.elements) != 1:
                raise Unsupported("a tile of two axes")
        elif name and not _known(name):
            raise Unsupported(f"{name} of several rows")
        elif not name and isinstance(node.func, cst.Attribute) and node.func.attr.value != "to":
            raise Unsupported(f"a method {node.func.attr.value}")
        elif isinstance(node.func, cst.Name) and node.func.value not in (
            "min",
            "max",
            "float",
            "range",
            "abs",
        ):
            raise Unsupported(f"a call of {node.func.value}")
    _require_separate_tensors(kernel)


def _known(name: str) -> bool:
    plain = name.removeprefix("math.")
    return plain in ELEMENTWISE | {"arange", "program_id", "range"} or TYPES.fullmatch(plain) is not None


def _is_elementwise(helper: TritonKernel) -> bool:
    calls = [n for n in walk(helper.function.body) if isinstance(n, cst.Call)]
    names = [device_name(helper.source, n.func).removeprefix("math.") for n in calls]
    plain = all(n in ELEMENTWISE - {"load", "store"} or TYPES.fullmatch(n) for n in names)
    return plain and not any(isinstance(n, cst.Subscript) for n in walk(helper.function.body))


def _require_separate_tensors(kernel: TritonKernel) -> None:
    """Raises Unsupported where a tensor may be read and written."""
    own = {p.name.value for p in parameters(kernel.function)}
    touched: dict[str, set[str]] = {}
    for kind in ("load", "store"):
        touched[kind] = set()
        for call in device_calls(kernel.source, kernel.function, kind):
            for name in kernel.definition_closure(call.args[0].value) & own - kernel.constexprs:
                given = kernel.given(name)
                if given is not None and not _is_number(kernel, name):
                    touched[kind].add(kernel.source.code(given))
    both = touched["load"] & touched["store"]
    if both:
        raise Unsupported(f"{min(both)}, which may be read after it is written")


def _is_number(kernel: TritonKernel, name: str) -> bool:
    """Whether the launch passes a size, a stride or a constant for parameter ``name``, and no tensor."""
    given = kernel.given(name)
    assert given is not None
    if is_side(kernel, name):
        return True
    text = kernel.source.code(resolve(kernel.source, given)).replace("'", '"')
    whole = isinstance(given, cst.Integer | cst.Float | cst.UnaryOperation)
    return whole or any(mark in text for mark in (".shape[", ".stride(", ".size(", ".numel()", "params["))


def _depending(kernel: TritonKernel, calls: list[cst.Call]) -> set[str]:
    """Names whose value differs from row to row, loaded values among them. Raises Unsupported for control by them."""
    lines = list(statements(kernel.function.body))
    marked = {id(call) for call in calls}

    def differs(node: cst.CSTNode, names: set[str]) -> bool:
        return bool(reads(kernel.source, node) & names) or any(id(n) in marked for n in walk(node))

    names: set[str] = set()
    while True:
        before = len(names)
        for line in lines:
            found = assigned_value(line)
            one = small(line)
            if found and differs(found[1], names):
                names |= set(found[0])
            elif isinstance(one, cst.AugAssign) and differs(one.value, names):
                names |= set(target_names(one.target))
        if len(names) == before:
            break
    for statement in lines:
        if isinstance(statement, cst.If) and differs(statement.test, names):
            raise Unsupported("a branch on the row")
        if isinstance(statement, cst.For) and differs(statement.iter, names):
            raise Unsupported("a loop bounded by the row")
    return names


def _carried_scalars(kernel: TritonKernel, vectors: set[str]) -> list[cst.BaseExpression]:
    """First values, one number each, of what a loop carries from row values: they become columns."""
    in_loops: set[str] = set()
    for loop in kernel.loops:
        for line in statements(loop.body):
            in_loops |= _bound_by(line)
    starts = []
    for name in sorted(in_loops & vectors):
        for place in kernel.bound.get(name, ()):
            first = assigned_value(place)
            if first is None or kernel.source.enclosing(place, cst.For) is not None:
                continue
            if len(first[0]) != 1:
                raise Unsupported(f"{name}, bound beside others before a loop")
            value = first[1]
            if not reads(kernel.source, value) - {"float"} and not device_calls(kernel.source, value, *MADE):
                if "." not in kernel.source.code(value) and "float" not in kernel.source.code(value):
                    raise Unsupported(f"{name}, an integer that a loop carries")
                starts.append(value)
            elif isinstance(value, cst.Name):
                raise Unsupported(f"{name}, which a loop carries from {value.value}")
    return starts


def _bound_by(line: cst.CSTNode) -> set[str]:
    found, one = assigned_value(line), small(line)
    return (
        set(found[0]) if found else set(target_names(one.target)) if isinstance(one, cst.AugAssign) else set()
    )


def _as_row(call: cst.Call) -> cst.BaseExpression:
    code = cst.Module(body=[]).code_for_node(call)
    return cst.parse_expression(f"{code}[None, :]")


def _along_columns(call: cst.Call, tl: str) -> cst.BaseExpression:
    code = cst.Module(body=[])
    name, value = code.code_for_node(call.func), code.code_for_node(call.args[0].value)
    return cst.parse_expression(f"{name}({value}, axis=1, keep_dims=True)")


def _of_rows(call: cst.Call, rows: str) -> cst.Call:
    shape = call.args[0].value
    assert isinstance(shape, cst.Tuple | cst.List)
    code = cst.Module(body=[]).code_for_node(shape.elements[0].value)
    first = call.args[0].with_changes(value=cst.parse_expression(f"({rows}, {code})"))
    return call.with_changes(args=[first, *call.args[1:]])
