"""Where a kernel belongs in an archive by what its schedule does: words made of a diagnosis.

A diagnosis of several workloads is that of the slowest one. The edges are wide on purpose: cells that a small change
leaves would keep many copies of one schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.fitness.evaluation import WorkloadFigures

UNKNOWN = "unknown"

NOTABLE = 0.05
"""Part of the critical path below which a unit goes unmentioned."""

_UNITS = {
    "mxu": "the matrix units",
    "valu": "vector arithmetic",
    "eup": "transcendental functions",
    "xlu": "cross-lane moves",
    "load": "vector loads",
    "store": "vector stores",
    "spill": "register spills",
    "dma": "DMAs",
    "scalar": "scalar code and loop control",
}

_CURES = {
    "spill": "Spills: fewer values live at once remove them (smaller sub-tiles, rolled loops, sums stored earlier).",
    "valu": "Vector work: do it once per operand instead of once per use, on packed types, or on larger scale groups.",
    "dma": "DMA waits: larger blocks, more buffers, or an order of the grid that revisits operands.",
    "xlu": "Cross-lane moves: reductions and transposes are cheaper over larger pieces, or once per operand.",
    "scalar": "Scalar code: fewer grid steps, or more work in each.",
}


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


def hints(diagnosis: Mapping[str, Any]) -> list[str]:
    """Sentences about one workload's diagnosis; none when it says nothing about a schedule."""
    path = diagnosis.get("critical_path")
    if not isinstance(path, Mapping) or not path:
        return []
    total = sum(path.values())
    shares = {unit: cycles / total for unit, cycles in path.items() if cycles / total >= NOTABLE}
    found = ["Of the cycles on the critical path, " + _list(shares) + "."] if shares else []
    if diagnosis.get("bound") == "hbm":
        found.append("HBM bandwidth bounds the time: only fewer bytes help.")
    else:
        leading = max(path, key=lambda unit: path[unit])
        if leading in _CURES:
            found.append(_CURES[leading])
        elif shares.get("spill", 0) >= 2 * NOTABLE:
            found.append(_CURES["spill"])
    overlap = diagnosis.get("overlap")
    if isinstance(overlap, Mapping) and overlap.get("mxu_with_valu", 0) > 0.8 and shares.get("mxu", 0) < 0.5:
        found.append(
            f"Vector work already issues in {overlap['mxu_with_valu']:.0%} of the matrix units' busy cycles: "
            "more overlap will not help, less work will."
        )
    if diagnosis.get("caution"):
        found.append(f"Caution: {diagnosis['caution']}.")
    return found


def _list(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{share:.0%} are {_UNITS.get(unit, unit)}" for unit, share in shares.items())
