"""Products in groups of unequal size: rows that a count masks, and depths of K that follow one another.

``masked<G>x<rows>``: A [G, M, K] with scales [G, K/128, M], B [G, N, K] with scales [G, N/128, K/128]; of the M rows
that group g has room for, the first ``count[g]`` (int32 [G], 0 .. M) count. Outputs d [G, M, N], d_s [G, M, N/32]; what
stands past a count is not looked at. M is the room; about ``rows`` of them count where big workloads are timed.
``kgrouped<G>``: A [M, K] and B [N, K], both with 1 x 128 scales ([K/128, M], [K/128, N]); group g is the next
``count[g]`` (int32 [G]) steps of 128 along K, and d [G, M, N] is the product over its own steps: a weight gradient for
every expert. A group of no steps is zeros under exponent 0. K is the room: the steps of all groups together or more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import BLOCK, draw, operand, product_tables, quantise_rows
from tilewright.seeds.gemm_mxfp8_out import operands as shared
from tilewright.seeds.gemm_mxfp8_out.operands import INPUT_KINDS, MX, SAMPLED_ROWS, MxProduct, Sums
from tilewright.seeds.gemm_mxfp8_out.shapes import LEAST, MOST
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import TABLE, Elements, Sample, spread_picks

EMPTY_SHARE = 16
"""One in so many groups of big k-grouped workloads is empty."""


@dataclass(frozen=True)
class MaskedGemm(MxProduct):
    """``expected`` rows of a group count, on average."""

    name: str
    groups: int
    expected: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = (shared.accumulator_gate("counted"),)
    input_kinds: tuple[str, ...] = INPUT_KINDS
    room: ClassVar[str] = "M"

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``, ``count``."""
        m, n, k = dims
        a, b = operand("a", m, k, self.groups), operand("b", n, k, self.groups, blocks=True)
        return (*a, *b, TensorSpec("count", (self.groups,), "int32"))

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``d`` and ``d_s``."""
        m, n, _ = dims
        return shared.results(self.groups, m, columns=n)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands; one group is empty, one full, the others have any number of rows."""
        m, n, k = self.dims(workload)
        rng = np.random.default_rng([seed, INPUT_KINDS.index(kind)])
        parts = [shared.operands(rng, m, n, k, kind) for _ in range(self.groups)]
        found = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
        count = rng.integers(0, m + 1, self.groups)
        count[rng.permutation(self.groups)[:2]] = (0, m)
        return {**found, "count": count.astype(np.int32)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``mx``: float64 products of the dequantised operands, quantised by bits; ``turned``; ``counted``: rows."""
        m, n, _ = self.dims(workload)
        sums = Sums.empty(self.groups, m, n)
        for g, rows in enumerate(inputs["count"]):
            b_s = shared.by_rows(inputs["b_s"][g], n)
            a_q, a_s = inputs["a_q"][g, :rows], inputs["a_s"][g][:, :rows]
            sums[g, :rows] = Sums.of(a_q, a_s, inputs["b_q"][g], b_s)
        counted = np.arange(m)[None, :] < inputs["count"][:, None]
        return sums.references(counted)

    def tables(self) -> Mapping[str, np.ndarray]:
        """As the other products'; counts by the published rule, expected x U(0.7, 1.3)."""
        count = np.linspace(LEAST, MOST, TABLE) * self.expected
        return {**product_tables(), "count": count.astype(np.int32)}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``mx`` at rows that count of one group crossing whole blocks of columns."""
        _, n, k = self.dims(workload)
        count = elements.at("count", np.arange(self.groups))
        one = np.array([rng.choice(np.flatnonzero(count))])
        rows = spread_picks(int(count[one[0]]), SAMPLED_ROWS, rng)
        blocks, columns = shared.picked_columns(n, len(rows), rng)
        depth, steps = np.arange(k), np.arange(k // BLOCK)
        a_q, a_s = elements.at("a_q", one, rows, depth)[0], elements.at("a_s", one, steps, rows)[0]
        b_s = elements.at("b_s", one, columns // BLOCK, steps)[0]
        sums = Sums.empty(1, len(rows), len(columns))
        sums[0] = Sums.of(a_q, a_s, elements.at("b_q", one, columns, depth)[0], b_s.T)
        return Sample(
            {"d": (one, rows, columns), "d_s": (one, rows, blocks)},
            sums.references(np.ones((1, len(rows)), dtype=bool)),
        )

    def flops(self, workload: Workload) -> int:
        """2 N K for every row that counts, on average."""
        m, n, k = self.dims(workload)
        return 2 * self.groups * min(self.expected, m) * n * k

    def bytes(self, workload: Workload) -> int:
        """Rows that count once (on average), every B once, results once."""
        m, n, k = self.dims(workload)
        row = k + 4 * (k // BLOCK) + n + n // MX
        b = n * k + 4 * -(-n // BLOCK) * (k // BLOCK)
        return self.groups * (min(self.expected, m) * row + b + 4)


@dataclass(frozen=True)
class KGroupedGemm(MxProduct):
    """``expected`` columns of K belong to a group, on average."""

    name: str
    groups: int
    expected: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = (shared.accumulator_gate(),)
    input_kinds: tuple[str, ...] = INPUT_KINDS
    room: ClassVar[str] = "K"

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``, ``count``."""
        m, n, k = dims
        return (*operand("a", m, k), *operand("b", n, k), TensorSpec("count", (self.groups,), "int32"))

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``d`` and ``d_s``."""
        m, n, _ = dims
        return shared.results(self.groups, m, columns=n)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands; a group at least is empty, and steps may be left over."""
        m, n, k = self.dims(workload)
        rng = np.random.default_rng([seed, INPUT_KINDS.index(kind)])
        if kind == "edges":
            found = shared.edge_operands(rng, m, n, k)
            found["b_s"] = np.ones((k // BLOCK, n), np.float32)
        else:
            a_q, a_s = quantise_rows(draw(rng, m, k, kind))
            b_q, b_s = quantise_rows(draw(rng, n, k, kind))
            found = {"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s}
        cuts = np.sort(rng.integers(0, k // BLOCK + 1, self.groups))
        count = np.diff(cuts, prepend=0)
        empty = int(rng.integers(self.groups))
        count[empty] = 0
        return {**found, "count": count.astype(np.int32)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``mx``: the float64 product of the dequantised operands over each group's steps, by bits; ``turned``."""
        m, n, _ = self.dims(workload)
        sums = Sums.empty(self.groups, m, n)
        for g, part in enumerate(spans(inputs["count"])):
            steps = slice(part.start // BLOCK, part.stop // BLOCK)
            a, b = inputs["a_q"][:, part], inputs["b_q"][:, part]
            sums[g] = Sums.of(a, inputs["a_s"][steps], b, inputs["b_s"][steps])
        return sums.references()

    def tables(self) -> Mapping[str, np.ndarray]:
        """As the other products'; depths by the published rule, expected x U(0.7, 1.3), one in 16 groups empty."""
        count = np.linspace(LEAST, MOST, TABLE) * self.expected / BLOCK
        count[::EMPTY_SHARE] = 0
        return {**product_tables(), "count": count.astype(np.int32)}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``mx`` of two groups, an empty one where there is one, at rows crossing whole blocks of columns."""
        m, n, _ = self.dims(workload)
        count = elements.at("count", np.arange(self.groups))
        some = np.unique([int(rng.choice(np.flatnonzero(count == count.min()))), int(rng.integers(self.groups))])
        rows = spread_picks(m, SAMPLED_ROWS, rng)
        blocks, columns = shared.picked_columns(n, len(rows), rng)
        sums = Sums.empty(len(some), len(rows), len(columns))
        for at, g in enumerate(some):
            depth = np.arange(sum(count) * BLOCK)[spans(count)[g]]
            steps = np.unique(depth // BLOCK)
            a_q, a_s = elements.at("a_q", rows, depth), elements.at("a_s", steps, rows)
            b_q, b_s = elements.at("b_q", columns, depth), elements.at("b_s", steps, columns)
            sums[at] = Sums.of(a_q, a_s, b_q, b_s)
        where = {"d": (some, rows, columns), "d_s": (some, rows, blocks)}
        return Sample(where, sums.references())

    def flops(self, workload: Workload) -> int:
        """2 M N for every column of K that belongs to a group, on average."""
        m, n, k = self.dims(workload)
        return 2 * m * n * self._depth(k)

    def bytes(self, workload: Workload) -> int:
        """Columns of K that belong to a group once (on average), results once."""
        m, n, k = self.dims(workload)
        depth = self._depth(k)
        return (m + n) * (depth + 4 * (depth // BLOCK)) + self.groups * (m * n + m * n // MX + 4)

    def _depth(self, k: int) -> int:
        full = self.groups * self.expected * (EMPTY_SHARE - 1) // EMPTY_SHARE
        return min(full, k)


def spans(count: np.ndarray) -> list[slice]:
    """Columns of K of each group."""
    ends = np.cumsum(count.astype(np.int64)) * BLOCK
    return [slice(int(end) - int(n) * BLOCK, int(end)) for end, n in zip(ends, count, strict=True)]
