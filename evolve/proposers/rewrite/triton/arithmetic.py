"""Rules on scalar arithmetic: reciprocals, exponents by bits, fusing two launches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import walk
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.common import NodeRule, short
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel


def _tight(kernel: TritonKernel, node: cst.BaseExpression) -> str:
    text = kernel.source.code(node)
    return f"({text})" if isinstance(node, cst.BinaryOperation | cst.IfExp) and not node.lpar else text


class DivideToReciprocal(NodeRule):
    """``x / y`` to ``x * (1 / y)``."""

    name = "triton_divide_to_reciprocal"
    why = "One division per row and a product per element instead of a division per element, where the gate allows it."

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        for node in walk(kernel.function):
            quotient = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)
            if quotient and not isinstance(node.left, cst.Integer | cst.Float):  # type: ignore[attr-defined]
                yield f"multiply instead of {short(kernel.source, node)}", node

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        edit.replace(payload, f"{_tight(kernel, payload.left)} * (1.0 / {_tight(kernel, payload.right)})")


class ReciprocalToDivide(NodeRule):
    """``x * (1 / y)`` to ``x / y``."""

    name = "triton_reciprocal_to_divide"
    why = "Division rounds once: needed where a gate compares every bit."

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        for node in walk(kernel.function):
            if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
                for left, right in ((node.left, node.right), (node.right, node.left)):
                    one = isinstance(right, cst.BinaryOperation) and isinstance(right.operator, cst.Divide)
                    if one and kernel.source.code(right.left) in ("1", "1.0"):  # type: ignore[attr-defined]
                        yield f"divide instead of {short(kernel.source, node)}", (node, left, right.right)  # type: ignore[attr-defined]
                        break

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        node, left, divisor = payload
        edit.replace(node, f"{_tight(kernel, left)} / {_tight(kernel, divisor)}")
