"""Limits of one evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.workers.child.run_once import ChildLimits

GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """Limits of the two children. A final evaluation (larger shapes) gets ``final_factor`` times the wall clocks."""

    trace: ChildLimits = field(default_factory=lambda: ChildLimits(60.0, 8 * GIB))
    compile: ChildLimits = field(default_factory=lambda: ChildLimits(150.0, 12 * GIB))
    final_factor: float = 4.0
