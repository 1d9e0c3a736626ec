"""FP8 GEMM with fused activation quantisation: C[M,N] = dequant(quant(A)) . dequant(W).

Operands, in call order:
    a   [M, K]       bfloat16        activations
    w   [K, N]       float8_e4m3fn   weights, quantised beforehand
    sw  [K/g, 1, N]  float32         weight scales; constant over g x 128 blocks of w, expanded along N
Result:
    c   [M, N]       bfloat16

The contract, for a recipe with group ``g`` (1 x g activation groups along K):
    s[m, t] = max(absmax(a[m, t*g : (t+1)*g]), 1e-12) / 448           float32
    q[m, k] = RNE cast of a[m, k] / s[m, k // g] to e4m3              computed in float32
    C       = sum_k q s w sw, accumulated in float32 or better, rounded once to bfloat16
``a / s``, ``a * (1 / s)`` and ``a * (448 / absmax)`` in float32 are all accepted: they differ in 3e-4 to 1e-3
of the codes (ties of bf16 values that land on a midpoint), as is rounding the dequantised operands
``q s`` and ``w sw`` to bfloat16 before the product. Measured against the exact reference on 512 x 512 x 4096
these read 49 to 55 dB, and 48 dB together. Rounding ``a / s`` to bfloat16 before the e4m3 cast moves 3 % of
the codes and reads 36 dB: it is wrong here, as are coarser scales than the recipe's (28 dB on randn).

The field gate (25 dB, the one published for e4m3 GEMMs) compares with the product of the *unquantised*
activations and the dequantised weights: the weights arrive quantised, so their rounding is no kernel's to
answer for. It reads 31.6 dB for a right kernel, and, being too weak to notice ignored scales, it is kept
for comparability only; the exact gate (45 dB against float64 over the dequantised operands, beside what ties that
turn explain) decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import ml_dtypes
import numpy as np

from tilewright.seeds import shaped
from tilewright.seeds.inlined import inlined
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, Suite, TensorSpec, Workload
from tilewright.seeds.shaped import Product, gemm

RECIPES: Mapping[str, int] = MappingProxyType({"g128": 128, "g256": 256, "g512": 512})
"""Recipe name to scale group along K. One more number makes one more operator."""

_KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class FusedFp8Gemm(Product):
    """One recipe of the family; see the module's docstring for the contract."""

    name: str
    group: int
    suites: Mapping[str, Suite]
    kernels: Mapping[str, SeedKernel]
    gates: tuple[Gate, ...] = shaped.GATES
    input_kinds: tuple[str, ...] = shaped.INPUT_KINDS

    @property
    def constants(self) -> Mapping[str, int]:
        """Names the constraints of a kernel may use besides parameters and dimensions."""
        return {"group": self.group}

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        """Operands in call order. ``variant`` ``bf16``: (a, w) in bfloat16; ``prequant``: (q, sa, w, sw).

        Raises ValueError for a variant or a shape the operator does not have.
        """
        m, n, k = self.dims(workload)
        a = TensorSpec("a", (m, k), "bfloat16")
        w = TensorSpec("w", (k, n), "float8_e4m3fn")
        sw = TensorSpec("sw", (k // self.group, 1, n), "float32")
        if variant is None:
            return (a, w, sw)
        if variant == "bf16":
            return (a, TensorSpec("w", (k, n), "bfloat16"))
        if variant == "prequant":
            q = TensorSpec("q", (m, k), "float8_e4m3fn")
            return (q, TensorSpec("sa", (m, k // self.group), "float32"), w, sw)
        raise ValueError(f"{self.name} has no inputs variant {variant!r}; it has 'bf16' and 'prequant'")

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        """Fresh operands ``a``, ``w``, ``sw``: see ``shaped.values``. No operand of ``integers`` loses anything in
        bfloat16, scaled either way. Raises ValueError for a kind that is not there."""
        m, n, k = self.dims(workload)
        rng = np.random.default_rng([seed, *kind.encode()])
        a = shaped.values(rng, kind, (m, k), 1, self.group, seed)
        w = shaped.values(rng, kind, (k, n), 0, self.group, seed, first=False, free=shaped.SCALED_COLUMNS, larger=7.0)
        q, scale = shaped.quantise_weights(w, self.group)
        return {"a": a.astype(ml_dtypes.bfloat16), "w": q, "sw": scale}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        """Float64 references: ``exact`` over the dequantised operands, ``field`` over unquantised activations.

        ``slack``, ``turned``: see ``shaped.slack_of``.
        """
        w = shaped.dequantise_weights(inputs["w"], inputs["sw"])
        q, scale = shaped.quantise(inputs["a"], self.group)
        dequantised = shaped.dequantise(q, scale)
        slack, turned = shaped.slack_of(
            np.matmul, dequantised, w, shaped.turned_steps(inputs["a"], scale), carried=True
        )
        return {
            "exact": {"c": dequantised @ w},
            "field": {"c": inputs["a"].astype(np.float64) @ w},
            "slack": {"c": slack},
            "turned": {"c": turned},
        }

    def oracle_at(
        self, workload: Workload, inputs: Arrays, where: Mapping[str, Sequence[np.ndarray]]
    ) -> dict[str, Arrays]:
        """What ``oracle`` says of these rows and columns of ``c``."""
        rows, columns = where["c"]
        sw = inputs["sw"][..., columns]
        return self.oracle(workload, {"a": inputs["a"][rows], "w": inputs["w"][:, columns], "sw": sw})

    def bytes(self, workload: Workload) -> int:
        """Operands once, with one weight scale per g x 128 block (expanded scales are a convenience), result once."""
        m, n, k = self.dims(workload)
        scales = (k // self.group) * (n // shaped.SCALED_COLUMNS)
        return 2 * m * k + k * n + 4 * scales + 2 * m * n

    @property
    def multiples(self) -> Mapping[str, int]:
        """Scale blocks of ``w`` are whole."""
        return {"K": self.group, "N": shaped.SCALED_COLUMNS}


def operators() -> dict[str, FusedFp8Gemm]:
    """The family's operators by recipe name."""
    suites = _suites()
    return {
        recipe: FusedFp8Gemm(f"gemm_fp8_fused/{recipe}", group, suites, _kernels(group))
        for recipe, group in RECIPES.items()
    }


def _suites() -> dict[str, Suite]:
    """``quickstart`` evaluates in seconds and ends at 4096^3; ``llm``: Llama-3.1-8B projections of 2048 tokens.

    The workloads of ``quickstart`` have the columns of 4096^3, so that caching pays as much, and fewer rows: the times
    of the first are a quarter of those at 4096^3 plus 2 to 12 % over nine schedules (see
    experiments/records/tpu/tpu7x_fused_schedules.md).

    ``first`` has the columns and half of the depth of 4096^3 on 1024 rows: its times order eleven
    schedules as those at 4096^3 do, but for 3 pairs of 55 (experiments/records/tpu/tpu7x_quickstart_campaigns.md), and
    an evaluation takes half the CPU time of ``quickstart``'s.

    ``small`` has one shape to time and one to check, for searches on a few CPU seconds an evaluation; it ends at
    4096^3, too.

    ``between`` has sizes off the powers of two, which large blocks do not divide: what it promotes serves the shapes
    that the other suites' winners leave. ``shallow`` has few steps of K, where filling and emptying weigh most.

    The check shapes make every block size of the seed kernels take several row blocks and column blocks (the
    first) and several K blocks (the second), so that a cache that is not refilled or a K block left out shows.
    """
    check = (gemm(2048, 2048, 1024), gemm(256, 512, 4096))
    quick = Suite(
        "quickstart",
        workloads=(gemm(1024, 4096, 4096), gemm(512, 4096, 2048)),
        check=check,
        final=(gemm(4096, 4096, 4096),),
    )
    layers = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
    shapes = tuple(gemm(2048, n, k, f"llama3.1-8b/{layer}/") for layer, (n, k) in layers.items())
    first = Suite("first", (gemm(1024, 4096, 2048),), check, quick.final)
    small = Suite("small", (gemm(1024, 2048, 4096),), (gemm(512, 1024, 2048),), quick.final)
    between = Suite("between", (gemm(1536, 2560, 2048), gemm(512, 3584, 1536)), (gemm(1536, 1024, 1536),))
    shallow = Suite("shallow", (gemm(2048, 2048, 1024),), check[1:])
    llm = Suite("llm", shapes, check)
    return {suite.name: suite for suite in (quick, first, small, between, shallow, llm)}


def _kernels(group: int) -> dict[str, SeedKernel]:
    """Seed kernels of one recipe. Small groups give the prequantised baseline many partials: smaller blocks fit."""
    small = {"block_m": 512, "block_n": 512} if group < 512 else {}

    def source(name: str) -> str:
        return inlined(_KERNELS / f"{name}.py")

    # What one writes by hand first: quantise a row block once, keep it in VMEM, loop over large row tiles. With
    # small groups its straight-line code is too long for the compiler.
    by_hand = {
        "placement": "cached",
        "block_m": 1024,
        "block_n": 512,
        "block_k": 4096,
        "sub_m": 512,
        "sub_n": 512,
        "row_unroll": 1,
    }
    cached = {"cached": SeedKernel("cached", source("fused"), by_hand)} if group >= 512 else {}
    return {
        "fused": SeedKernel("fused", source("fused")),
        **cached,
        "naive": SeedKernel("naive", source("naive")),
        "bf16": SeedKernel("bf16", source("bf16"), baseline=True, inputs="bf16"),
        "prequant": SeedKernel("prequant", source("prequant"), small, baseline=True, inputs="prequant"),
    }
