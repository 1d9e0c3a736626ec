"""Parts that operators over a few matrix dimensions share: sizes, what a workload must obey, specs, bytes and suites.

A family's operator derives from ``Shaped`` (or ``Product``) and says ``operands`` and ``results`` of its dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar

import ml_dtypes
import numpy as np

from tilewright.seeds.operator import Suite, TensorSpec, Workload


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

    def bytes(self, workload: Workload) -> int:
        """Operands and scales once, results once."""
        specs = (*self.inputs(workload), *self.outputs(workload))
        return sum(math.prod(spec.shape) * _item_bytes(spec.dtype) for spec in specs)


class Product(Shaped):
    """C [M, N] from A [M, K] and B [N, K]."""

    axes: ClassVar[str] = "MNK"

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """The product ``c`` [M, N] in bfloat16."""
        m, n, _ = dims
        return (TensorSpec("c", (m, n), "bfloat16"),)

    def flops(self, workload: Workload) -> int:
        """2 M N K."""
        m, n, k = self.dims(workload)
        return 2 * m * n * k


def gemm(m: int, n: int, k: int, prefix: str = "") -> Workload:
    """A product's workload, named by its sizes."""
    return Workload(f"{prefix}{m}x{n}x{k}", {"M": m, "N": n, "K": k})


def matrix(m: int, k: int, prefix: str = "") -> Workload:
    """The workload of an operator over one matrix, named by its sizes."""
    return Workload(f"{prefix}{m}x{k}", {"M": m, "K": k})


def suites_of(lists: Mapping[str, Iterable[Workload]], check: tuple[Workload, ...]) -> Mapping[str, Suite]:
    """Suites by name, all checked on the same shapes."""
    return MappingProxyType({name: Suite(name, tuple(timed), check) for name, timed in lists.items()})


def _item_bytes(dtype: str) -> int:
    kind = np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)
    return int(kind.itemsize)
