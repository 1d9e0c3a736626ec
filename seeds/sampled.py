"""Big workloads: operands that are a function of their coordinates, so that a sample of the answer can be checked.

A product of 8192 x 59136 x 8192 has no float64 oracle in reasonable time, and its operands do not travel between
processes. So the device fills each operand by itself: element i is ``table[hash(stream, i)]`` with a table of 65536
equally likely values. The parent, which alone holds the oracle, makes any elements it wants again from the same
stream, without the rest, and checks rows and columns that the candidate cannot know.

The hash is two rounds of xor-shift and multiplication on 32 bits (constants as in public-domain xxHash32's finaliser).
"""

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tilewright.seeds.operator import Arrays, TensorSpec, Workload

TABLE = 1 << 16
_WORD = 0xFFFFFFFF
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)


@functools.lru_cache(maxsize=4)
def normal_table(deviation: float) -> np.ndarray:
    """float32 [TABLE]: equally likely values of a centred normal distribution of this standard deviation."""
    normal = NormalDist(0.0, deviation)
    made = np.array([normal.inv_cdf((i + 0.5) / TABLE) for i in range(TABLE)], dtype=np.float32)
    made.flags.writeable = False
    return made


TABLE_KINDS = ("signed", "repeated", "outliers", "zeros", "faint", "huge")
"""Kinds of operands drawn from tables, in addition to the distribution that kernels are timed on."""

_FAR = 20
"""``faint`` and ``huge`` values are 2^-20 and 2^20 times usual ones; 2^±4 in float16."""


def kind_tables(tables: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """The tables changed for one kind; "" changes none. Integers and packed codes stay, and so does the size of 8-bit
    floats.

    ``signed``: all values get one sign. ``repeated``: four distinct values. ``outliers``: one value in 1024 of the
    first float operand is 64 times larger (8 times without negative values, as of scales); in one operand alone, since
    where two outliers met rounding would decide the sum. ``zeros``: three of eight values are 0 where both signs occur.
    ``faint``, ``huge``: all values by a power of two.
    """
    made, first = dict(tables), True
    for name, table in tables.items() if kind else ():
        if table.dtype.kind in "iub":
            continue
        wide, two_signs = table.astype(np.float32), bool((table.astype(np.float32) < 0).any())
        if kind == "signed":
            made[name] = np.abs(wide).astype(table.dtype)
        elif kind == "repeated":
            made[name] = np.repeat(table[TABLE // 16 :: TABLE // 4], TABLE // 4)
        elif kind == "zeros" and two_signs:
            made[name] = np.where(np.arange(TABLE) % 8 < 3, np.float32(0), wide).astype(table.dtype)
        if table.dtype.itemsize == 1 or kind not in ("outliers", "faint", "huge"):
            continue
        if kind == "outliers" and first:
            factor = np.where(np.arange(TABLE) % 1024 == 512, 64.0 if two_signs else 8.0, 1.0)
            made[name], first = (wide * factor).astype(table.dtype), False
        elif kind != "outliers":
            far = _FAR if table.dtype != np.float16 else 4
            made[name] = (wide * np.float32(2.0 ** (far if kind == "huge" else -far))).astype(table.dtype)
    return made


def stream(seed: int, workload: str, operand: str) -> int:
    """The 32-bit stream of one operand."""
    return zlib.crc32(f"{seed}/{workload}/{operand}".encode())


def places(index: Any, key: int) -> Any:
    """Table places 0 .. 65535 of linear element indices: an int64 numpy array or torch tensor, and so is the result."""
    h = (index * _FACTORS[0] + key) & _WORD
    h = h ^ (h >> 15)
    h = (h * _FACTORS[1]) & _WORD
    h = h ^ (h >> 13)
    h = (h * _FACTORS[2]) & _WORD
    return h >> 16


@dataclass(frozen=True)
class Elements:
    """Elements of one workload's operands, recomputed on the host."""

    seed: int
    workload: str
    shapes: Mapping[str, tuple[int, ...]]
    tables: Mapping[str, np.ndarray]
    sent: Arrays = field(default_factory=dict)
    """See ``SentOperands``."""

    def at(self, operand: str, *axes: np.ndarray) -> np.ndarray:
        """The operand's elements at the crossings of these indices, one array for each axis."""
        table = self.sent[operand] if operand in self.sent else self.tables[operand]
        if is_whole(self.sent.get(operand), self.shapes[operand]):
            return np.asarray(table[np.ix_(*axes)])
        index = np.zeros((), dtype=np.int64)
        for size, along in zip(self.shapes[operand], np.ix_(*axes), strict=True):
            index = index * size + along.astype(np.int64)
        with np.errstate(over="ignore"):
            found = places(index, stream(self.seed, self.workload, operand))
        return table[found]


def is_whole(sent: np.ndarray | None, shape: Sequence[int]) -> bool:
    """Whether what was sent of an operand of this shape is all of it; else it is a table."""
    return sent is not None and sent.size == math.prod(shape)


@dataclass(frozen=True)
class Sample:
    """Elements of outputs to compare: indices along each axis by output, and the right values by reference."""

    where: Mapping[str, Sequence[np.ndarray]]
    references: Mapping[str, Arrays]


@runtime_checkable
class Sampled(Protocol):
    """An optional part of an operator whose workloads are too big for ``make_inputs`` and ``oracle``."""

    def inputs(self, workload: Workload, variant: str | None = None) -> Sequence[TensorSpec]:
        """As the operator's."""
        ...

    def tables(self) -> Mapping[str, np.ndarray]:
        """By operand, the 65536 values it is drawn from, distributed like real data, since rates depend on it; without
        those that are ``SentOperands``."""
        ...

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """Rows and columns of the outputs, chosen by ``rng`` and not by values, with the exact answers there."""
        ...


def sampling(
    operator: Sampled,
    workload: Workload,
    seed: int,
    tables: Mapping[str, np.ndarray],
    elements: Callable[..., Any] = Elements,
) -> Sample:
    """The sample of a shape for operands of ``seed``. ``elements``: makes the operands' elements, here or elsewhere."""
    shapes = {spec.name: tuple(spec.shape) for spec in operator.inputs(workload)}
    rng = np.random.default_rng([seed, sum(workload.id.encode())])
    sent = operator.sent(workload, seed) if isinstance(operator, SentOperands) else {}
    return operator.sample(workload, elements(seed, workload.id, shapes, tables, sent), rng)


@runtime_checkable
class SentOperands(Protocol):
    """An optional part of a sampled operator with operands that no shape shares, such as lengths and indices."""

    def sent(self, workload: Workload, seed: int) -> Arrays:
        """Each such operand of a shape, whole; of a large one, the ``TABLE`` values that it is drawn from."""
        ...


@runtime_checkable
class TableKinds(Protocol):
    """An optional part of a sampled operator whose kernels do not pass on all of ``TABLE_KINDS``."""

    @property
    def table_kinds(self) -> Sequence[str]:
        """The kinds on which they do."""
        ...


@runtime_checkable
class Heavy(Protocol):
    """An optional part of an operator whose answers, or even a sample of them, are much work for a processor."""

    def elsewhere(self, workload: Workload) -> Mapping[str, Any] | None:
        """Request to a process with a device for the sample of a shape, as JSON; None if the host computes it soon."""
        ...


@runtime_checkable
class OracleAt(Protocol):
    """An optional part of an operator that can compute some elements of its answers alone."""

    def oracle_at(
        self, workload: Workload, inputs: Arrays, where: Mapping[str, Sequence[np.ndarray]]
    ) -> dict[str, Arrays]:
        """Answers of ``oracle`` at the crossings of these indices (``where``: by output, an array for each axis)."""
        ...


WINDOW = 64
"""Neighbouring indices that are compared together: some tiles of ``fitness.elements``."""


def windows(
    outputs: Sequence[TensorSpec], rng: np.random.Generator, most: int = 2
) -> dict[str, tuple[np.ndarray, ...]]:
    """Indices along each axis of each output: its last ``WINDOW``, and ``most`` more of as many somewhere in it.

    They lie at the same parts of an axis in every output, so that outputs of one block are compared together.
    """
    parts = rng.random((8, most))
    found = {}
    for spec in outputs:
        axes = []
        for axis, size in enumerate(spec.shape):
            if size <= (most + 1) * WINDOW:
                axes.append(np.arange(size))
                continue
            starts = [*(int(part * (size - WINDOW)) for part in parts[axis % len(parts)]), size - WINDOW]
            axes.append(np.unique(np.concatenate([np.arange(at, at + WINDOW) for at in starts])))
        found[spec.name] = tuple(axes)
    return found


def crossing(references: Mapping[str, Arrays], where: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Arrays]:
    """References at the crossings of these indices; arrays of fewer axes are cut along their leading ones."""
    return {
        name: {
            output: array[np.ix_(*where[output][: array.ndim])] if array.ndim else array
            for output, array in arrays.items()
        }
        for name, arrays in references.items()
    }


def spread_picks(size: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """At most ``most`` sorted distinct indices below ``size``: the ends, else one of each of as many equal parts."""
    count = min(size, most)
    edges = np.linspace(0, size, count + 1).astype(np.int64)
    picks = np.array([rng.integers(low, max(high, low + 1)) for low, high in itertools.pairwise(edges)])
    picks[:1], picks[-1:] = 0, size - 1
    return picks


def members(blocks: np.ndarray, size: int) -> np.ndarray:
    """The indices within these blocks of ``size`` indices, block by block."""
    return (blocks[:, None] * size + np.arange(size)).reshape(-1)
