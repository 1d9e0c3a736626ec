"""Plans without a device: what a kernel would do to memory, done by the recipe on this process's own.

A ``MemoryPlan`` takes addresses as a plan on a device does, reads its inputs there, and writes the reference's results
and a pattern into its scratch. Every address is checked to lie in memory that somebody holds.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.library.loaded import operands_of
from tilewright.library.plans.format import DTYPE_BYTES, Output, Tensor
from tilewright.library.torch_contract import FAMILY, REFERENCES
from tilewright.library.torch_launch import Served

SCRATCH_BYTES = 320


class _Shape:
    """As much of a plan as a chain looks at: operands, buffers, one of them scratch."""

    def __init__(self, operator: str, dims: Sequence[int], scratch: bool) -> None:
        operands = operands_of(operator)
        named = operands.named(dims)
        self.inputs = [Tensor(o.name, o.dtype, o.sizes(named)) for o in operands.inputs]
        sizes = [math.prod(o.sizes(named)) * DTYPE_BYTES[o.dtype] for o in operands.outputs]
        # the scratch comes first, so that outputs are not simply the buffers in order
        self.scratch = (SCRATCH_BYTES,) if scratch else ()
        self.buffers = (*self.scratch, *sizes)
        self.outputs = [
            Output(o.name, o.dtype, o.sizes(named), number + len(self.scratch), 0)
            for number, o in enumerate(operands.outputs)
        ]


class MemoryPlan:
    """One operator at one shape, on addresses."""

    def __init__(self, operator: str, dims: Sequence[int], scratch: bool = True, rows: int | None = None) -> None:
        self.operator, self.plan = operator, _Shape(operator, dims, scratch)
        self._missing = 0
        if rows is not None:
            first = self.plan.inputs[0]
            self._missing = first.shape[0] - rows
            self.plan.inputs[0] = Tensor(first.name, first.dtype, (rows, *first.shape[1:]))
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        assert len(addresses) == len(self.plan.inputs) + len(self.plan.buffers)
        assert all(address and address % 16 == 0 for address in addresses)
        self.calls.append((list(addresses), stream))
        inputs = {t.name: _at(address, t) for t, address in zip(self.plan.inputs, addresses, strict=False)}
        if self._missing:
            first = self.plan.inputs[0].name
            inputs[first] = torch.nn.functional.pad(inputs[first], (0, 0, 0, self._missing))
        buffers = addresses[len(self.plan.inputs) :]
        if self.plan.scratch:
            ctypes.memset(buffers[0], 0xA5, SCRATCH_BYTES)
        for output, result in zip(self.plan.outputs, REFERENCES[self.operator](inputs), strict=True):
            _at(buffers[output.buffer], output).copy_(result)

    def bind(self) -> None:
        """There is no context to enter."""

    def prepared(self, addresses: Sequence[int], stream: int) -> list[tuple[Any, ...]]:
        """As ``Ready.prepared``."""
        kept = list(addresses)

        def launch() -> int:
            self(kept, stream)
            return 0

        return [(launch, (), self)]


def _at(address: int, tensor: Tensor) -> torch.Tensor:
    """The tensor at an address."""
    memory = (ctypes.c_ubyte * tensor.bytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(getattr(torch, tensor.dtype)).view(tensor.shape)


class MemoryLauncher:
    """Serves every operator of the family by a ``MemoryPlan``; those in ``without`` have none."""

    def __init__(self, without: frozenset[str] = frozenset(), rows: int = 0) -> None:
        self.plans: dict[tuple[str, tuple[int, ...], int | None], Any] = {}
        self.rows = rows
        self._without = without

    def verified(self, operator: str, dimension: str, device: torch.device) -> int:
        """As ``torch_launch.Launcher.verified``: rows up to which one operator serves a layer."""
        return self.rows

    def serve(self, operator: str, dims: tuple[int, ...], *rest: Any) -> Served:  # the last: rows that are there
        """As ``torch_launch.Launcher.serve``."""
        name = operator.removeprefix(f"{FAMILY}/")
        reference = REFERENCES[operator]
        if name in self._without:
            return Served("reference", reference)
        rows: int | None = rest[-1]
        plan = self.plans.setdefault((name, dims, rows), MemoryPlan(operator, dims, rows=rows))

        def call(inputs: Mapping[str, torch.Tensor]) -> Any:
            return reference(inputs)

        return Served("plan", call, plan)
