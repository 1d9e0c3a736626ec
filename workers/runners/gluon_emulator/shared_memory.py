"""Shared memory of an emulated program with its accesses, the barriers that order them, copies and products."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.workers.runners.gluon_emulator.global_memory import Descriptor
from tilewright.workers.runners.gluon_emulator.machine import Clock, Machine, Partition
from tilewright.workers.runners.gluon_emulator.values import (
    EmulationError,
    Race,
    StrayAccess,
    Tensor,
    dtype_of,
    lift,
    storage,
)

Box = tuple[tuple[int, int], ...]
"""First and one past the last index of every dimension of an allocation."""

SHARED_BYTES = 232448
"""Shared memory of one program on Hopper."""


class Access:
    """One access of a box of shared memory that later ones must respect."""

    __slots__ = ("box", "fenced", "moment", "what", "writes")

    def __init__(self, box: Box, what: str, writes: bool, moment: tuple[Any, int] | None) -> None:
        self.box, self.what, self.writes, self.moment = box, what, writes, moment
        self.fenced: tuple[Any, int] | None = None
        """For what registers wrote: when it was fenced off for copies and products."""


class Allocation:
    """A piece of shared memory, its elements and the accesses still worth knowing of."""

    def __init__(self, machine: Machine, dtype: Any, shape: Sequence[int], layout: Any) -> None:
        self.machine, self.dtype, self.layout = machine, dtype, layout
        self.data = np.full([int(n) for n in shape], 0, storage(dtype))
        self.data.view(np.uint8)[...] = 0xFF
        self.written = np.zeros(self.data.shape, np.bool_)
        self.accesses: list[Access] = []
        machine.allocations.append(self)
        total = sum(a.data.nbytes for a in machine.allocations)
        if total > SHARED_BYTES:
            raise EmulationError(f"shared memory of {total} bytes where a program has {SHARED_BYTES}")

    def read(self, box: Box, what: str, *, asynchronous: bool) -> None:
        """Raises Race unless the partition knows of every write of ``box``."""
        me = self.machine.partition
        for access in self.accesses:
            if not access.writes or not _overlap(access.box, box):
                continue
            if access.moment is None or not me.knows(access.moment):
                raise Race(f"{what} by {me.name} of shared memory that {access.what} may still write")
            generic = not access.what.startswith("a copy")
            if asynchronous and generic and (access.fenced is None or not me.knows(access.fenced)):
                raise Race(f"{what} by {me.name} of what {access.what} wrote, without fence_async_shared between")

    def overwrite(self, box: Box, what: str) -> None:
        """Raises Race unless the partition knows of every access of ``box``; they are forgotten."""
        me = self.machine.partition
        for access in self.accesses:
            if _overlap(access.box, box) and (access.moment is None or not me.knows(access.moment)):
                verb = "write" if access.writes else "read"
                raise Race(f"{what} by {me.name} over shared memory that {access.what} may still {verb}")
        self.accesses = [a for a in self.accesses if not _within(a.box, box)]

    def note(self, box: Box, what: str, writes: bool, moment: tuple[Any, int] | None) -> Access:
        made = Access(box, what, writes, moment)
        if moment is not None and not writes:
            self.accesses = [
                a for a in self.accesses if a.writes or a.moment is None or a.box != box or a.moment[0] != moment[0]
            ]
        self.accesses.append(made)
        return made


def _overlap(one: Box, two: Box) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one, two, strict=True))


def _within(inner: Box, outer: Box) -> bool:
    return all(c <= a and b <= d for (a, b), (c, d) in zip(inner, outer, strict=True))


class Shared:
    """A view of shared memory, as the language's ``shared_memory_descriptor``."""

    def __init__(self, whole: Allocation, data: np.ndarray, written: np.ndarray, box: Box) -> None:
        self.whole, self.data, self.written, self.box = whole, data, written, box

    @classmethod
    def allocate(cls, machine: Machine, dtype: Any, shape: Sequence[Any], layout: Any, value: Any) -> "Shared":
        made = Allocation(machine, dtype, [int(n) for n in shape], layout)
        view = cls(made, made.data, made.written, tuple((0, n) for n in made.data.shape))
        if value is not None:
            view.store(value)
        return view

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    @property
    def dtype(self) -> Any:
        return self.whole.dtype

    @property
    def layout(self) -> Any:
        return self.whole.layout

    @property
    def rank(self) -> int:
        return self.data.ndim

    @property
    def type(self) -> Any:
        about = {"shape": self.shape, "layout": self.layout, "element_ty": self.dtype}
        return type("shared", (), about)

    def index(self, index: Any) -> "Shared":
        number = int(index)
        if not 0 <= number < self.data.shape[0]:
            raise StrayAccess(f"stage {number} of a ring of {self.data.shape[0]}")
        dim = len(self.box) - self.data.ndim
        start = self.box[dim][0] + number
        box = (*self.box[:dim], (start, start + 1), *self.box[dim + 1 :])
        return Shared(self.whole, self.data[number], self.written[number], box)

    def slice(self, start: Any, length: Any, dim: Any = 0) -> "Shared":
        first, size, axis = int(start), int(length), int(dim)
        if first < 0 or first + size > self.data.shape[axis]:
            raise StrayAccess(f"elements {first} to {first + size} of {self.data.shape[axis]} in shared memory")
        where = tuple(slice(first, first + size) if i == axis else slice(None) for i in range(self.data.ndim))
        own = len(self.box) - self.data.ndim + axis
        low = self.box[own][0] + first
        box = (*self.box[:own], (low, low + size), *self.box[own + 1 :])
        return Shared(self.whole, self.data[where], self.written[where], box)

    def permute(self, order: Any) -> "Shared":
        turned = tuple(int(n) for n in order)
        return Shared(self.whole, self.data.transpose(turned), self.written.transpose(turned), self.box)

    def reshape(self, shape: Any) -> "Shared":
        sizes = [int(n) for n in shape]
        return Shared(self.whole, self.data.reshape(sizes), self.written.reshape(sizes), self.box)

    def load(self, layout: Any = None) -> Tensor:
        self.whole.read(self.box, "a load", asynchronous=False)
        self.must_be_written("a load")
        self.whole.note(self.box, f"a load by {self._me.name}", False, self._me.tick())
        return Tensor(np.array(self.data), self.dtype, layout)

    def store(self, value: Any) -> None:
        self.whole.overwrite(self.box, "a store")
        given = lift(value)
        if given.dtype != self.dtype or given.shape != self.data.shape:
            held = f"{self.dtype}{list(self.data.shape)}"
            raise EmulationError(f"a store of {given.dtype}{list(given.shape)} into shared memory of {held}")
        self.data[...] = given.data
        self.written[...] = True
        self.whole.note(self.box, f"a store by {self._me.name}", True, self._me.tick())

    def must_be_written(self, what: str) -> None:
        if not self.written.all():
            raise Race(f"{what} by {self._me.name} of shared memory that nothing has written")

    @property
    def _me(self) -> Partition:
        return self.whole.machine.partition


# -- barriers -----------------------------------------------------------------------------------------------


class Barrier:
    """An mbarrier: arrivals and bytes that a phase waits for, and what those who arrived knew."""

    def __init__(self, machine: Machine, name: str, count: int) -> None:
        if count < 1:
            raise EmulationError(f"a barrier of {count} arrivals")
        self.machine, self.name, self.count = machine, name, count
        self.phase, self.left, self.bytes = 0, count, 0
        self.gathered: Clock = {}
        self.released: Clock = {}
        self.made: tuple[Any, int] = machine.partition.tick()
        self.fenced: tuple[Any, int] | None = None

    def arrive(self, count: int) -> None:
        self.machine.partition.tick()
        _join(self.gathered, self.machine.partition.clock)
        if count > self.left:
            raise EmulationError(f"{count} arrivals at {self.name} where its phase waits for {self.left}")
        self.left -= count
        self._turn()

    def expect(self, size: int) -> None:
        """Bytes that copies will bring in this phase, and one arrival."""
        self.bytes += size
        self.arrive(1)

    def landed(self, size: int) -> None:
        self.bytes -= size
        self._turn()

    def _turn(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.phase += 1
            self.left = self.count
            _join(self.released, self.gathered)
            self.released[self] = self.phase
            self.gathered = {}

    def wait(self, parity: int) -> None:
        if parity not in (0, 1):
            raise EmulationError(f"a barrier is waited for with phase {parity}")
        self.machine.wait_until(
            lambda: (self.phase & 1) != parity,
            lambda: f"{self.name}, which lacks {self.left} arrivals and {self.bytes} bytes",
        )
        self.machine.partition.learn(self.released)


def _join(into: Clock, other: Clock) -> None:
    for actor, time in other.items():
        if time > into.get(actor, 0):
            into[actor] = time


# -- copies and products ------------------------------------------------------------------------------------


class CopyIn:
    """A bulk copy to shared memory under way. The box holds neither old nor new values until it lands."""

    def __init__(self, source: np.ndarray, barrier: Barrier, result: Shared) -> None:
        if tuple(result.data.shape) != source.shape or result.dtype != dtype_of(source.dtype):
            raise EmulationError(f"a copy of {source.shape} into shared memory of {tuple(result.data.shape)}")
        self.source, self.barrier, self.result = source, barrier, result
        result.whole.overwrite(result.box, "a copy")
        result.written[...] = False
        result.whole.data.view(np.uint8)
        self.access = result.whole.note(result.box, f"a copy for {barrier.name}", True, None)

    def land(self) -> None:
        self.result.data[...] = self.source
        self.result.written[...] = True
        self.access.moment = (self.barrier, self.barrier.phase + 1)
        self.barrier.landed(self.source.nbytes)


class CopyOut:
    """A bulk copy to global memory, which reads its source any time until it is waited for."""

    def __init__(self, target: Descriptor, coordinates: Sequence[Any], source: Shared) -> None:
        source.whole.read(source.box, "a copy to global memory", asynchronous=True)
        source.must_be_written("a copy to global memory")
        target.window(coordinates)
        self.target, self.coordinates, self.source = target, [int(c) for c in coordinates], source
        self.access = source.whole.note(source.box, "a copy to global memory", False, None)

    def complete(self, partition: Partition) -> None:
        self.target.write(self.coordinates, np.array(self.source.data))
        self.access.moment = partition.tick()


class Product:
    """An asynchronous product: its operands in shared memory are read until it is waited for."""

    def __init__(self, operands: Sequence[Shared]) -> None:
        self.done = False
        self.accesses = []
        for view in operands:
            view.whole.read(view.box, "a product", asynchronous=True)
            view.must_be_written("a product")
            self.accesses.append(view.whole.note(view.box, "a product", False, None))

    def complete(self, partition: Partition) -> None:
        self.done = True
        moment = partition.tick()
        for access in self.accesses:
            access.moment = moment
