"""Unit timelines: how busy each unit of the chip was while a kernel ran, and what its critical path waited for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.evolve.report.charts import ticks
from tilewright.evolve.report.data import CampaignData
from tilewright.evolve.report.page import drawing, label, tag, title
from tilewright.evolve.report.tables import seed_and_winner
from tilewright.evolve.report.text import number_text

WIDTH = 860
LEFT, RIGHT, TOP = 70, 64, 40
LANE, GAP = 30, 8
LABELS = {"mxu": "MXU", "valu": "VALU", "dma": "DMA", "spill": "spills"}
KNOWN = ("mxu", "valu", "load", "store", "spill", "dma")
WAITS = {"eup": "EUP", "xlu": "XLU", "scalar": "scalar code"}
"""Names of what only the critical path knows; the rest are LABELS."""

NAMED_WAITS = 4
"""How many of the things waited for are named under the strip, most first."""


@dataclass(frozen=True)
class Timeline:
    """``ends`` are the ends of the bins in ``unit``; ``lanes`` the busy fraction of each unit in each bin.

    ``waits``: the part of each bin that the critical path spends on a unit; empty where it is not known.
    """

    name: str
    unit: str
    ends: tuple[float, ...]
    lanes: Mapping[str, tuple[float, ...]]
    waits: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def read_timeline(name: str, diagnosis: Mapping[str, object]) -> Timeline | None:
    """The timeline of a diagnosis, or None when it has none or a malformed one.

    ``diagnosis["timeline"]`` is ``{"bins": [end of each bin], "lanes": {"MXU": [...]}, "unit": "cycles"}``. ``waits``
    may be there too, like ``lanes``.
    """
    raw = diagnosis.get("timeline")
    if not isinstance(raw, Mapping) or not isinstance(raw.get("lanes"), Mapping):
        return None
    ends = _numbers(raw.get("bins"))
    lanes = {str(k): _numbers(v) for k, v in raw["lanes"].items()}
    count = len(ends)
    if not ends or not lanes or any(len(values) != count for values in lanes.values()):
        return None
    if any(b <= a for a, b in itertools.pairwise([0.0, *ends])):
        return None
    waited = raw.get("waits")
    waits = {str(k): _numbers(v) for k, v in waited.items()} if isinstance(waited, Mapping) else {}
    return Timeline(
        name,
        str(raw.get("unit", "cycles")),
        tuple(ends),
        {k: tuple(v) for k, v in lanes.items()},
        {k: tuple(v) for k, v in waits.items() if len(v) == count},
    )


def seed_and_winner_timelines(data: CampaignData) -> tuple[list[Timeline], str] | None:
    """The timelines of one seed and of the winner on one workload, and what they show; None without any."""
    pair = seed_and_winner(data, needs="timeline")
    if pair is None:
        return None
    workload, (name, seed), winner = pair
    read = (read_timeline(f"seed {name}", seed.diagnosis), read_timeline("winner", winner.diagnosis))
    caption = (
        f"Busy share of each unit over the run of {workload} and what its critical path waits for, "
        f"{data.target_text}, {data.kind}; one time axis for both."
    )
    timelines = [timeline for timeline in read if timeline is not None]
    return (timelines, caption) if timelines else None


def timeline_svg(timelines: Sequence[Timeline], caption: str) -> str:
    """Timelines below each other on one time axis, so that a faster kernel is visibly shorter."""
    longest = max(t.ends[-1] for t in timelines)
    y, parts = 0.0, []
    for timeline in timelines:
        parts.append(_heading(timeline, y))
        y += TOP
        for name, values in timeline.lanes.items():
            parts.append(_lane(timeline, name, values, y, longest))
            y += LANE + GAP
        if timeline.waits:
            parts.append(_waits(timeline, y, longest))
            y += LANE + 22
        y += 14
    parts.append(_axis(longest, timelines[0].unit, y))
    return drawing(WIDTH, y + 34, caption, *parts)


def _heading(timeline: Timeline, y: float) -> str:
    length = f"{number_text(timeline.ends[-1])} {timeline.unit}"
    return label(LEFT, y + 26, timeline.name, class_="strong") + label(
        WIDTH - RIGHT, y + 26, length, class_="end quiet"
    )


def _lane(timeline: Timeline, name: str, values: Sequence[float], y: float, longest: float) -> str:
    scale = (WIDTH - LEFT - RIGHT) / longest
    begin, path, total = 0.0, f"M{LEFT} {y + LANE:g}", 0.0
    for end, value in zip(timeline.ends, values, strict=True):
        share = min(1.0, max(0.0, value))
        path += f"V{y + LANE * (1 - share):.1f}H{LEFT + end * scale:.1f}"
        total += share * (end - begin)
        begin = end
    path += f"V{y + LANE:g}Z"
    mean = total / timeline.ends[-1]
    width = timeline.ends[-1] * scale
    unit = next((known for known in KNOWN if known in name.lower()), "other")
    return (
        tag("rect", x=LEFT, y=y, width=width, height=LANE, class_="lane")
        + tag("path", title(f"{name}: busy {mean:.0%} of the time"), d=path, class_=f"area {unit}")
        + label(LEFT - 8, y + LANE / 2 + 5, LABELS.get(name, name), class_="end")
        + label(LEFT + width + 6, y + LANE / 2 + 5, f"{mean:.0%}", class_="quiet")
    )


def _waits(timeline: Timeline, y: float, longest: float) -> str:
    """One strip, each bin divided among what the critical path waits for, and the most waited-for in words."""
    scale = (WIDTH - LEFT - RIGHT) / longest
    widths = [end - begin for begin, end in itertools.pairwise((0.0, *timeline.ends))]
    shares = {
        name: sum(v * w for v, w in zip(values, widths, strict=True)) / timeline.ends[-1]
        for name, values in timeline.waits.items()
    }
    ranked = sorted(shares, key=lambda name: -shares[name])
    floor = [0.0] * len(timeline.ends)
    parts = [
        tag("rect", x=LEFT, y=y, width=timeline.ends[-1] * scale, height=LANE, class_="lane"),
        label(LEFT - 8, y + LANE / 2 + 5, "waits for", class_="end"),
    ]
    for name in ranked:
        path, begin = "", 0.0
        for place, (value, end) in enumerate(zip(timeline.waits[name], timeline.ends, strict=True)):
            share = min(1.0 - floor[place], max(0.0, value))
            if share > 0:
                top, left, right = y + LANE * (1 - floor[place] - share), begin * scale, end * scale
                path += (
                    f"M{LEFT + left:.1f} {top:.1f}h{right - left:.1f}v{LANE * share:.1f}h{left - right:.1f}Z"
                )
            floor[place] += share
            begin = end
        tip = title(f"{_wait(name)}: {shares[name]:.0%} of the critical path")
        parts.append(tag("path", tip, d=path, class_=f"area {name if name in KNOWN else 'other'}"))
    words = ", ".join(f"{_wait(name)} {shares[name]:.0%}" for name in ranked[:NAMED_WAITS])
    parts.append(label(LEFT, y + LANE + 16, f"critical path: {words}", class_="quiet"))
    return "".join(parts)


def _wait(name: str) -> str:
    return LABELS.get(name) or WAITS.get(name, name)


def _axis(longest: float, unit: str, y: float) -> str:
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts = [tag("path", d=f"M{LEFT} {y:g}H{WIDTH - RIGHT}", class_="rule")]
    for value in ticks(0, longest, 6):
        anchor = "quiet middle"
        parts.append(label(LEFT + value * scale, y + 18, number_text(value), class_=anchor))
    parts.append(label(LEFT - 8, y + 18, unit, class_="quiet end"))
    return "".join(parts)


def _numbers(values: object) -> list[float]:
    if not isinstance(values, list | tuple):
        return []
    usable = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v == v]
    return [float(v) for v in usable] if len(usable) == len(values) else []
