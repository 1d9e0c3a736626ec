"""The most that each source of gain could give to a step, before anything is searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORTH = 0.002
"""Shares of the step below this are not worth a search."""


@dataclass(frozen=True)
class Source:
    """A source of gain: what it takes of the step today, and at its floor. Seconds of one step."""

    name: str
    seconds: float
    floor: float
    note: str = ""

    @property
    def saving(self) -> float:
        return max(0.0, self.seconds - self.floor)


@dataclass
class Ceiling:
    """Sources of gain by what they could save, and a step's time by kind. ``wall``: seconds of a step."""

    wall: float
    busy: float
    sources: list[Source]
    shares: dict[str, float]
    kernels: list[dict[str, Any]] = field(default_factory=list)
    """The record's rows of Triton's and Inductor's kernels."""

    def factor(self, source: Source) -> float:
        """How many times faster the step would be with this source at its floor."""
        return self.wall / max(self.wall - source.saving, 1e-12)


TRITON, GENERATED = "Triton kernels", "Inductor's kernels"
FP8, GAPS = "linear layers in FP8", "gaps between kernels"


def ceiling(record: Mapping[str, Any]) -> Ceiling:
    """Of a record (``workers.program.record``), which has the floors of kernels. One with products may not reach its
    floor: its operations are not counted."""
    wall, busy = float(record["wall_seconds"]), float(record["busy_seconds"])
    shares: dict[str, float] = {}
    for row in record["rows"]:
        shares[row["kind"]] = shares.get(row["kind"], 0.0) + row["seconds"] / max(busy, 1e-12)
    kernels = [row for row in record["rows"] if row["kind"] in ("triton", "inductor")]
    sources = []
    for name, kind in ((TRITON, "triton"), (GENERATED, "inductor")):
        found = [k for k in kernels if k["kind"] == kind]
        if not found:
            continue
        note = "floors by bytes"
        if any(k["products"] for k in found):
            note += "; kernels with products may not reach theirs"
        missing = sum(k["seconds"] for k in found if not k["bytes"])
        if missing:
            note += f"; {1e3 * missing:.3f} ms of launches with unknown arguments left as they are"
        sources.append(Source(name, sum(k["seconds"] for k in found), sum(k["floor"] for k in found), note))
    if record["fp8"]["shapes"]:
        note = "the step with them, measured; changes numerics"
        sources.append(Source(FP8, wall, wall / record["fp8"]["gain"], note))
    if busy and not record["graph"]:
        sources.append(Source(GAPS, max(0.0, wall - busy), 0.0, "a CUDA graph of the step could remove them"))
    sources.sort(key=lambda s: -s.saving)
    return Ceiling(wall, busy, sources, dict(sorted(shares.items(), key=lambda s: -s[1])), kernels)
