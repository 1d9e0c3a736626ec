"""Convergence: the best fitness so far against evaluations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.evolve.report.data import CampaignData, Point
from tilewright.evolve.report.page import drawing, label, tag, title
from tilewright.evolve.report.text import rate_text
from tilewright.seeds.operator import Scope

WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 34, 62
TICK = 10
"""Height in pixels of a failure's tick below the axis."""
LABEL_GAP = 15
BAR, BAR_STEP = 7.0, 10.0
"""Width of a reference's interval at the right edge, and from one to the next."""

Interval = tuple[float, float]
"""In the campaign's unit."""


@dataclass(frozen=True)
class PlotArea:
    """Maps figures to pixels. ``high_x`` in evaluations, ``low_y``/``high_y`` in the campaign's unit."""

    high_x: float
    low_y: float
    high_y: float

    def x(self, value: float) -> float:
        return LEFT + value / self.high_x * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low_y) / (self.high_y - self.low_y)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def at(self, point: Point) -> tuple[float, float]:
        return self.x(point.arrival), self.y(point.evaluation.fitness or 0.0)


@dataclass(frozen=True)
class Reference:
    """A horizontal line: a seed's or baseline's fitness in the campaign's unit, and the interval it lies in."""

    name: str
    role: str
    fitness: float
    interval: Interval | None = None


def convergence_svg(data: CampaignData, *, standalone: bool = False) -> str:
    """Dots: every evaluation that passed. Step line: best so far. Red ticks: failures. Dashes: references.

    Where figures have an interval, a band around the line shows it, and a bar at the right edge those of references.
    """
    passed = data.passed()
    name = f"Fitness on suite {data.facts.get('suite')} against evaluations"
    if not passed:
        text = label(WIDTH / 2, 40, "No candidate has passed every gate yet.", class_="middle quiet")
        return drawing(WIDTH, 80, name, text, standalone=standalone)
    lines = _references(data)
    area = _area(data, lines)
    best = records(passed)[-1].evaluation.fitness or 0.0
    named = [(area.y(line.fitness), f"{line.name} {line.fitness:.4g}", line.role) for line in lines]
    labels = [(area.y(best), f"best {best:.4g}", "winner strong"), *named]
    parts = [_axes(data, area), _failure_ticks(data, area), _bands(records(passed), lines, area)]
    parts.append(tag("path", d="".join("M{:.1f} {:.1f}h0".format(*area.at(p)) for p in passed), class_="dots"))
    for line in lines:
        path = f"M{LEFT} {area.y(line.fitness):.1f}H{WIDTH - RIGHT}"
        parts.append(tag("path", d=path, class_=f"reference {line.role}"))
    parts += [_best_line(data, passed, area), _edge_labels(labels)]
    return drawing(WIDTH, HEIGHT, name, *parts, standalone=standalone)


def records(passed: Sequence[Point]) -> list[Point]:
    """Each evaluation that was fitter than all before it."""
    found: list[Point] = []
    for point in passed:
        if not found or (point.evaluation.fitness or 0.0) > (found[-1].evaluation.fitness or 0.0):
            found.append(point)
    return found


def ticks(low: float, high: float, count: int = 5) -> Sequence[float]:
    """Round values that cover [low, high], about ``count`` of them."""
    if not math.isfinite(low) or not math.isfinite(high) or high <= low:
        return [low]
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def _area(data: CampaignData, lines: Sequence[Reference]) -> PlotArea:
    """An area that all figures and the references' intervals fit into."""
    values = [p.evaluation.fitness or 0.0 for p in data.passed()]
    values += [end for line in lines for end in (line.fitness, *(line.interval or ()))]
    margin = (max(values) - min(values)) * 0.06 or max(values) * 0.05
    high_x = max(1.0, *(p.arrival for p in data.points)) * 1.01
    return PlotArea(high_x, max(0.0, min(values) - margin), max(values) + margin)


def _references(data: CampaignData) -> list[Reference]:
    """Seeds and baselines on the suite, fittest first."""
    rows = [row for row in data.ranking(Scope.SUITE) if row.role != "winner"]
    return [
        Reference(row.name, row.role, row.evaluation.fitness, row.evaluation.interval)
        for row in rows
        if row.evaluation.fitness
    ]


def _axes(data: CampaignData, area: PlotArea) -> str:
    """Rules, their values, and what both axes mean."""
    parts = []
    for value in ticks(area.low_y, area.high_y):
        y = area.y(value)
        parts.append(tag("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_="rule"))
        parts.append(label(LEFT - 8, y + 4, f"{value:g}", class_="quiet end"))
    for value in ticks(0, area.high_x, 6):
        if value == int(value):
            at = area.x(value), HEIGHT - BOTTOM + TICK + 20
            parts.append(label(*at, f"{value:g}", class_="quiet middle"))
    unit = f"{data.unit}, geometric mean over suite {data.facts.get('suite')} ({data.target_text}, {data.kind})"
    parts.append(label(LEFT - 40, 16, unit, class_="quiet"))
    parts.append(label(LEFT, HEIGHT - 12, "evaluations finished", class_="quiet"))
    return "".join(parts)


def _failure_ticks(data: CampaignData, area: PlotArea) -> str:
    """One tick below the axis for every evaluation that failed."""
    top = HEIGHT - BOTTOM + 3
    failed = [p for p in data.points if p.evaluation.failed]
    path = "".join(f"M{area.x(p.arrival):.1f} {top}v{TICK}" for p in failed)
    if not path:
        return ""
    count = label(WIDTH - RIGHT + 8, top + TICK, f"{len(failed)} failed", class_="quiet")
    return tag("path", title(f"{len(failed)} evaluations failed"), d=path, class_="fails") + count


def _best_line(data: CampaignData, passed: Sequence[Point], area: PlotArea) -> str:
    path, marks = "", []
    for point in records(passed):
        reached = rate_text(point.evaluation.fitness or 0.0, data.unit)
        tip = f"candidate {point.candidate.index}: {reached}, {point.candidate.mutation.detail}"
        x, y = area.at(point)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
        marks.append(tag("circle", title(tip), cx=x, cy=y, r=4.5, class_="step"))
    return tag("path", d=f"{path}H{WIDTH - RIGHT}", class_="best") + "".join(marks)


def _bands(steps: Sequence[Point], lines: Sequence[Reference], area: PlotArea) -> str:
    """The interval of the best so far, and of each reference at the edge; nothing where figures repeat exactly."""
    ends = [*(area.at(p)[0] for p in steps[1:]), float(WIDTH - RIGHT)]
    parts = [
        _band(area.at(point)[0], end, point.evaluation.interval, area, "")
        for point, end in zip(steps, ends, strict=True)
    ]
    # a reference's is a bar at the right edge: bands across the picture would cover each other and the line's
    for number, line in enumerate(lines):
        end = WIDTH - RIGHT - BAR_STEP * number
        parts.append(_band(end - BAR, end, line.interval, area, f"bar {line.role}"))
    return "".join(parts)


def _band(begin: float, end: float, interval: Interval | None, area: PlotArea, role: str) -> str:
    if interval is None or interval[0] == interval[1]:
        return ""
    low, high = (min(max(value, area.low_y), area.high_y) for value in interval)
    top, height = area.y(high), area.y(low) - area.y(high)
    return tag("rect", x=begin, y=top, width=end - begin, height=height, class_=f"band {role}".strip())


def _edge_labels(labels: list[tuple[float, str, str]]) -> str:
    """(y in pixels, name, class): names at the right edge, pushed apart so that none covers another."""
    labels = sorted(labels)
    placed: list[float] = []
    for y, _, _ in labels:
        placed.append(max(y, placed[-1] + LABEL_GAP) if placed else y)
    overflow = placed[-1] - (HEIGHT - BOTTOM)
    if overflow > 0:
        placed = [y - overflow for y in placed]
        for n in range(len(placed) - 2, -1, -1):
            placed[n] = min(placed[n] + overflow, placed[n + 1] - LABEL_GAP)
    return "".join(
        label(WIDTH - RIGHT + 8, y + 4, name[:24], class_=role)
        for y, (_, name, role) in zip(placed, labels, strict=True)
    )
