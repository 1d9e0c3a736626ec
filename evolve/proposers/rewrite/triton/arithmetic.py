"""Rules on scalar arithmetic: division against reciprocal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.evolve.proposers.rewrite import quotients
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.triton.view import NodeRule, TritonKernel


class DivideToReciprocal(NodeRule):
    """``x / y`` to ``x * (1 / y)``."""

    name = "triton_divide_to_reciprocal"
    why = "One division per row and a product per element instead of a division per element, where the gate allows it."

    def find(self, kernel: TritonKernel) -> Iterator[tuple[str, Any]]:
        return quotients.divisions(kernel.source, kernel.function)

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        quotients.multiply_instead(edit, payload)


class ReciprocalToDivide(NodeRule):
    """``x * (1 / y)`` to ``x / y``."""

    name = "triton_reciprocal_to_divide"
    why = "Division rounds once: needed where a gate compares every bit."

    def find(self, kernel: TritonKernel) -> Iterator[tuple[str, Any]]:
        return quotients.reciprocal_products(kernel.source, kernel.function)

    def change(self, edit: Edit, kernel: TritonKernel, payload: Any) -> None:
        quotients.divide_instead(edit, payload)
