"""Where a kernel belongs in an archive by what its schedule does: words made of a diagnosis.

A diagnosis of several workloads is that of the slowest one. The edges are wide on purpose: cells that a small change
leaves would keep many copies of one schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.fitness.evaluation import WorkloadFigures

UNKNOWN = "unknown"


def _share(value: float, edges: Sequence[float]) -> str:
    """A share of 1 as a range in per cent: ``under 25%``, ``25-50%``, ``75%+``."""
    low = 0.0
    for edge in edges:
        if value < edge:
            return f"under {edge:.0%}" if low == 0 else f"{low * 100:.0f}-{edge:.0%}"
        low = edge
    return f"{low:.0%}+"


def _overlap(diagnosis: Mapping[str, Any]) -> str:
    return _share(diagnosis["overlap"]["mxu_with_valu"], (0.25, 0.5, 0.75))


def _spills(diagnosis: Mapping[str, Any]) -> str:
    if not diagnosis["spill_stores"]:
        return "none"
    path = diagnosis["critical_path"]
    return _share(path.get("spill", 0) / max(1, sum(path.values())), (0.05, 0.2, 0.4))


def _stall(diagnosis: Mapping[str, Any]) -> str:
    path = diagnosis["critical_path"]
    return max(path, key=lambda unit: path[unit])


FIGURES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "overlap": _overlap,
    "spills": _spills,
    "stall": _stall,
    "bound": lambda diagnosis: str(diagnosis["bound"]),
}
"""Descriptors by name. ``overlap``: part of the matrix units' busy cycles in which vector work issues; ``spills``:
part of the critical path that spills take; ``stall``: what the critical path waits for most; ``bound``: the unit with
the largest lower bound, or ``hbm``.
"""


def describe(figures: Sequence[WorkloadFigures], names: Iterable[str]) -> dict[str, str]:
    """Those of ``names`` that are descriptors of a schedule; ``unknown`` where the diagnosis does not say."""
    wanted = [name for name in names if name in FIGURES]
    if not wanted or not figures:
        return {}
    diagnosis = max(figures, key=lambda figure: figure.seconds).diagnosis
    found = {}
    for name in wanted:
        try:
            found[name] = FIGURES[name](diagnosis)
        except (KeyError, TypeError, ValueError):
            found[name] = UNKNOWN
    return found
