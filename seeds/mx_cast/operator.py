"""Microscaling casts of a bf16 matrix x [M, K]: MXFP8 under four rules and in four shapes, MXFP4, NVFP4.

``mxfp8_<rule>``: along rows, q [M, K] and exponents s [M, K/32]. ``mxfp8_dim1``: along columns, both outputs
transposed, q_t [K, M] and s_t [K, M/32]. ``mxfp8_both``: both from one read. ``mxfp8_swizzled``: along rows, the
exponents in tiles of 128 x 4 (flat, padded with zeros). ``mxfp4``: two codes a byte. ``nvfp4``: under a tensor scale
``t`` [1], given. The arithmetic is in ``formats``. Rows may be ragged; K is a multiple of 32 (and M, for columns).
``gemm_<form>``: products of what the casts write, in ``product``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np

from tilewright.seeds.gemm_fp8_blockwise.contract import draw
from tilewright.seeds.inlined import inlined
from tilewright.seeds.mx_cast import formats
from tilewright.seeds.mx_cast.formats import BLOCK, E2M1, E4M3, NV_BLOCK, RULES, Rule
from tilewright.seeds.mx_cast.product import FORMS, NV_LARGEST, MxGemm
from tilewright.seeds.operator import Arrays, BitExactGate, Gate, SeedKernel, Suite, TensorSpec, Workload
from tilewright.seeds.sampled import TABLE, Elements, Sample, members, normal_table, spread_picks
from tilewright.seeds.shaped import Shaped, gemm, matrix, suites_of

INPUT_KINDS = ("randn", "outliers", "spread", "zero_blocks", "edges")

SAMPLED_BLOCKS = 3
"""Blocks of 32 along each axis of a big matrix that are checked where they cross."""

EXAMPLE_AMAX = np.float32(5.5)
"""The largest of some 10^8 normals, for the tensor scale of big workloads."""

_KERNELS = Path(__file__).parent / "kernels"


def edge_matrix(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Blocks whose maxima sit where rules differ, beside NaN, infinities, zeros and subnormals, and a row
    of one value: bf16 [rows, cols]."""
    power = rng.integers(-120, 110, (rows, -(-cols // BLOCK))).astype(np.float64)
    x = rng.uniform(-1, 1, (rows, cols)) * np.exp2(np.repeat(power, BLOCK, axis=1)[:, :cols])
    around = np.array([1.0, 1.75, 1.875, 1.5, 1.9921875, 448 / 256, 449 / 256, 447 / 256])
    for row in range(rows):
        at = rng.integers(0, cols)
        x[row, at] = rng.choice(around) * math.exp2(power[row, at // BLOCK] + 1) * rng.choice((-1, 1))
    x = x.astype(ml_dtypes.bfloat16)
    flat = x.reshape(-1)
    some = rng.choice(flat.size, 16, replace=False)
    odd = [np.nan, np.inf, -np.inf, 3.38e38, -3.38e38, 1e-40, -1e-40, -0.0]
    flat[some] = np.array([*odd, *odd], dtype=ml_dtypes.bfloat16)
    x[: rows // 4, :BLOCK] = 0
    x[rows // 4 : rows // 2, -BLOCK:] = np.array(9.2e-41, dtype=ml_dtypes.bfloat16)
    x[-1] = x[-1, 0]
    return x


@dataclass(frozen=True)
class MxCast(Shaped):
    """One cast. ``layout``: ``rows``, ``columns``, ``both`` or ``swizzled``; ``levels`` 1 for NVFP4."""

    name: str
    rule: Rule
    bits: int
    layout: str
    levels: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    input_kinds: tuple[str, ...] = INPUT_KINDS
    memory_bound: bool = True

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Payload and scales bit for bit."""
        return (BitExactGate("bits", "bits", tuple(spec.name for spec in self.results(BLOCK, BLOCK))),)

    @property
    def constants(self) -> Mapping[str, int]:
        """The recipe, for constraints of kernels."""
        return {
            "rule": int(self.rule),
            "by_rows": int(self.layout != "columns"),
            "by_columns": int(self.layout in ("columns", "both")),
            "by_tiles": int(self.layout == "swizzled"),
            "levels": self.levels,
        }

    @property
    def multiples(self) -> Mapping[str, int]:
        """Blocks are whole."""
        return {"K": BLOCK, **({"M": BLOCK} if self.layout in ("columns", "both") else {})}

    def operands(self, *dims: int) -> tuple[TensorSpec, ...]:
        """``x`` [M, K] bf16, for NVFP4 also ``t`` [1] float32."""
        m, k = dims
        x = TensorSpec("x", (m, k), "bfloat16")
        return (x, TensorSpec("t", (1,), "float32")) if self.levels else (x,)

    def results(self, *dims: int) -> tuple[TensorSpec, ...]:
        """Payloads and scales as the module says; bytes where numpy has no type of that width."""
        m, k = dims
        if self.bits == 4:
            block = NV_BLOCK if self.levels else BLOCK
            return (TensorSpec("q", (m, k // 2), "uint8"), TensorSpec("s", (m, k // block), "uint8"))
        s = (formats.swizzled_size(m, k // BLOCK),) if self.layout == "swizzled" else (m, k // BLOCK)
        along = (TensorSpec("q", (m, k), "float8_e4m3fn"), TensorSpec("s", s, "uint8"))
        turned = (TensorSpec("q_t", (k, m), "float8_e4m3fn"), TensorSpec("s_t", (k, m // BLOCK), "uint8"))
        return {"columns": turned, "both": (*along, *turned)}.get(self.layout, along)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """A fresh ``x``: ``edges`` as ``edge_matrix``, other kinds as the blockwise family draws them."""
        m, k = self.dims(workload)
        rng = np.random.default_rng([seed, INPUT_KINDS.index(kind)])
        x = edge_matrix(rng, m, k) if kind == "edges" else draw(rng, m, k, kind).astype(ml_dtypes.bfloat16)
        if not self.levels:
            return {"x": x}
        wide = x.astype(np.float32)
        amax = np.abs(np.where(np.isfinite(wide), wide, 0)).max()
        tensor_scale = np.maximum(amax, np.float32(1e-4)) / NV_LARGEST
        return {"x": x, "t": np.array([tensor_scale], dtype=np.float32)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """``bits``: what the definitions give."""
        x = inputs["x"]
        if self.levels:
            codes, s = formats.cast_nvfp4(x, inputs["t"][0])
            return {"bits": {"q": formats.packed(codes), "s": s}}
        if self.bits == 4:
            codes, s = formats.cast_rows(x, self.rule, E2M1)
            return {"bits": {"q": formats.packed(codes), "s": s}}
        found: Arrays = {}
        if self.layout != "columns":
            codes, s = formats.cast_rows(x, self.rule, E4M3)
            found["q"] = codes.view(ml_dtypes.float8_e4m3fn)
            found["s"] = formats.swizzled(s) if self.layout == "swizzled" else s
        if self.layout in ("columns", "both"):
            codes, s = formats.cast_rows(np.ascontiguousarray(x.T), self.rule, E4M3)
            found["q_t"], found["s_t"] = codes.view(ml_dtypes.float8_e4m3fn), s
        return {"bits": found}

    def tables(self) -> Mapping[str, np.ndarray]:
        """Normal values; the tensor scale that such data has."""
        x = normal_table(1.0).astype(ml_dtypes.bfloat16)
        return {"x": x, "t": np.full(TABLE, EXAMPLE_AMAX / NV_LARGEST, dtype=np.float32)}

    def sample(self, workload: Workload, elements: Elements, rng: np.random.Generator) -> Sample:
        """``bits`` where a few blocks of rows and of columns cross."""
        m, k = self.dims(workload)
        row_blocks = spread_picks(-(-m // BLOCK), SAMPLED_BLOCKS, rng)
        column_blocks = spread_picks(k // BLOCK, SAMPLED_BLOCKS, rng)
        rows, cols = members(row_blocks, BLOCK), members(column_blocks, BLOCK)
        rows = rows[rows < m]
        inputs = {"x": elements.at("x", rows, cols)}
        if self.levels:
            inputs["t"] = elements.at("t", np.arange(1))
        references = self.oracle(workload, inputs)["bits"]
        if self.layout == "swizzled":  # scales in the order of rows and blocks
            references["s"] = formats.cast_rows(inputs["x"], self.rule, E4M3)[1].reshape(-1)
        half = NV_BLOCK if self.levels else BLOCK
        blocks = members(column_blocks, BLOCK // half)
        s_where: tuple[np.ndarray, ...] = (rows, blocks)
        if self.layout == "swizzled":
            place = formats.swizzled_place(rows[:, None], column_blocks[None, :], k // BLOCK)
            s_where = (place.reshape(-1),)
        q_where = (rows, members(column_blocks, BLOCK // 2) if self.bits == 4 else cols)
        everything = {"q": q_where, "s": s_where, "q_t": (cols, rows), "s_t": (cols, row_blocks)}
        return Sample({name: everything[name] for name in references}, {"bits": references})

    def flops(self, workload: Workload) -> int:
        """One multiplication per element and copy."""
        m, k = self.dims(workload)
        return m * k * (2 if self.layout == "both" else 1)

    def bytes(self, workload: Workload) -> int:
        """``x`` read once, every copy and its scales written once; the tensor scale is nothing beside them."""
        m, k = self.dims(workload)
        return 2 * m * k + sum(math.prod(spec.shape) for spec in self.outputs(workload))


def _suites(check: tuple[tuple[int, int], ...]) -> Mapping[str, Suite]:
    """``cast``: the published square and training shapes; ``moe``: tokens of experts; ``tiny``: for interpreters."""
    lists = {
        "cast": ((16384, 16384), (8192, 8192), (8192, 7168), (32768, 2048)),
        "moe": tuple((m, k) for m in (8192, 32768, 131072) for k in (2048, 7168)),
        "extras": ((128, 128), (384, 1408), (1152, 3456)),
        "tiny": ((64, 128), (96, 256)),
    }
    timed = {name: [matrix(*shape) for shape in shapes] for name, shapes in lists.items()}
    return suites_of(timed, tuple(matrix(*shape, "check/") for shape in check))


def operators() -> dict[str, MxCast | MxGemm]:
    """The casts by recipe name, and the products of what they write."""
    along = _suites(((200, 384), (33, 128)))
    across = _suites(((160, 384), (96, 160)))

    def eight(recipe: str, rule: Rule, layout: str, suites: Mapping[str, Suite]) -> MxCast:
        fixed = {
            "mode": int(rule),
            "rows": int(layout != "columns"),
            "columns": int(layout in ("columns", "both")),
            "swizzled": int(layout == "swizzled"),
        }
        seeds = dict(_seed("cast8", fixed))
        if layout in ("columns", "both"):
            seeds |= _seed("cast8_tma", {name: value for name, value in fixed.items() if name != "swizzled"})
        return MxCast(f"mx_cast/{recipe}", rule, 8, layout, 0, suites, MappingProxyType(seeds))

    found: dict[str, MxCast | MxGemm] = {
        f"mxfp8_{name}": eight(f"mxfp8_{name}", rule, "rows", along) for name, rule in RULES.items()
    }
    for layout, recipe, suites in (
        ("columns", "mxfp8_dim1", across),
        ("both", "mxfp8_both", across),
        ("swizzled", "mxfp8_swizzled", along),
    ):
        found[recipe] = eight(recipe, Rule.FLOOR, layout, suites)
    for recipe, levels in (("mxfp4", 0), ("nvfp4", 1)):
        seeds = _seed("cast4", {"two_level": levels, "mode": int(Rule.FLOOR)})
        found[recipe] = MxCast(f"mx_cast/{recipe}", Rule.FLOOR, 4, "rows", levels, along, seeds)
    shapes = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 4096))
    lists = {"products": [gemm(*shape) for shape in shapes], "tiny": [gemm(64, 64, 128)]}
    products = suites_of(lists, (gemm(72, 136, 256, "check/"), gemm(33, 64, 128, "check/")))
    for form_name, form in FORMS.items():
        recipe, seeds = f"gemm_{form_name}", _seed("scaled", {"form": form.number})
        found[recipe] = MxGemm(f"mx_cast/{recipe}", form, products, seeds)
    return found


def _seed(name: str, fixed: Mapping[str, object]) -> Mapping[str, SeedKernel]:
    source = inlined(_KERNELS / f"{name}.py")
    return MappingProxyType({name: SeedKernel(name, source, fixed)})
