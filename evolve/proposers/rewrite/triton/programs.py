"""Rules on how programs map to tiles and loops: order, persistence, split-K, loop and launch options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Language, Unsupported, walk
from tilewright.evolve.proposers.rewrite.dataflow import (
    assigned_value,
    definitions,
    parameter_access,
    parameters,
    small,
    statements,
)
from tilewright.evolve.proposers.rewrite.edit import Edit, with_keyword
from tilewright.evolve.proposers.rewrite.triton.dots import accumulation, is_dot
from tilewright.evolve.proposers.rewrite.triton.view import (
    NodeRule,
    TritonKernel,
    argument,
    device_calls,
    device_name,
    range_of,
)

Reduction = tuple[cst.For, tuple[str, str, str], cst.Call, str, tuple[str, cst.Call, str]]
"""A reduction: loop, its bounds, the store, the sum's name, (name, allocation, dtype) of the output."""

LoopOption = tuple[cst.Call, str, tuple[int | bool, ...], int | bool]
"""An option of a loop: the call of ``range``, its keyword, values and default."""


def program_axis(kernel: TritonKernel, node: cst.CSTNode) -> int | None:
    if isinstance(node, cst.Call) and device_name(kernel.source, node.func) == "program_id":
        axis = argument(node, "axis", 0)
        return int(axis.value) if isinstance(axis, cst.Integer) else None
    return None


class SwapProgramAxes(NodeRule[list[cst.BaseExpression]]):
    """Exchange the two axes of a two-dimensional grid."""

    name = "triton_swap_program_axes"
    launched = True
    why = (
        "The first grid axis runs fastest: exchanging the axes changes which operand neighbours share in L2."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, list[cst.BaseExpression]]]:
        grid = kernel.grid()
        if len(grid) == 2:
            yield "exchange the grid's axes", grid

    def change(self, edit: Edit, kernel: TritonKernel, payload: list[cst.BaseExpression]) -> None:
        first, second = payload
        edit.replace(first, kernel.source.code(second))
        edit.replace(second, kernel.source.code(first))
        for call in device_calls(kernel.source, kernel.function, "program_id", "num_programs"):
            axis = argument(call, "axis", 0)
            if isinstance(axis, cst.Integer) and axis.value in ("0", "1"):
                edit.replace(axis, "1" if axis.value == "0" else "0")


class PersistentGrid(NodeRule[cst.BaseExpression]):
    """Launch a fixed number of programs, each walking over many tiles."""

    name = "triton_persistent_grid"
    launched = True
    why = (
        "As many programs as the device holds, each looping over tiles, pay the launch and prologue once and let the "
        "next tile's loads start during this one's epilogue."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, cst.BaseExpression]]:
        grid = kernel.grid()
        text = kernel.source.code(kernel.function.body)
        loops = any(isinstance(n, cst.Return) for n in walk(kernel.function))
        calls = device_calls(kernel.source, kernel.function, "program_id")
        converted = any(isinstance(kernel.source.parents.get(c), cst.Attribute) for c in calls)
        if len(grid) == 1 and "num_programs" not in text and not loops and calls and not converted:
            yield "loop over tiles", grid[0]

    def change(self, edit: Edit, kernel: TritonKernel, payload: cst.BaseExpression) -> None:
        total, tile = kernel.source.fresh("total_tiles"), kernel.source.fresh("tile_id")
        parameter = edit.add_parameter("programs", (66, 132, 264, 528), 132)
        access = parameter_access(kernel.source, kernel.launch(), parameter)
        count = kernel.source.code(payload)
        edit.replace(payload, f"min({count}, {access})")
        kernel.add_argument(edit, total, count, constexpr=False)
        for call in device_calls(kernel.source, kernel.function, "program_id"):
            edit.replace(call, tile)
        given = {parameter.name.value for parameter in parameters(kernel.function)}
        moved = [name for name in definitions(kernel.function) if name in given]
        own = {name: kernel.source.fresh(f"tile_{name}") for name in moved}
        header = f"for {tile} in range({kernel.tl}.program_id(0), {total}, {kernel.tl}.num_programs(0)):"
        edit.transform(kernel.function.body, partial(_in_loop, header=header, own=own))


class _Renamed(cst.CSTTransformer):
    """Names under others, where they stand for values."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self._names = names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(value=self._names.get(updated_node.value, updated_node.value))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)


def _in_loop(block: cst.IndentedBlock, header: str, own: Mapping[str, str]) -> cst.IndentedBlock:
    """``own``: arguments that a tile moves on, such as pointers, and the names that each tile has for them."""
    body = list(block.body)
    docs = []
    first = small(body[0])
    if isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString):
        docs, body = body[:1], body[1:]
    begin = [cst.parse_statement(f"{fresh} = {name}") for name, fresh in own.items()]
    renamed: list[Any] = [statement.visit(_Renamed(own)) for statement in body]
    loop = cst.parse_module(f"{header}\n    pass\n").body[0]
    assert isinstance(loop, cst.For)
    return block.with_changes(
        body=[*docs, loop.with_changes(body=loop.body.with_changes(body=[*begin, *renamed]))]
    )


class SplitK(NodeRule[Reduction]):
    """Share a tile's reduction between several programs that add their parts atomically."""

    name = "triton_split_k"
    launched = True
    why = (
        "A small output with a long reduction leaves most of the device idle. Splitting the reduction multiplies the "
        "programs, at the price of a float32 output that parts are added to."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Reduction]]:
        stores = device_calls(kernel.source, kernel.function, "store")
        if len(kernel.grid()) != 1 or len(stores) != 1 or len(kernel.loops) != 1:
            return
        loop, store = kernel.loops[0], stores[0]
        bounds = range_of(kernel.source, loop)
        value = _plain(kernel, argument(store, "value", 1))
        sums = {a[0] for s in statements(loop.body) if (a := accumulation(kernel, s))}
        moved = {
            kernel.source.code(line.target)
            for s in statements(loop.body)
            if isinstance(line := small(s), cst.AugAssign)
        }
        holds = any(is_dot(kernel, n) for n in walk(loop))
        output = _allocation(kernel, store)
        if bounds and bounds[0] == "0" and holds and output and value in sums and moved <= sums | {value}:
            yield "split the reduction", (loop, bounds, store, value, output)

    def change(
        self,
        edit: Edit,
        kernel: TritonKernel,
        payload: Reduction,
    ) -> None:
        loop, (_, stop, step), store, value, (name, allocation, dtype) = payload
        parameter = edit.add_parameter("split_k", (1, 2, 4, 8), 2)
        access = parameter_access(kernel.source, kernel.launch(), parameter)
        edit.transform(_grid_tuple(kernel), partial(_with_element, text=access))
        tl, code = kernel.tl, kernel.source.code
        first = f"{tl}.program_id(1)" if step == "1" else f"{tl}.program_id(1) * ({step})"
        stride = f"{tl}.num_programs(1)" if step == "1" else f"{tl}.num_programs(1) * ({step})"
        edit.replace(loop.iter, f"range({first}, {stop}, {stride})")
        mask = argument(store, "mask", 2)
        masked = f", mask={code(mask)}" if mask is not None else ""
        edit.replace(store, f"{tl}.atomic_add({code(store.args[0].value)}, {value}{masked})")
        edit.replace(allocation.func, code(allocation.func).replace("empty", "zeros"))
        for item in allocation.args:
            if item.keyword is not None and item.keyword.value == "dtype":
                edit.replace(item.value, code(item.value).rpartition(".")[0] + ".float32")
        _convert_result(edit, kernel, name, dtype)


def _plain(kernel: TritonKernel, node: cst.BaseExpression | None) -> str:
    """The accumulator behind ``acc.to(...)`` and names bound to it."""
    while node is not None:
        if (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "to"
        ):
            node = node.func.value
        elif isinstance(node, cst.Name):
            value = kernel.value_of(node.value)
            is_cast = isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute)
            if not is_cast or value.func.attr.value != "to":  # type: ignore[union-attr]
                return node.value
            node = value
        else:
            return ""
    return ""


def _allocation(kernel: TritonKernel, store: cst.Call) -> tuple[str, cst.Call, str] | None:
    """(name, allocation, dtype text) of the output a store writes, if ``launch`` allocates it with empty."""
    names = kernel.definition_closure(store.args[0].value)
    source = kernel.source
    for name in sorted(names):
        given = kernel.given(name) if name in [p.name.value for p in kernel.function.params.params] else None
        if not isinstance(given, cst.Name):
            continue
        scope = source.enclosing(kernel.launch(), cst.FunctionDef)
        for statement in statements(scope.body) if scope else ():
            found = assigned_value(statement)
            if found and found[0] == [given.value] and isinstance(found[1], cst.Call):
                call = found[1]
                dtype = next(
                    (source.code(a.value) for a in call.args if a.keyword and a.keyword.value == "dtype"), ""
                )
                if source.qualified(call.func) == "torch.empty" and dtype:
                    return given.value, call, dtype
    return None


def _grid_tuple(kernel: TritonKernel) -> cst.CSTNode:
    """The tuple of a grid, or the subscript of one written without parentheses."""
    node = kernel.source.parents[kernel.grid()[0]]
    while not isinstance(node, cst.Tuple | cst.List | cst.Subscript):
        node = kernel.source.parents[node]
    return node


def _with_element(node: Any, text: str) -> Any:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    value = cst.parse_expression(text)
    if isinstance(node, cst.Subscript):
        first = node.slice[0].with_changes(comma=comma)
        return node.with_changes(slice=[first, cst.SubscriptElement(cst.Index(value))])
    return node.with_changes(elements=[node.elements[0].with_changes(comma=comma), cst.Element(value)])


def _convert_result(edit: Edit, kernel: TritonKernel, name: str, dtype: str) -> None:
    scope = kernel.source.enclosing(kernel.launch(), cst.FunctionDef)
    for node in walk(scope) if scope else ():
        if isinstance(node, cst.Return) and node.value is not None:
            for inner in walk(node.value):
                if isinstance(inner, cst.Name) and inner.value == name:
                    edit.replace(inner, f"{name}.to({dtype})")
                    return
    raise Unsupported("an output that launch does not return by name")


_OPTIONS: tuple[tuple[str, tuple[int | bool, ...], int | bool], ...] = (
    ("num_stages", (1, 2, 3, 4, 5), 3),
    ("loop_unroll_factor", (1, 2, 4), 2),
    ("disallow_acc_multi_buffer", (False, True), True),
    ("flatten", (False, True), True),
    ("warp_specialize", (False, True), True),
)


class RangeOption(NodeRule[LoopOption]):
    """Give a loop one of ``tl.range``'s options as a parameter."""

    name = "triton_range_option"
    launched = True
    why = (
        "The depth of a loop's pipeline, its unrolling, flattening, accumulator buffering and warp specialisation are "
        "the compiler's choice unless the loop says otherwise."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, LoopOption]]:
        for number, loop in enumerate(kernel.loops):
            call = loop.iter
            if range_of(kernel.source, loop) is None or not isinstance(call, cst.Call):
                continue
            given = {a.keyword.value for a in call.args if a.keyword is not None}
            for option, values, default in _OPTIONS:
                if option not in given:
                    yield f"{option} of loop {number}", (call, option, values, default)

    def change(
        self,
        edit: Edit,
        kernel: TritonKernel,
        payload: LoopOption,
    ) -> None:
        call, option, values, default = payload
        name = kernel.add_tunable(edit, option if option != "num_stages" else "loop_stages", values, default)
        edit.replace(call.func, f"{kernel.tl}.range")
        edit.transform(call, partial(with_keyword, keyword=option, text=name))


class LaunchOption(NodeRule[tuple[str, tuple[int, ...], int]]):
    """Make a launch option a parameter."""

    name = "triton_launch_option"
    launched = True
    why = (
        "Warps per program, pipeline stages and the register limit decide occupancy; their defaults fit no kernel in "
        "particular."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, tuple[str, tuple[int, ...], int]]]:
        given = {a.keyword.value for a in kernel.launch().args if a.keyword is not None}
        options = (
            ("num_warps", (2, 4, 8), 4),
            ("num_stages", (1, 2, 3, 4, 5), 3),
            ("maxnreg", (128, 168, 255), 255),
        )
        # nothing pipelines a Gluon kernel's loops but itself
        unread = {"num_stages"} if kernel.source.language is Language.GLUON else set[str]()
        for option, values, default in options:
            if option not in given | unread:
                yield f"choose {option}", (option, values, default)

    def change(self, edit: Edit, kernel: TritonKernel, payload: tuple[str, tuple[int, ...], int]) -> None:
        option, values, default = payload
        parameter = edit.add_parameter(option, values, default)
        access = parameter_access(kernel.source, kernel.launch(), parameter)
        edit.transform(kernel.launch(), partial(with_keyword, keyword=option, text=access))
