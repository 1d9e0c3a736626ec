"""FP8 products whose float32 accumulator is quantised to MXFP8 in the epilogue, one B or a B per group of rows.

Operands as ``gemm_fp8_blockwise``: A with 1 x 128 scales [K/128, M], B with 128 x 128 scales. Outputs ``d`` [M, N]
e4m3 and ``d_s`` [M, N/32] exponents (uint8), per 1 x 32 block along N of the *float32* accumulator:
    e = ceil(log2(amax x float32(1/448))) + 127 by bits, 0 for amax = 0;   d = RNE cast of clamp(acc * 2^(127-e), +-448)
(``seeds.mx_cast.formats``: RCEIL). The logarithm itself, in float32, is off at many amax near 448 x 2^e.
``grouped<G>``: rows come in groups, ``group`` [M/128] int32 says which of G matrices B [G, N, K] every 128 rows meet.

Gate: at least 99.9 % of payloads, and of exponents, have the bits that the float64 product gives; sums in another
order turn about 1 payload in 10^5. A detour through bf16 turns 1 to 2 %. On ``edges`` every sum has one term, so that
nothing may turn, and block maxima lie within 3 ulp of 448 x 2^e.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np

from seeds.gemm_fp8_blockwise.contract import (
    BLOCK,
    FP8_MAX,
    cast,
    dequantise_blocks,
    dequantise_rows,
    draw,
    quantise_blocks,
    quantise_rows,
)
from seeds.gemm_mxfp8_out.shapes import grouped_suites, normal_suites
from seeds.mx_cast.formats import E4M3, Rule, cast_rows
from seeds.operator import AgreementGate, Arrays, Gate, SeedKernel, Suite, TensorSpec, Workload
from seeds.sampled import TABLE, Elements, Sample, normal_table, spread_picks

MX = 32
"""Columns under one exponent of the output."""

INPUT_KINDS = ("randn", "outliers", "spread", "zero_blocks", "edges")

SAMPLED_ROWS, SAMPLED_BLOCKS = 96, 3

_KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class MxOutGemm:
    """``groups`` is 0 for one B."""

    name: str
    groups: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = (AgreementGate("accumulator", "mx", ("d", "d_s"), 0.999),)
    input_kinds: tuple[str, ...] = INPUT_KINDS

    @property
    def constants(self) -> Mapping[str, int]:
        """``by_groups`` is 1 where rows come in groups."""
        return {"block": BLOCK, "by_groups": int(self.groups > 0)}

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``, for groups ``group``. Raises ValueError for what it lacks."""
        if variant is not None:
            raise ValueError(f"{self.name} has no inputs variant {variant!r}")
        m, n, k = self._dims(workload)
        many = (self.groups,) if self.groups else ()
        found = (
            TensorSpec("a_q", (m, k), "float8_e4m3fn"),
            TensorSpec("a_s", (k // BLOCK, m), "float32"),
            TensorSpec("b_q", (*many, n, k), "float8_e4m3fn"),
            TensorSpec("b_s", (*many, -(-n // BLOCK), k // BLOCK), "float32"),
        )
        return (*found, TensorSpec("group", (m // BLOCK,), "int32")) if self.groups else found

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """``d`` and ``d_s``."""
        m, n, _ = self._dims(workload)
        return (TensorSpec("d", (m, n), "float8_e4m3fn"), TensorSpec("d_s", (m, n // MX), "uint8"))

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands: ``edges`` as the module says, other kinds quantised from what ``draw`` gives."""
        m, n, k = self._dims(workload)
        rng = np.random.default_rng([seed, INPUT_KINDS.index(kind)])
        make = _edge_operands if kind == "edges" else _drawn_operands
        parts = [make(rng, m, n, k, kind) for _ in range(max(1, self.groups))]
        found = {name: parts[0][name] for name in ("a_q", "a_s")}
        for name in ("b_q", "b_s"):
            found[name] = np.stack([p[name] for p in parts]) if self.groups else parts[0][name]
        if self.groups:
            # sorted, with empty groups, as tokens sorted by expert are
            group = np.sort(rng.integers(0, self.groups, m // BLOCK))
            found["group"] = group.astype(np.int32)
        return found

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``mx``: the float64 product of the dequantised operands, rounded to float32, quantised by bits."""
        a = dequantise_rows(inputs["a_q"], inputs["a_s"])
        if not self.groups:
            return {"mx": _quantised(a @ _dequantised(inputs["b_q"], inputs["b_s"]).T)}
        product = np.empty((a.shape[0], inputs["b_q"].shape[1]))
        for number in np.unique(inputs["group"]):
            rows = np.repeat(inputs["group"] == number, BLOCK)
            b = _dequantised(inputs["b_q"][number], inputs["b_s"][number])
            product[rows] = a[rows] @ b.T
        return {"mx": _quantised(product)}

    def tables(self) -> Mapping[str, np.ndarray]:
        """As the blockwise family's; groups are equally likely, in no order."""
        payload = cast(normal_table(float(FP8_MAX) / 2.7))
        scale = (np.geomspace(1.6, 4.9, TABLE) / 448.0).astype(np.float32)
        groups = (np.arange(TABLE) * max(1, self.groups) // TABLE).astype(np.int32)
        return {"a_q": payload, "a_s": scale, "b_q": payload, "b_s": scale, "group": groups}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``mx`` at rows crossing whole blocks of columns."""
        m, n, k = self._dims(workload)
        rows = spread_picks(m, SAMPLED_ROWS, rng)
        blocks = spread_picks(n // MX, SAMPLED_BLOCKS, rng)
        columns = (blocks[:, None] * MX + np.arange(MX)[None, :]).reshape(-1)
        depth, steps = np.arange(k), np.arange(k // BLOCK)
        a = dequantise_rows(elements.at("a_q", rows, depth), elements.at("a_s", steps, rows))
        product = np.empty((len(rows), len(columns)))
        of_row = elements.at("group", rows // BLOCK) if self.groups else np.zeros(len(rows), np.int32)
        for number in np.unique(of_row):
            many = (np.array([number]),) if self.groups else ()
            b_q = elements.at("b_q", *many, columns, depth).reshape(len(columns), k)
            b_s = elements.at("b_s", *many, columns // BLOCK, steps).reshape(len(columns), len(steps))
            product[of_row == number] = a[of_row == number] @ dequantise_rows(b_q, b_s.T).T
        return Sample({"d": (rows, columns), "d_s": (rows, blocks)}, {"mx": _quantised(product)})

    def flops(self, workload: Workload) -> int:
        """2 M N K."""
        m, n, k = self._dims(workload)
        return 2 * m * n * k

    def bytes(self, workload: Workload) -> int:
        """Operands and scales once (every B at most once a group), result and exponents once."""
        m, n, k = self._dims(workload)
        matrices = min(self.groups, m // BLOCK) if self.groups else 1
        b = matrices * (n * k + 4 * -(-n // BLOCK) * (k // BLOCK))
        return m * k + 4 * (k // BLOCK) * m + b + m * n + m * n // MX

    def _dims(self, workload: Workload) -> tuple[int, int, int]:
        m, n, k = (workload.dims[name] for name in "MNK")
        if k % BLOCK or n % MX or (self.groups and m % BLOCK):
            raise ValueError(
                f"workload {workload.id}: {self.name} needs K (with groups, M too) to be a multiple of {BLOCK} "
                f"and N of {MX}"
            )
        return m, n, k


def _quantised(product: np.ndarray) -> Arrays:
    codes, e = cast_rows(product.astype(np.float32), Rule.RCEIL, E4M3)
    return {"d": codes.view(ml_dtypes.float8_e4m3fn), "d_s": e}


def _padded(b: np.ndarray) -> np.ndarray:
    """Rows of zeros added up to whole blocks."""
    return np.concatenate([b, np.zeros((-b.shape[0] % BLOCK, b.shape[1]), b.dtype)])


def _dequantised(b_q: np.ndarray, b_s: np.ndarray) -> np.ndarray:
    """float64 B [N, K], N not always a multiple of a block."""
    return dequantise_blocks(_padded(b_q), b_s)[: b_q.shape[0]]


def _drawn_operands(rng: np.random.Generator, m: int, n: int, k: int, kind: str) -> Arrays:
    a_q, a_s = quantise_rows(draw(rng, m, k, kind))
    b_q, b_s = quantise_blocks(_padded(draw(rng, n, k, kind)))
    b_q = b_q[:n]
    return {"a_q": a_q, "a_s": a_s, "b_q": b_q, "b_s": b_s}


def _edge_operands(rng: np.random.Generator, m: int, n: int, k: int, kind: str) -> Arrays:
    """B has one 1 in each row, so an accumulator is one payload of A under one scale; maxima near 448 x 2^e."""
    steps = k // BLOCK
    a = rng.integers(-400, 400, (m, k)).astype(np.float32)
    a[:, ::MX] = rng.choice((-448.0, 448.0), (m, k // MX))
    ulps = rng.integers(-3, 4, (steps, m)).astype(np.int32)
    power = np.exp2(rng.integers(-20, 20, (steps, m))).astype(np.float32)
    a_s = (power.view(np.int32) + ulps).view(np.float32)
    b = np.zeros((n, k), np.float32)
    b[np.arange(n), np.arange(n) % k] = 1.0
    b_s = np.ones((-(-n // BLOCK), steps), np.float32)
    return {"a_q": cast(a), "a_s": a_s, "b_q": cast(b), "b_s": b_s}


def operators() -> dict[str, MxOutGemm]:
    """``normal`` and, for each published count of groups, ``grouped<G>``."""
    found = {"normal": MxOutGemm("gemm_mxfp8_out/normal", 0, normal_suites(), _seeds(0))}
    for groups, suites in grouped_suites().items():
        name = f"grouped{groups}"
        found[name] = MxOutGemm(f"gemm_mxfp8_out/{name}", groups, suites, _seeds(1))
    return found


def _seeds(grouped: int) -> Mapping[str, SeedKernel]:
    files = {"fused": "fused", "fused_ws": "fused_ws", "unfused": "unfused", "unfused_ws": "fused_ws"}
    found = {}
    for name, file in files.items():
        source = (_KERNELS / f"{file}.py").read_text(encoding="utf-8")
        fixed = {"grouped": grouped, **({"fused": 0} if name == "unfused_ws" else {})}
        found[name] = SeedKernel(name, source, fixed, baseline=name.startswith("unfused"))
    return MappingProxyType(found)
