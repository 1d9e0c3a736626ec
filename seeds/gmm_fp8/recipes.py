"""The recipes of the family: which phase, which operands are quantised, how wide their scales are; and its shapes.

Shapes have M rows, G groups, matrices K x N; ``ragged`` seeds a fixed ragged distribution of groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tilewright.seeds.operator import Suite, Workload

WHOLE = 0
"""Width of a scale group that spans the contracted dimension: one scale a row of X and a column of each matrix."""


@dataclass(frozen=True)
class Recipe:
    """One operator of the family.

    ``phase``: ``fwd`` out = lhs . rhs, ``dlhs`` = grad . rhs^T, ``tgmm`` = lhs^T . grad per group. ``group``: elements
    of the contracted dimension that share a scale, ``WHOLE`` for all of them, None where nothing is quantised.
    ``gradient`` says whether grad is quantised (it is no operand of ``fwd``), ``bf16_scales`` whether scales are
    rounded to bf16 before they divide.
    """

    phase: str
    group: int | None
    gradient: bool = True
    bf16_scales: bool = False

    @property
    def quantised(self) -> bool:
        """Whether any operand is quantised."""
        return self.group is not None

    @property
    def rows(self) -> bool:
        """Whether quantised rows of X meet a matrix: forward, and the gradient of the rows."""
        return self.phase != "tgmm"

    @property
    def quantise_x(self) -> bool:
        """Whether the first operand is quantised inside the kernel: lhs, or grad in ``dlhs``."""
        return self.quantised and (self.gradient or self.phase != "dlhs")

    @property
    def quantise_y(self) -> bool:
        """Whether the second operand of ``tgmm``, grad, is."""
        return self.quantised and self.gradient

    @property
    def full(self) -> bool:
        """Whether one scale spans the contracted dimension."""
        return self.quantised and self.group == WHOLE

    def numbers(self) -> Mapping[str, int]:
        """Names in the constraints of the family's kernels, and what stands for them in this recipe."""
        return {
            "scale_width": self.group or 0,
            "is_full": int(self.full),
            "is_quantised": int(self.quantised),
            "x_quantised": int(self.quantise_x),
            "y_quantised": int(self.quantise_y),
            "is_transposed": int(self.phase == "dlhs"),
            "rounds_scales": int(self.bf16_scales),
        }

    def source_constants(self) -> Mapping[str, object]:
        """Module constants of a kernel's source that this recipe sets."""
        if self.rows:
            own: dict[str, object] = {"TRANSPOSED": self.phase == "dlhs", "QUANTISE_X": self.quantise_x}
        else:
            own = {"GROUP": self.group or 128, "QUANTISE_Y": self.quantise_y}
        return {**own, "QUANTISED": self.quantised, "BF16_SCALES": self.bf16_scales}


def _table() -> Mapping[str, Recipe]:
    """``full`` has no ``tgmm``: one scale for a column of a ragged group needs a pass of its own before the product."""
    phases = ("fwd", "dlhs", "tgmm")
    table = {}
    for phase in phases:
        table[f"{phase}-g128"] = Recipe(phase, 128)
        table[f"{phase}-g512"] = Recipe(phase, 512)
        table[f"{phase}-bf16"] = Recipe(phase, None)
        table[f"{phase}-bf16-scales"] = Recipe(phase, 128, bf16_scales=True)
        if phase != "tgmm":
            table[f"{phase}-full"] = Recipe(phase, WHOLE)
        if phase != "fwd":
            table[f"{phase}-no-bwd-quant"] = Recipe(phase, 128, gradient=False)
    return MappingProxyType(table)


RECIPES = _table()


def _workload(phase: str, prefix: str, sizes: tuple[int, int, int, int], ragged: int = 0) -> Workload:
    """``sizes``: M, N, K, G. C is what the phase contracts over, F the free dimension of its matrices."""
    m, n, k, groups = sizes
    contracted = {"fwd": (k, n), "dlhs": (n, k), "tgmm": (m, n)}[phase]
    dims = {"M": m, "N": n, "K": k, "G": groups, "C": contracted[0], "F": contracted[1]}
    tail = "/ragged" if ragged else ""
    return Workload(f"{prefix}{m}x{n}x{k}/{groups}{tail}", {**dims, "ragged": ragged} if ragged else dims)


def suites(phase: str) -> dict[str, Suite]:
    """``gmm-antpretrain``: the gate/up and down projections of an MoE layer, 256 rows a group, 32 groups.

    ``quick`` has a quarter of its rows and groups, so the same blocks and the same rows a group, and ends at the whole.
    ``gmm-large`` is for reports: what the simulator costs in an hour or more; ``gmm-large-slice`` is one part in 64 of
    its rows and groups, at the same 1024 rows a group. ``worst-case`` is many groups, few rows, and one group.

    Check shapes take several row and column blocks of the kernels' block sizes; ``make_inputs`` draws the groups.
    """

    def made(m: int, n: int, k: int, groups: int, prefix: str = "", ragged: int = 0) -> Workload:
        return _workload(phase, prefix, (m, n, k, groups), ragged)

    check = (made(1024, 1024, 1024, 5), made(2048, 512, 512, 6))
    layers = ((512, 2048, "gate_up/"), (2048, 512, "down/"))
    whole = tuple(made(8192, n, k, 32, f"antpretrain/{name}") for n, k, name in layers)
    part = tuple(made(2048, n, k, 8, f"quick/{name}") for n, k, name in layers)
    ragged = tuple(made(8192, n, k, 32, f"antpretrain/{name}", 7) for n, k, name in layers)
    large = (made(262144, 1024, 7168, 256, "large/"), made(131072, 1024, 7168, 256, "large/"))
    slices = (made(4096, 1024, 7168, 4, "large-slice/"),)
    hard = (made(1024, 512, 512, 64), made(1024, 512, 1024, 1), made(2048, 1024, 512, 3))
    return {
        "quick": Suite("quick", part, check, whole),
        "gmm-antpretrain": Suite("gmm-antpretrain", whole, check, (*whole, *ragged)),
        "gmm-ragged": Suite("gmm-ragged", ragged, check),
        "gmm-large": Suite("gmm-large", large, check),
        "gmm-large-slice": Suite("gmm-large-slice", slices, check),
        "worst-case": Suite("worst-case", part, hard),
    }
