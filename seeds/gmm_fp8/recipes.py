"""The recipes of the family: which phase, which operands are quantised, how wide their scales are. One table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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

MIXES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "fp8-g128": ("fwd-g128", "dlhs-g128", "tgmm-g128"),
        "fp8-g512": ("fwd-g512", "dlhs-g512", "tgmm-g512"),
        "fp8-full": ("fwd-full", "dlhs-full", "tgmm-bf16"),
        "bf16-tgmm": ("fwd-g128", "dlhs-g128", "tgmm-bf16"),
        "no-bwd-quant": ("fwd-g128", "dlhs-no-bwd-quant", "tgmm-no-bwd-quant"),
        "bf16-scales": ("fwd-bf16-scales", "dlhs-bf16-scales", "tgmm-bf16-scales"),
        "bf16": ("fwd-bf16", "dlhs-bf16", "tgmm-bf16"),
    }
)
"""A training step's precision recipe to its three operators; reported side by side, never mixed within one."""
