"""A rough cost of kernels that libtpu's simulator aborts on, from their scheduled code alone.

    cycles = grid steps * max(bundles of a step, matrix units' cycles of a step, latency of a DMA)

Bundles of a loop inside a step are counted as often as the kernel's matrix products need; code that a step may skip is
counted in every step. ``docs/time_model.md`` says how far off that is: enough to say what an idea may be worth, not
to win by. It is kept apart from figures and never a fitness.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

from tilewright.fitness.chips import Chip
from tilewright.fitness.tpu.llo import ParseError, matmul_type

_BUNDLE = re.compile(r"^ *(?:0x[0-9a-f]+|0) +(?:[A-Z]{2})? *: *((?:> *)*)\{(.*)$", re.MULTILINE)
_MATMUL = re.compile(r"= (?:\([^)\n]*\) )?(vmatmul[\w.]*)")
_BOUNDS = re.compile(r"^iteration_bounds: \(([0-9, ]{1,200})\)", re.MULTILINE)


def is_kernel(dump: str) -> bool:
    """Whether a dump of this name is an operation's own code, not the program around it or an analysis of either."""
    return not any(mark in dump for mark in ("-TLP-", "-<", "schedule-analysis"))


def estimate_cycles(texts: Iterable[str], flops: int, chip: Chip) -> int:
    """Cycles of the kernels whose ``final_bundles`` these are, which compute ``flops`` of matrix products.

    Raises ParseError for text without bundles.
    """
    codes = [_Code(text, chip) for text in texts]
    total = sum(code.passes * code.steps for code in codes)
    inner = sum(code.inner_passes * code.steps for code in codes)
    square = (
        2 * chip.mxu_size**2 * max((chip.mxu_rows[kind] for code in codes for kind in code.kinds), default=1)
    )
    repeats = max(1.0, (flops / square - total) / inner) if inner else 1.0
    return round(sum(code.cycles(repeats) for code in codes))


class _Code:
    """One kernel's scheduled code: what one grid step issues, outside and inside of loops of its own."""

    def __init__(self, text: str, chip: Chip) -> None:
        bundles, matmuls = Counter[int](), {0: Counter[str](), 1: Counter[str](), 2: Counter[str]()}
        bounds = _BOUNDS.search(text)
        outer = 1 if bounds else 0  # the grid is a loop, unless there is none
        for depth, operations in _BUNDLE.findall(text):
            place = min(2, max(0, depth.count(">") - outer + 1))
            bundles[place] += 1
            matmuls[place].update(map(matmul_type, _MATMUL.findall(operations)))
        if not bundles:
            raise ParseError("no bundles in a kernel's scheduled code")
        self.steps = math.prod(int(n) for n in bounds[1].split(",") if n.strip()) if bounds else 1
        self.passes = sum(matmuls[1].values())
        self.inner_passes = sum(matmuls[2].values())
        self.kinds = {kind for counts in matmuls.values() for kind in counts}
        self._once, self._step, self._loop = bundles[0], bundles[1], bundles[2]
        hold = chip.mxu_cycles
        held = [
            sum(hold.get(kind, hold["bf16"]) * number for kind, number in matmuls[place].items()) / chip.mxus
            for place in (1, 2)
        ]
        self._held, self._loop_held = held
        self._latency = chip.dma_latency

    def cycles(self, repeats: float) -> float:
        """All steps, each running the loops inside it ``repeats`` times."""
        held = self._held + repeats * self._loop_held
        step = max(self._step + repeats * self._loop, held, self._latency)
        return self._once + 2 * self._latency + self.steps * step
