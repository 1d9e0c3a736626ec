"""Rules on the matrix product: operand swap, where partials add up."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import short, walk
from tilewright.evolve.proposers.rewrite.dataflow import assigned_value, small
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.view import (
    NodeRule,
    TritonKernel,
    argument,
    device_calls,
    device_name,
)


def accumulation(kernel: TritonKernel, statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """(name, value) of ``acc += value`` and ``acc = acc + value``."""
    line = small(statement)
    adds = isinstance(line, cst.AugAssign) and isinstance(line.operator, cst.AddAssign)
    if adds and isinstance(line.target, cst.Name):  # type: ignore[union-attr]
        return line.target.value, line.value  # type: ignore[union-attr]
    found = assigned_value(statement)
    if found and len(found[0]) == 1 and isinstance(found[1], cst.BinaryOperation):
        name, value = found[0][0], found[1]
        if isinstance(value.operator, cst.Add):
            if kernel.source.code(value.left) == name:
                return name, value.right
            if kernel.source.code(value.right) == name:
                return name, value.left
    return None


def is_dot(kernel: TritonKernel, node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and device_name(kernel.source, node.func) == "dot"


class SwapOperands(NodeRule[cst.Call]):
    """Compute the transposed product from swapped operands."""

    name = "triton_swap_operands"
    why = (
        "The matrix unit's tile is not square: with few rows and many columns the transposed product wastes less of "
        "it, and the other operand comes through registers."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, cst.Call]]:
        for call in device_calls(kernel.source, kernel.function, "dot"):
            parent = kernel.source.parents.get(call)
            turned = (
                isinstance(parent, cst.Arg)
                and "trans" in kernel.source.code(kernel.source.parents[parent])[:12]
            )
            plain = all(a.keyword is None or a.keyword.value in ("acc", "out_dtype") for a in call.args)
            if plain and not turned:
                yield f"swap the operands of {short(kernel.source, call)}", call

    def change(self, edit: Edit, kernel: TritonKernel, payload: cst.Call) -> None:
        tl = kernel.tl
        left, right = (self._transpose_of(kernel, payload.args[i].value) for i in (0, 1))
        text = f"{tl}.trans({tl}.dot({right}, {left}))"
        acc = argument(payload, "acc", 2)
        edit.replace(payload, f"{kernel.source.code(acc)} + {text}" if acc is not None else text)

    def _transpose_of(self, kernel: TritonKernel, node: cst.BaseExpression) -> str:
        if (
            isinstance(node, cst.Call)
            and device_name(kernel.source, node.func) == "trans"
            and len(node.args) == 1
        ):
            return kernel.source.code(node.args[0].value)
        if isinstance(node, cst.Attribute) and node.attr.value == "T":
            return kernel.source.code(node.value)
        return f"{kernel.tl}.trans({kernel.source.code(node)})"


class AccumulateInDot(NodeRule[tuple[cst.SimpleStatementLine, str, cst.Call]]):
    """``acc += dot(a, b)`` as ``acc = dot(a, b, acc)``."""

    name = "triton_accumulate_in_dot"
    why = "Handing the accumulator to the dot keeps it in the matrix unit's registers and saves an add per element."

    def find(
        self, kernel: TritonKernel
    ) -> Iterable[tuple[str, tuple[cst.SimpleStatementLine, str, cst.Call]]]:
        for node in walk(kernel.function):
            found = accumulation(kernel, node) if isinstance(node, cst.SimpleStatementLine) else None
            if found is None or not isinstance(node, cst.SimpleStatementLine):
                continue
            name, dot = found
            if isinstance(dot, cst.Call) and is_dot(kernel, dot) and len(dot.args) == 2:
                yield f"{name} inside the dot", (node, name, dot)

    def change(
        self, edit: Edit, kernel: TritonKernel, payload: tuple[cst.SimpleStatementLine, str, cst.Call]
    ) -> None:
        statement, acc, dot = payload
        left, right = (kernel.source.code(a.value) for a in dot.args[:2])
        edit.replace_statement(statement, f"{acc} = {kernel.source.code(dot.func)}({left}, {right}, {acc})")
