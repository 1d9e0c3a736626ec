"""A rule on scalar arithmetic: division against reciprocal."""

from collections.abc import Iterator

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, short, walk
from tilewright.evolve.proposers.rewrite.dataflow import resolve
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.view import NodeRule, TritonKernel


class DivideToReciprocal(NodeRule[cst.BinaryOperation]):
    """``x / y`` to ``x * (1 / y)``, where x is no number."""

    name = "triton_divide_to_reciprocal"
    why = "One division per row and a product per element instead of a division per element, where the gate allows it."

    def find(self, kernel: TritonKernel) -> Iterator[tuple[str, cst.BinaryOperation]]:
        for node in walk(kernel.function):
            if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Divide):
                continue
            if not isinstance(resolve(kernel.source, node.left), cst.Integer | cst.Float):
                yield f"multiply instead of {short(kernel.source, node)}", node

    def change(self, edit: Edit, kernel: TritonKernel, payload: cst.BinaryOperation) -> None:
        left, right = (_tight(kernel.source, side) for side in (payload.left, payload.right))
        edit.replace(payload, f"{left} * (1.0 / {right})")


def _tight(kernel: KernelSource, node: cst.BaseExpression) -> str:
    """Text of an operand of a product or a quotient, in parentheses where it needs them."""
    text = kernel.code(node)
    return f"({text})" if isinstance(node, cst.BinaryOperation | cst.IfExp) and not node.lpar else text
