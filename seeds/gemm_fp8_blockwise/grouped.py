"""Products in groups, an expert's each, on pre-quantised operands: an MoE layer's forward and both its gradients.

``count`` (int32 [G]) stays on the device. Where groups are of rows, B [G, N, K] has 128 x 128 scales
[G, ceil(N/128), K/128].

``grouped<G>x<rows>``: the rows of A [M, K] (scales [K/128, M]) are dealt to groups in order, ``count[g]`` to group g.
Any may be empty, rows past M are nobody's, and C [M, N] past the sum is not looked at.
``masked<G>x<rows>``: A is [G, M, K] (scales [G, K/128, M]), and the first ``count[g]`` of the M rows that group g has
room for count; C [G, M, N] past a count is not looked at.
M is the room, G a dimension (``groups``). Where big workloads are timed, ``rows`` x U(0.7, 1.3) rows are a group's.
``kgrouped<G>x<columns>``: A [M, K] and B [N, K] both have 1 x 128 scales ([K/128, M], [K/128, N]); group g is the next
``count[g]`` steps of 128 along K, of which there may be fewer than K has, and C [G, M, N] its product, zeros for none.
``kmixed<G>x<columns>``: the same with 128 x 128 scales of B [ceil(N/128), K/128].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import (
    BLOCK,
    INPUT_KINDS,
    PRODUCT_GATES,
    dequantise_blocks,
    dequantise_rows,
    draw,
    generator,
    operand,
    product_tables,
    quantise_blocks,
    quantise_rows,
    usual_sizes,
)
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, SnrGate, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import TABLE, Elements, Sample, spread_picks
from tilewright.seeds.shaped import Product

LEAST, MOST = 0.7, 1.3
"""Shares of the expected rows between which a group's rows lie where big workloads are timed."""

SAMPLED = 96
"""Rows, and columns, of a big product that are checked."""

LAYERS = ((4096, 7168), (7168, 2048))
"""(N, K) of DeepSeek-V3's experts: gate and up, down."""

LAYERS_235B = ((3072, 4096), (4096, 1536))
"""(N, K) of Qwen3-235B's experts."""


@dataclass(frozen=True)
class RowGroups(Product):
    """C = A . B[g]^T in bf16 for the rows of every group; ``expected`` rows of a group, on average."""

    axes = ("groups", "M", "N", "K")
    name: str
    expected: int
    masked: bool
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = (
        SnrGate("field", "exact", 25.0, counted="counted"),
        SnrGate("exact", "exact", 45.0, counted="counted", usual="usual"),
    )
    input_kinds: tuple[str, ...] = INPUT_KINDS

    @property
    def constants(self) -> Mapping[str, int]:
        """Whether each group has a room of its own."""
        return {"block": BLOCK, "columns": 0, "ahead": 0, "masked": int(self.masked)}

    multiples = MappingProxyType({"K": BLOCK})

    @property
    def room(self) -> str:
        """The dimension that holds all that the counts of ``tables`` say at the timed sizes alone."""
        return "M" if self.masked else ""

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``, ``count``."""
        groups, m, n, k = dims
        rooms = (groups,) if self.masked else ()
        a, b = operand("a", m, k, *rooms), operand("b", n, k, groups, blocks=True)
        return (*a, *b, TensorSpec("count", (groups,), "int32"))

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``c`` [M, N], or [G, M, N] with rooms, in bfloat16."""
        groups, m, n, _ = dims
        return (TensorSpec("c", (groups, m, n) if self.masked else (m, n), "bfloat16"),)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands. Counts by kind: cut anywhere, nearly all rows in one group, fewer rows than there are."""
        groups, m, n, k = self.dims(workload)
        rng = generator(seed, kind)
        rooms = groups if self.masked else 1
        rows = [quantise_rows(draw(rng, m, k, kind)) for _ in range(rooms)]
        blocks = [quantise_blocks(draw(rng, n, k, kind)) for _ in range(groups)]
        a_q, a_s = (np.stack(parts) for parts in zip(*rows, strict=True))
        b_q, b_s = (np.stack(parts) for parts in zip(*blocks, strict=True))
        if not self.masked:
            a_q, a_s = a_q[0], a_s[0]
        return {"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s, "count": self._drawn(rng, groups, m, kind)}

    def _drawn(self, rng: np.random.Generator, groups: int, m: int, kind: str) -> np.ndarray:
        if self.masked:
            count = rng.integers(0, m + 1, groups)
            if groups > 1:
                count[rng.permutation(groups)[:2]] = (0, m)
            return count.astype(np.int32)
        total = m if kind != "spread" else int(rng.integers(m // 2, m + 1))
        count = np.zeros(groups, np.int64)
        if kind == "outliers":
            count[:] = rng.integers(0, 1 + min(9, total // (2 * groups)), groups)
            count[rng.integers(groups)] += total - count.sum()
        else:
            cuts = np.sort(rng.integers(0, total + 1, groups - 1))
            count = np.diff(np.concatenate([[0], cuts, [total]]))
        return count.astype(np.int32)

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``exact``: float64 products of the dequantised operands; ``counted``: rows that are some group's.

        ``usual``: how large the elements usually are.
        """
        groups, m, n, _ = self.dims(workload)
        exact = np.zeros((groups, m, n) if self.masked else (m, n))
        usual = np.zeros(exact.shape, np.float32)
        counted = np.arange(m) < inputs["count"][:, None] if self.masked else np.arange(m) < inputs["count"].sum()
        before = 0
        for g, count in enumerate(inputs["count"]):
            b = dequantise_blocks(inputs["b_q"][g], inputs["b_s"][g])
            if self.masked:
                a = dequantise_rows(inputs["a_q"][g, :count], inputs["a_s"][g][:, :count])
                exact[g, :count], usual[g, :count] = a @ b.T, usual_sizes(a, b)
            else:
                mine = slice(before, before + count)
                a = dequantise_rows(inputs["a_q"][mine], inputs["a_s"][:, mine])
                exact[mine], usual[mine] = a @ b.T, usual_sizes(a, b)
                before += count
        return {"exact": {"c": exact}, "counted": {"c": counted}, "usual": {"c": usual}}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Payloads and scales as the single product has them; counts uniform around the expected one."""
        return {**product_tables(), "count": _counts(self.expected)}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``exact`` at rows of one group that has any, crossing columns."""
        groups, m, n, k = self.dims(workload)
        count = elements.at("count", np.arange(groups))
        count = np.minimum(count, m) if self.masked else np.diff(np.minimum(count.cumsum(), m), prepend=0)
        g = int(rng.choice(np.flatnonzero(count)))
        columns = spread_picks(n, SAMPLED, rng)
        rows = spread_picks(int(count[g]), SAMPLED, rng)
        one, depth, steps = np.array([g]), np.arange(k), np.arange(k // BLOCK)
        b_s = elements.at("b_s", one, columns // BLOCK, steps)[0].T
        b = dequantise_rows(elements.at("b_q", one, columns, depth)[0], b_s)
        if self.masked:
            a = dequantise_rows(elements.at("a_q", one, rows, depth)[0], elements.at("a_s", one, steps, rows)[0])
            exact = (a @ b.T)[None]
            return Sample({"c": (one, rows, columns)}, _all_counted(exact))
        rows = rows + int(count[:g].sum())
        a = dequantise_rows(elements.at("a_q", rows, depth), elements.at("a_s", steps, rows))
        return Sample({"c": (rows, columns)}, _all_counted(a @ b.T))

    def flops(self, workload: Workload) -> int:
        """2 N K for every row that counts, on average."""
        groups, m, n, k = self.dims(workload)
        return 2 * self._rows(groups, m) * n * k

    def bytes(self, workload: Workload) -> int:
        """Rows that count once (on average), every B once, results once."""
        groups, m, n, k = self.dims(workload)
        b = n * k + 4 * -(-n // BLOCK) * (k // BLOCK)
        return self._rows(groups, m) * (k + 4 * (k // BLOCK) + 2 * n) + groups * (b + 4)

    def _rows(self, groups: int, m: int) -> int:
        return min(groups * self.expected, m * groups if self.masked else m)


@dataclass(frozen=True)
class DepthGroups(Product):
    """C[g] = A . B^T in bf16 over the steps of every group; ``expected`` columns of K are a group's, on average.

    ``mixed``: B's scales are of 128 x 128 blocks.
    """

    name: str
    groups: int
    expected: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = PRODUCT_GATES
    input_kinds: tuple[str, ...] = INPUT_KINDS
    mixed: bool = False
    room: ClassVar[str] = "K"

    @property
    def constants(self) -> Mapping[str, int]:
        """The number of groups."""
        return {"block": BLOCK, "groups": self.groups}

    multiples = MappingProxyType({"K": BLOCK})

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``, ``count``."""
        m, n, k = dims
        a, b = operand("a", m, k), operand("b", n, k, blocks=self.mixed)
        return (*a, *b, TensorSpec("count", (self.groups,), "int32"))

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``c`` [G, M, N] in bfloat16."""
        m, n, _ = dims
        return (TensorSpec("c", (self.groups, m, n), "bfloat16"),)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands; steps are dealt out anywhere, so that some groups have none, and a few to nobody."""
        m, n, k = self.dims(workload)
        rng = generator(seed, kind)
        a_q, a_s = quantise_rows(draw(rng, m, k, kind))
        b_q, b_s = (quantise_blocks if self.mixed else quantise_rows)(draw(rng, n, k, kind))
        steps = k // BLOCK
        dealt = steps if kind != "spread" else int(rng.integers(-(-steps // 2), steps + 1))
        count = np.bincount(rng.integers(0, self.groups, dealt), minlength=self.groups)
        return {"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s, "count": count.astype(np.int32)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``exact``: float64 products of the dequantised operands; ``usual``: how large their elements usually are."""
        a = dequantise_rows(inputs["a_q"], inputs["a_s"])
        b = (dequantise_blocks if self.mixed else dequantise_rows)(inputs["b_q"], inputs["b_s"])
        ends = np.cumsum(inputs["count"]) * BLOCK
        steps = [slice(e - c * BLOCK, e) for e, c in zip(ends, inputs["count"], strict=True)]
        exact = np.stack([a[:, own] @ b[:, own].T for own in steps])
        usual = np.stack([usual_sizes(a[:, own], b[:, own]) for own in steps])
        return {"exact": {"c": exact}, "usual": {"c": usual}}

    def tables(self) -> Mapping[str, np.ndarray]:
        """As ``RowGroups``; counts in steps of 128."""
        return {**product_tables(), "count": _counts(self.expected / BLOCK)}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``exact`` of one group that has steps, at crossing rows and columns."""
        m, n, _ = self.dims(workload)
        count = elements.at("count", np.arange(self.groups))
        g = int(rng.choice(np.flatnonzero(count)))
        rows, columns = spread_picks(m, SAMPLED, rng), spread_picks(n, SAMPLED, rng)
        steps = np.arange(count[:g].sum(), count[: g + 1].sum())
        depth = (steps[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        a = dequantise_rows(elements.at("a_q", rows, depth), elements.at("a_s", steps, rows))
        b_s = elements.at("b_s", columns // BLOCK, steps).T if self.mixed else elements.at("b_s", steps, columns)
        b = dequantise_rows(elements.at("b_q", columns, depth), b_s)
        return Sample({"c": (np.array([g]), rows, columns)}, {"exact": {"c": (a @ b.T)[None]}})

    def flops(self, workload: Workload) -> int:
        """2 M N for every column of K that is some group's, on average."""
        m, n, k = self.dims(workload)
        return 2 * m * n * min(k, self.groups * self.expected)

    def bytes(self, workload: Workload) -> int:
        """Operands and scales of the groups' steps once, results once."""
        m, n, k = self.dims(workload)
        depth = min(k, self.groups * self.expected)
        return (m + n) * (depth + 4 * (depth // BLOCK)) + self.groups * (2 * m * n + 4)


def _counts(expected: float) -> np.ndarray:
    return (np.linspace(LEAST, MOST, TABLE) * expected).astype(np.int32)


def _all_counted(exact: np.ndarray) -> dict[str, Arrays]:
    return {"exact": {"c": exact}, "counted": {"c": np.ones(exact.shape[:-1], dtype=bool)}}


def groups(
    family: str, by_rows: Mapping[str, SeedKernel], by_depth: Mapping[str, SeedKernel]
) -> dict[str, RowGroups | DepthGroups]:
    """The recipes: many rows a group as in training and prefill, few as in decoding, many groups; their gradients."""
    made: dict[str, RowGroups | DepthGroups] = {}
    for masked, count, expected, layers in (
        (False, 4, 8192, LAYERS),
        (False, 8, 4096, (*LAYERS, *LAYERS_235B)),
        (False, 32, 256, LAYERS),
        (False, 128, 512, LAYERS_235B),
        (True, 6, 1024, LAYERS),
        (True, 32, 192, (*LAYERS, *LAYERS_235B)),
        (True, 32, 48, (*LAYERS, *LAYERS_235B)),
        (True, 256, 32, LAYERS),
    ):
        name = f"{'masked' if masked else 'grouped'}{count}x{expected}"
        most = int(MOST * expected) + 1
        room = -(-most // 128) * 128 if masked else -(-most * count // 128) * 128
        if masked and expected >= 1024:
            room = 4096
        timed = tuple(_workload(f"{n}x{k}", room, n, k, groups=count) for n, k in layers)
        tails = 12 if masked and count >= 64 else max(200, 4 * count)
        check = (
            _workload("check/tails", tails, 384, 640, groups=count),
            _workload("check/ragged", 132, 328, 256, groups=5),
        )
        suites = MappingProxyType({"experts": Suite("experts", timed, check)})
        made[name] = RowGroups(f"{family}/{name}", expected, masked, suites, by_rows)
    for mixed, count, expected, layers in (
        (False, 4, 8192, LAYERS),
        (False, 8, 4096, LAYERS),
        (False, 128, 512, LAYERS_235B),
        (True, 8, 4096, LAYERS),
    ):
        room = -(-int(MOST * expected) // BLOCK) * BLOCK * count
        timed = tuple(_workload(f"{n}x{k}", n, k, room) for n, k in layers)
        check = (_workload("check/tails", 200, 384, 1152), _workload("check/ragged", 132, 328, 640))
        suites = MappingProxyType({"experts": Suite("experts", timed, check)})
        name = f"{'kmixed' if mixed else 'kgrouped'}{count}x{expected}"
        made[name] = DepthGroups(f"{family}/{name}", count, expected, suites, by_depth, mixed=mixed)
    return made


def _workload(name: str, m: int, n: int, k: int, **groups: int) -> Workload:
    return Workload(name, {**groups, "M": m, "N": n, "K": k})
