"""Rules on scalar arithmetic: reciprocals, exponents by bits, fusing two launches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import libcst as cst

from tilewright.evolve.proposers.rewrite.base import walk
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.common import NodeRule, add_device_helper, short
from tilewright.evolve.proposers.rewrite.triton.view import TritonKernel, device_name


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


_CEIL = '''@{jit}
def NAME(x):
    """ceil(log2(x)) of positive normal float32 numbers, from their bits."""
    bits = x.to({tl}.int32, bitcast=True)
    exponent = ((bits >> 23) & 255) - 127
    return (exponent + ((bits & 8388607) != 0).to({tl}.int32)).to({tl}.float32)'''
_FLOOR = '''@{jit}
def NAME(x):
    """floor(log2(x)) of positive normal float32 numbers, from their bits."""
    bits = x.to({tl}.int32, bitcast=True)
    return (((bits >> 23) & 255) - 127).to({tl}.float32)'''


class ExponentByBits(NodeRule):
    """``ceil(log2(x))`` and ``floor(log2(x))`` from the bits of x."""

    name = "triton_exponent_by_bits"
    why = (
        "A power-of-two scale needs the exponent only. Reading it from the bits is exact, where log2 rounds to the "
        "wrong side next to powers of two, and avoids the special-function unit."
    )

    def find(self, kernel: TritonKernel) -> Iterable[tuple[str, Any]]:
        for node in walk(kernel.function):
            if not isinstance(node, cst.Call) or len(node.args) != 1:
                continue
            outer = device_name(kernel.source, node.func).split(".")[-1]
            inner = node.args[0].value
            if outer not in ("ceil", "floor") or not isinstance(inner, cst.Call) or len(inner.args) != 1:
                continue
            if device_name(kernel.source, inner.func).split(".")[-1] == "log2":
                yield f"bits for {short(kernel.source, node)}", (node, outer, inner.args[0].value)

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        node, outer, value = payload
        name = kernel.source.fresh(f"{outer}_log2")
        add_device_helper(edit, kernel, (_CEIL if outer == "ceil" else _FLOOR).replace("NAME", name))
        edit.replace(node, f"{name}({kernel.source.code(value)})")
