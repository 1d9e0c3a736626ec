"""Quotients and products with reciprocals, for the rules of Triton and Pallas that turn one into the other."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import KernelSource, short, walk
from tilewright.evolve.proposers.rewrite.dataflow import resolve
from tilewright.evolve.proposers.rewrite.edit import Edit


def tight(kernel: KernelSource, node: cst.BaseExpression) -> str:
    """Text of an operand of a product or a quotient, in parentheses where it needs them."""
    text = kernel.code(node)
    return f"({text})" if isinstance(node, cst.BinaryOperation | cst.IfExp) and not node.lpar else text


def divisions(kernel: KernelSource, function: cst.FunctionDef) -> Iterator[tuple[str, cst.BinaryOperation]]:
    """(description, quotient) of every ``x / y`` whose x is no number."""
    for node in walk(function):
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Divide):
            continue
        if not isinstance(resolve(kernel, node.left), cst.Integer | cst.Float):
            yield f"multiply instead of {short(kernel, node)}", node


def multiply_instead(edit: Edit, node: cst.BinaryOperation) -> None:
    """``x / y`` becomes ``x * (1.0 / y)``."""
    kernel = edit.kernel
    edit.replace(node, f"{tight(kernel, node.left)} * (1.0 / {tight(kernel, node.right)})")


Product = tuple[cst.BinaryOperation, cst.BaseExpression, cst.BaseExpression]
"""``x * (1 / y)``, its x and its y."""


def reciprocal_products(kernel: KernelSource, function: cst.FunctionDef) -> Iterator[tuple[str, Product]]:
    """(description, product) of every ``x * (1 / y)`` whose y is no number."""
    for node in walk(function):
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
            for left, right in ((node.left, node.right), (node.right, node.left)):
                if not isinstance(right, cst.BinaryOperation) or not isinstance(right.operator, cst.Divide):
                    continue
                one = kernel.code(right.left) in ("1", "1.0")
                if one and not isinstance(right.right, cst.Integer | cst.Float):
                    yield f"divide instead of {short(kernel, node)}", (node, left, right.right)
                    break


def divide_instead(edit: Edit, product: Product) -> None:
    """``x * (1 / y)`` becomes ``x / y``."""
    node, left, divisor = product
    edit.replace(node, f"{tight(edit.kernel, left)} / {tight(edit.kernel, divisor)}")
