"""FP8 products whose float32 accumulator is quantised to MXFP8 in the epilogue, one B or a B per group of rows.

Operands as ``gemm_fp8_blockwise``: A with 1 x 128 scales [K/128, M], B with 128 x 128 scales. Outputs ``d`` [M, N]
e4m3 and ``d_s`` [M, N/32] exponents (uint8), per 1 x 32 block along N of the *float32* accumulator:
    e = ceil(log2(amax x float32(1/448))) + 127 by bits, 0 for amax = 0;   d = RNE cast of clamp(acc * 2^(127-e), +-448)
(``seeds.mx_cast.formats``: RCEIL). The logarithm itself, in float32, is off at many amax near 448 x 2^e.
``grouped<G>``: rows come in groups, ``group`` [M/128] int32 says which of G matrices B [G, N, K] every 128 rows meet.
``masked<G>x<rows>`` and ``kgrouped<G>``: see ``ragged``.

Gate: at least 99.9 % of payloads, and of exponents, have the bits that the float64 product gives, less what Hopper's
accumulators (``hopper``, computed beside the oracle from the same inputs) turn: 0.5 to 1.2 % of the payloads. float32
sums in another order turn 1 in 10^5, a detour through bf16 turns 3 to 4 %. On ``edges`` every sum has one term, so
that nothing may turn, and block maxima lie within 3 ulp of 448 x 2^e.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import BLOCK, operand, product_tables
from tilewright.seeds.gemm_mxfp8_out import operands as shared
from tilewright.seeds.gemm_mxfp8_out.operands import INPUT_KINDS, MX, SAMPLED_ROWS, MxProduct, Sums
from tilewright.seeds.gemm_mxfp8_out.ragged import KGroupedGemm, MaskedGemm
from tilewright.seeds.gemm_mxfp8_out.shapes import (
    K_GROUPED,
    MASKED_GROUPS,
    grouped_suites,
    k_grouped_suites,
    masked_suites,
    normal_suites,
)
from tilewright.seeds.inlined import inlined
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import TABLE, Elements, Sample, spread_picks

_KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class MxOutGemm(MxProduct):
    """``groups`` is 0 for one B."""

    name: str
    groups: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = (shared.accumulator_gate(),)
    input_kinds: tuple[str, ...] = INPUT_KINDS

    @property
    def multiples(self) -> Mapping[str, int]:
        """As every product's here; groups are of whole blocks of rows."""
        return {**super().multiples, **({"M": BLOCK} if self.groups else {})}

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``a_q``, ``a_s``, ``b_q``, ``b_s``, for groups ``group``."""
        m, n, k = dims
        many = (self.groups,) if self.groups else ()
        found = (*operand("a", m, k), *operand("b", n, k, *many, blocks=True))
        return (*found, TensorSpec("group", (m // BLOCK,), "int32")) if self.groups else found

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``d`` and ``d_s``."""
        m, n, _ = dims
        return shared.results(m, columns=n)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands: ``edges`` as the module says, other kinds quantised from what ``draw`` gives."""
        m, n, k = self.dims(workload)
        rng = np.random.default_rng([seed, INPUT_KINDS.index(kind)])
        parts = [shared.operands(rng, m, n, k, kind) for _ in range(max(1, self.groups))]
        found = {name: parts[0][name] for name in ("a_q", "a_s")}
        for name in ("b_q", "b_s"):
            found[name] = np.stack([p[name] for p in parts]) if self.groups else parts[0][name]
        if self.groups:
            # sorted, with empty groups, as tokens sorted by expert are
            group = np.sort(rng.integers(0, self.groups, m // BLOCK))
            found["group"] = group.astype(np.int32)
        return found

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``mx``: the float64 product of the dequantised operands, as float32, quantised by bits; ``turned``."""
        m, n, _ = self.dims(workload)
        a_q, a_s, b_q, b_s = (inputs[name] for name in ("a_q", "a_s", "b_q", "b_s"))
        if not self.groups:
            return Sums.of(a_q, a_s, b_q, shared.by_rows(b_s, n)).references()
        sums = Sums.empty(m, n)
        for number in np.unique(inputs["group"]):
            rows = np.repeat(inputs["group"] == number, BLOCK)
            sums[rows] = Sums.of(a_q[rows], a_s[:, rows], b_q[number], shared.by_rows(b_s[number], n))
        return sums.references()

    def tables(self) -> Mapping[str, np.ndarray]:
        """As the blockwise family's; groups are equally likely, in no order."""
        groups = (np.arange(TABLE) * max(1, self.groups) // TABLE).astype(np.int32)
        return {**product_tables(), "group": groups}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``mx`` and ``turned`` at rows crossing whole blocks of columns."""
        m, n, k = self.dims(workload)
        rows = spread_picks(m, SAMPLED_ROWS, rng)
        blocks, columns = shared.picked_columns(n, len(rows), rng)
        depth, steps = np.arange(k), np.arange(k // BLOCK)
        a_q, a_s = elements.at("a_q", rows, depth), elements.at("a_s", steps, rows)
        sums = Sums.empty(len(rows), len(columns))
        of_row = elements.at("group", rows // BLOCK) if self.groups else np.zeros(len(rows), np.int32)
        for number in np.unique(of_row):
            many = (np.array([number]),) if self.groups else ()
            b_q = elements.at("b_q", *many, columns, depth).reshape(len(columns), k)
            b_s = elements.at("b_s", *many, columns // BLOCK, steps).reshape(len(columns), len(steps))
            some = of_row == number
            sums[some] = Sums.of(a_q[some], a_s[:, some], b_q, b_s.T)
        return Sample({"d": (rows, columns), "d_s": (rows, blocks)}, sums.references())

    def bytes(self, workload: Workload) -> int:
        """Operands and scales once (every B at most once a group), result and exponents once."""
        m, n, k = self.dims(workload)
        matrices = min(self.groups, m // BLOCK) if self.groups else 1
        b = matrices * (n * k + 4 * -(-n // BLOCK) * (k // BLOCK))
        return m * k + 4 * (k // BLOCK) * m + b + m * n + m * n // MX


def operators() -> dict[str, MxOutGemm | MaskedGemm | KGroupedGemm]:
    """``normal``; for each published count of groups ``grouped<G>``, ``masked<G>x<rows>``, ``kgrouped<G>``."""
    found: dict[str, MxOutGemm | MaskedGemm | KGroupedGemm] = {}
    found["normal"] = MxOutGemm("gemm_mxfp8_out/normal", 0, normal_suites(), _seeds(0))
    for groups, suites in grouped_suites().items():
        name = f"grouped{groups}"
        found[name] = MxOutGemm(f"gemm_mxfp8_out/{name}", groups, suites, _seeds(1))
    for groups, rows in MASKED_GROUPS:
        name = f"masked{groups}x{rows}"
        seeds = _pair("masked")
        found[name] = MaskedGemm(f"gemm_mxfp8_out/{name}", groups, rows, masked_suites(), seeds)
    for groups, depth in dict.fromkeys((groups, depth) for groups, _, _, depth in K_GROUPED):
        name = f"kgrouped{groups}"
        seeds = _pair("k_grouped")
        found[name] = KGroupedGemm(f"gemm_mxfp8_out/{name}", groups, depth, k_grouped_suites(groups), seeds)
    return found


def _seeds(grouped: int) -> Mapping[str, SeedKernel]:
    return {**_pair("fused", "unfused", grouped=grouped), **_pair("fused_ws", "unfused_ws", grouped=grouped)}


def _pair(file: str, baseline: str = "unfused", **fixed: int) -> Mapping[str, SeedKernel]:
    """A seed, and itself with the product written as bf16 and quantised by a second kernel.

    What makes a baseline of a seed is no choice of a search, which the gate would refuse.
    """
    source = inlined(_KERNELS / f"{file}.py")
    seed = SeedKernel(file, source.replace('"fused": (0, 1),', '"fused": (1,),'), fixed)
    return {file: seed, baseline: SeedKernel(baseline, source, {**fixed, "fused": 0}, baseline=True)}
