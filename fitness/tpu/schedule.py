"""What a schedule waits for, in words: sentences made of a diagnosis, for a model that is to improve it."""

from collections.abc import Mapping
from typing import Any

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
