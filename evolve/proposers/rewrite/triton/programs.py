"""Rules on how programs map to tiles and loops: a persistent grid, options of launches."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import Language, walk
from tilewright.evolve.proposers.rewrite.dataflow import definitions, parameter_access, parameters, small
from tilewright.evolve.proposers.rewrite.edit import Edit, with_keyword
from tilewright.evolve.proposers.rewrite.triton.view import NodeRule, TritonKernel, device_calls


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
