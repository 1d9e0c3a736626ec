"""Parts that operators over a few matrix dimensions share: sizes, what a workload must obey, and specs that follow.

A family's operator derives from ``Shaped`` (or ``Product``) and says ``operands`` and ``results`` of its dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tilewright.seeds.operator import TensorSpec, Workload


class Shaped:
    """``axes`` name the dimensions a workload has, in the order the specs take them."""

    name: str
    axes: ClassVar[str] = "MK"

    @property
    def multiples(self) -> Mapping[str, int]:
        """What dimensions must be multiples of, by axis."""
        return {}

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """Operands in call order, of these dimensions."""
        raise NotImplementedError

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """Results in return order, of these dimensions."""
        raise NotImplementedError

    def dims(self, workload: Workload) -> tuple[int, ...]:
        """The workload's sizes. Raises ValueError for one that is no multiple of what it must be."""
        for axis, multiple in self.multiples.items():
            if workload.dims[axis] % multiple:
                rule = " and ".join(f"{a} to be a multiple of {n}" for a, n in self.multiples.items())
                raise ValueError(f"workload {workload.id}: {self.name} needs {rule}")
        return tuple(workload.dims[axis] for axis in self.axes)

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        """``operands`` of the workload. Raises ValueError for a variant, or a shape the operator lacks."""
        if variant is not None:
            raise ValueError(f"{self.name} has no inputs variant {variant!r}")
        return self.operands(*self.dims(workload))

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """``results`` of the workload."""
        return self.results(*self.dims(workload))


class Product(Shaped):
    """C [M, N] from A [M, K] and B [N, K]."""

    axes: ClassVar[str] = "MNK"

    def flops(self, workload: Workload) -> int:
        """2 M N K."""
        m, n, k = self.dims(workload)
        return 2 * m * n * k
