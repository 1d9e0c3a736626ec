"""The roofline plot: rate against FLOP per byte, below what the target's matrix units and memory allow.

After Williams, Waterman and Patterson (2009). Both axes are logarithmic. Kernels ranked in GB/s have none: memory
is their only roof, and tables give their share of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.evolve.report.data import CampaignData, Named
from tilewright.evolve.report.page import drawing, label, tag, title
from tilewright.evolve.report.text import bytes_text, rate_text, shorten, time_text
from tilewright.fitness.evaluation import WorkloadFigures
from tilewright.fitness.targets import UnknownTarget, load_target
from tilewright.seeds.operator import Scope

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 62, 170, 34, 52
MARKERS = (
    "M{x} {y}m-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0Z",
    "M{x} {y}m-5 -5h10v10h-10Z",
    "M{x} {y}m0 -6.5l6 11h-12Z",
    "M{x} {y}m0 -7l6 7l-6 7l-6 -7Z",
    "M{x} {y}m0 6.5l6 -11h-12Z",
    "M{x} {y}m-6 -2h4v-4h4v4h4v4h-4v4h-4v-4h-4Z",
)
"""A shape for each kernel, for readers who cannot tell the colours apart."""


@dataclass(frozen=True)
class Spot:
    """One kernel on one shape: FLOP per byte and TFLOP/s. ``tip`` says which kernel and shape."""

    kernel: str
    role: str
    intensity: float
    rate: float
    tip: str


@dataclass(frozen=True)
class Roofline:
    """``peaks`` in TFLOP/s by operand type, ``bandwidth`` in bytes/s.

    ``moved``: intensities are of the bytes that were moved, else of the bytes that must be.
    """

    peaks: Mapping[str, float]
    bandwidth: float
    spots: Sequence[Spot]
    moved: bool


def roofline(data: CampaignData) -> Roofline | None:
    """None without a known target, for kernels ranked in GB/s, and without a figure whose bytes are known."""
    try:
        target = load_target(data.target)
    except UnknownTarget:
        return None
    if target.compile_only or data.unit != "TFLOP/s":
        return None
    hardware = target.hardware
    figures = [
        (row.name, row.role, w)
        for scope in (Scope.SUITE, Scope.FINAL)
        for row in _distinct(data.ranking(scope))
        for w in row.evaluation.workloads
    ]
    moved = bool(figures) and all(_moved(w) is not None for _, _, w in figures)
    spots = []
    for name, role, w in figures:
        floor = data.floors(w.workload).get("hbm", 0.0) * hardware.hbm
        size, rate = _moved(w) if moved else floor, w.tflops
        if not size or not rate:
            continue
        tip = f"{name}, {w.workload}: {rate_text(rate, data.unit)}, {time_text(w.seconds)}, {bytes_text(size)}"
        spots.append(Spot(name, role, rate * 1e12 * w.seconds / size, rate, tip))
    if not spots:
        return None
    peaks = {kind: peak / 1e12 for kind, peak in hardware.peaks.items()}
    return Roofline(peaks, hardware.hbm, spots, moved)


def _distinct(rows: Sequence[Named]) -> list[Named]:
    """The rows without seeds and baselines that won."""
    won = {row.evaluation.genome for row in rows if row.role == "winner"}
    return [row for row in rows if row.role == "winner" or row.evaluation.genome not in won]


@dataclass(frozen=True)
class _Frame:
    """Logarithmic axes: decades of intensities and of rates."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, intensity: float, rate: float) -> tuple[float, float]:
        across = (math.log10(intensity) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(rate) - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def roofline_svg(data: CampaignData, found: Roofline) -> str:
    """Slanted: the memory's roof; level: that of the matrix units for each operand type."""
    across = [*(spot.intensity for spot in found.spots), max(found.peaks.values()) * 1e12 / found.bandwidth]
    rates = [spot.rate for spot in found.spots]
    frame = _Frame(
        (math.log10(min(across) / 2), math.log10(max(across) * 1.6)),
        (math.log10(min(rates) / 1.6), math.log10(max(*found.peaks.values(), *rates) * 1.25)),
    )
    name = f"Roofline of {data.target_text}, {data.kind} figures"
    parts = [_axes(data, found, frame), _roofs(found, frame), *_kernels(found.spots, frame)]
    return drawing(WIDTH, HEIGHT, name, *parts)


def _axes(data: CampaignData, found: Roofline, frame: _Frame) -> str:
    parts = []
    for value in _round_values(*frame.y):
        y = frame.at(1.0, value)[1]
        parts.append(tag("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_="rule"))
        parts.append(label(LEFT - 8, y + 4, f"{value:g}", class_="quiet end"))
    for value in _round_values(*frame.x):
        x = frame.at(value, 1.0)[0]
        parts.append(tag("path", d=f"M{x:.1f} {TOP}V{HEIGHT - BOTTOM}", class_="rule"))
        parts.append(label(x, HEIGHT - BOTTOM + 18, f"{value:g}", class_="quiet middle"))
    bytes_of = "byte moved to and from HBM" if found.moved else "byte that must be moved to and from HBM"
    parts.append(label(LEFT - 40, 16, f"TFLOP/s ({data.target_text}, {data.kind})", class_="quiet"))
    parts.append(label(LEFT, HEIGHT - 12, f"FLOP per {bytes_of}", class_="quiet"))
    return "".join(parts)


def _roofs(found: Roofline, frame: _Frame) -> str:
    low = 10 ** frame.x[0]
    parts = [_slope(found, frame, low)]
    for peak in sorted(set(found.peaks.values()), reverse=True):
        x, y = frame.at(max(low, peak * 1e12 / found.bandwidth), peak)
        parts.append(tag("path", d=f"M{x:.1f} {y:.1f}H{WIDTH - RIGHT}", class_="roof"))
        kinds = ", ".join(k for k, p in found.peaks.items() if p == peak)
        parts.append(label(WIDTH - RIGHT + 8, y + 4, f"{kinds} {peak:g} TFLOP/s", class_="quiet"))
    return "".join(parts)


def _slope(found: Roofline, frame: _Frame, low: float) -> str:
    """The memory's roof, named along it."""
    start = max(low, 10 ** frame.y[0] * 1e12 / found.bandwidth)
    highest = max(found.peaks.values())
    ridge = highest * 1e12 / found.bandwidth
    x1, y1 = frame.at(start, start * found.bandwidth / 1e12)
    x2, y2 = frame.at(ridge, highest)
    line = tag("path", d=f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}", class_="roof")
    slope = math.degrees(math.atan2(y2 - y1, x2 - x1))
    x, y = (x1 + x2) / 2, (y1 + y2) / 2 - 7
    name = f"HBM {found.bandwidth / 1e12:g} TB/s"
    turn = f"rotate({slope:.1f} {x:.1f} {y:.1f})"
    return line + label(x, y, name, class_="quiet middle", transform=turn)


def _kernels(spots: Sequence[Spot], frame: _Frame) -> Iterable[str]:
    """Markers, the winner's on top, and the key to them in the lower right corner."""
    names = list(dict.fromkeys(spot.kernel for spot in spots))
    names.sort(key=lambda name: name != "winner")
    roles = {spot.kernel: spot.role for spot in spots}
    for order in reversed(range(len(names))):
        for spot in spots:
            if spot.kernel == names[order]:
                x, y = frame.at(spot.intensity, spot.rate)
                tip = title(spot.tip)
                yield tag("path", tip, d=_marker(order, x, y), class_=f"marker {spot.role}")
    for order, name in enumerate(names):
        x, y = WIDTH - RIGHT + 16, HEIGHT - BOTTOM - 8 - (len(names) - 1 - order) * 20
        yield tag("path", d=_marker(order, x, y), class_=f"marker {roles[name]}")
        role = "" if roles[name] == name else f" ({roles[name]})"
        yield label(x + 14, y + 4, shorten(name + role, 20), class_=roles[name])


def _marker(order: int, x: float, y: float) -> str:
    return MARKERS[order % len(MARKERS)].format(x=f"{x:.1f}", y=f"{y:.1f}")


def _moved(figures: WorkloadFigures) -> float | None:
    """Bytes a kernel moved to and from HBM, where the time model counts them."""
    value = figures.diagnosis.get("dma_bytes")
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _round_values(low: float, high: float) -> list[float]:
    """Round numbers between two decades, fewer over a wider range."""
    steps = (1, 1.5, 2, 3, 4, 5, 7) if high - low < 0.9 else (1, 2, 5) if high - low < 2.5 else (1,)
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [step * 10.0**decade for decade in decades for step in steps]
    return [value for value in values if low <= math.log10(value) <= high]
