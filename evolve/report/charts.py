"""Convergence: the best fitness so far against evaluations or campaign time, with everything tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tilewright.evolve.report import svg
from tilewright.evolve.report.data import CampaignData, Point
from tilewright.evolve.report.units import duration_text, rate_text, ticks
from tilewright.fitness.evaluation import Verdict
from tilewright.seeds.operator import Scope

WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 34, 62
RUG = 10
LABEL_GAP = 15
BAR, BAR_STEP = 7.0, 10.0
"""Width of a reference's interval at the right edge, and from one to the next."""

Interval = tuple[float, float]
"""In the campaign's unit."""


class Axis(StrEnum):
    EVALUATIONS = "evaluations"
    TIME = "time"

    def of(self, point: Point) -> float:
        """Where a point lies: evaluations finished, or seconds of campaign time."""
        return point.elapsed if self is Axis.TIME else float(point.arrival)


@dataclass(frozen=True)
class PlotArea:
    """Maps figures to pixels. ``high_x`` in evaluations or seconds, ``low_y``/``high_y`` in the campaign's unit."""

    high_x: float
    low_y: float
    high_y: float

    def x(self, value: float) -> float:
        return LEFT + value / self.high_x * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low_y) / (self.high_y - self.low_y)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


@dataclass(frozen=True)
class Curve:
    """A horizontal reference: a seed's or baseline's fitness in the campaign's unit, and the interval it lies in."""

    name: str
    role: str
    fitness: float
    interval: Interval | None = None


def convergence_svg(data: CampaignData, axis: Axis = Axis.EVALUATIONS, *, standalone: bool = False) -> str:
    """Dots: every evaluation that passed. Step line: best so far. Red ticks: failures. Dashes: references.

    Where figures have an interval, a band around the line shows it, and a bar at the right edge those of references.
    """
    passed = [p for p in data.points if p.evaluation.verdict is Verdict.OK]
    label = f"Fitness on suite {data.facts.get('suite')} against {axis.value}"
    if not passed:
        note = svg.text(WIDTH / 2, 40, "No candidate has passed yet.", class_="middle quiet")
        return svg.drawing(WIDTH, 80, label, note, standalone=standalone)
    lines = references(data)
    frame = frame_of([p.evaluation.fitness or 0.0 for p in passed], lines, span(data, axis))
    parts = [axes(data, frame, axis), _rug(data, frame, axis), _bands(passed, lines, frame, axis)]
    parts += [_dots(passed, frame, axis), *(_reference(line, frame) for line in lines)]
    parts += [_best(data, passed, frame, axis), _labels(passed, lines, frame)]
    return svg.drawing(WIDTH, HEIGHT, label, *parts, standalone=standalone)


def frame_of(fitnesses: Sequence[float], lines: Sequence[Curve], high_x: float) -> PlotArea:
    """A frame that all figures and their intervals fit into."""
    values = [*fitnesses, *(line.fitness for line in lines)]
    values += [end for line in lines for end in line.interval or ()]
    margin = (max(values) - min(values)) * 0.06 or max(values) * 0.05
    return PlotArea(high_x, max(0.0, min(values) - margin), max(values) + margin)


def span(data: CampaignData, axis: Axis) -> float:
    """How far a campaign reaches along an axis, and a little more."""
    return max(1.0, *(axis.of(p) for p in data.points)) * 1.01


def references(data: CampaignData) -> list[Curve]:
    """Seeds and baselines on the suite, fittest first."""
    rows = [row for row in data.ranking(Scope.SUITE) if row.role != "winner"]
    return [
        Curve(row.name, row.role, row.evaluation.fitness, row.evaluation.interval)
        for row in rows
        if row.evaluation.fitness
    ]


def axes(data: CampaignData, frame: PlotArea, axis: Axis) -> str:
    """Rules, their values, and what both axes mean."""
    parts = []
    for value in ticks(frame.low_y, frame.high_y):
        y = frame.y(value)
        parts.append(svg.tag("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_="rule"))
        parts.append(svg.text(LEFT - 8, y + 4, f"{value:g}", class_="quiet end"))
    for value in ticks(0, frame.high_x, 6):
        x = frame.x(value)
        shown = duration_text(value).replace(" 0 s", "") if axis is Axis.TIME else f"{value:g}"
        if axis is Axis.EVALUATIONS and value != int(value):
            continue
        parts.append(svg.text(x, HEIGHT - BOTTOM + RUG + 20, shown, class_="quiet middle"))
    rate = data.unit
    unit = f"{rate}, geometric mean over suite {data.facts.get('suite')} ({data.target_text}, {data.kind})"
    name = "campaign time" if axis is Axis.TIME else "evaluations finished"
    parts.append(svg.text(LEFT - 40, 16, unit, class_="quiet"))
    parts.append(svg.text(LEFT, HEIGHT - 12, name, class_="quiet"))
    return "".join(parts)


def _rug(data: CampaignData, frame: PlotArea, axis: Axis) -> str:
    """One tick under the chart for every evaluation that failed."""
    top = HEIGHT - BOTTOM + 3
    failed = [p for p in data.points if p.evaluation.verdict is not Verdict.OK]
    path = "".join(f"M{frame.x(axis.of(p)):.1f} {top}v{RUG}" for p in failed)
    if not path:
        return ""
    note = svg.text(WIDTH - RIGHT + 8, top + RUG, f"{len(failed)} failed", class_="quiet")
    return svg.tag("path", svg.title(f"{len(failed)} evaluations failed"), d=path, class_="fails") + note


def _dots(passed: Sequence[Point], frame: PlotArea, axis: Axis) -> str:
    path = "".join(f"M{frame.x(axis.of(p)):.1f} {frame.y(p.evaluation.fitness or 0.0):.1f}h0" for p in passed)
    return svg.tag("path", d=path, class_="dots")


def _reference(line: Curve, frame: PlotArea) -> str:
    y = frame.y(line.fitness)
    return svg.tag("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_=f"reference {line.role}")


def records(passed: Sequence[Point]) -> list[Point]:
    """Each evaluation that was fitter than all before it."""
    found: list[Point] = []
    for point in passed:
        if not found or (point.evaluation.fitness or 0.0) > (found[-1].evaluation.fitness or 0.0):
            found.append(point)
    return found


def best_path(steps: Sequence[Point], frame: PlotArea, axis: Axis, end: float = WIDTH - RIGHT) -> str:
    """The line of the best so far, to ``end`` in pixels (default: the right edge), as data of a path."""
    path = ""
    for point in steps:
        x, y = frame.x(axis.of(point)), frame.y(point.evaluation.fitness or 0.0)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    return path + f"H{end:g}"


def _best(data: CampaignData, passed: Sequence[Point], frame: PlotArea, axis: Axis) -> str:
    steps, marks = records(passed), []
    for point in steps:
        fitness = point.evaluation.fitness or 0.0
        reached = rate_text(fitness, data.unit)
        tip = f"candidate {point.candidate.index}: {reached}, {point.candidate.mutation.detail}"
        x, y = frame.x(axis.of(point)), frame.y(fitness)
        marks.append(svg.tag("circle", svg.title(tip), cx=x, cy=y, r=4.5, class_="step"))
    return svg.tag("path", d=best_path(steps, frame, axis), class_="best") + "".join(marks)


def _bands(passed: Sequence[Point], lines: Sequence[Curve], frame: PlotArea, axis: Axis) -> str:
    """The interval of the best so far, and of each reference at the edge; nothing where figures repeat exactly."""
    steps = records(passed)
    ends = [*(frame.x(axis.of(p)) for p in steps[1:]), float(WIDTH - RIGHT)]
    parts = [
        _band(frame.x(axis.of(point)), end, point.evaluation.interval, frame, "")
        for point, end in zip(steps, ends, strict=True)
    ]
    # a reference's is a bar at the right edge: bands across the whole picture would cover each other and the line's
    edge = float(WIDTH - RIGHT)
    for number, line in enumerate(lines):
        end = edge - BAR_STEP * number
        parts.append(_band(end - BAR, end, line.interval, frame, f"bar {line.role}"))
    return "".join(parts)


def _band(begin: float, end: float, interval: Interval | None, frame: PlotArea, role: str) -> str:
    if interval is None or interval[0] == interval[1]:
        return ""
    low, high = (min(max(value, frame.low_y), frame.high_y) for value in interval)
    top, height = frame.y(high), frame.y(low) - frame.y(high)
    return svg.tag("rect", x=begin, y=top, width=end - begin, height=height, class_=f"band {role}".strip())


def _labels(passed: Sequence[Point], lines: Sequence[Curve], frame: PlotArea) -> str:
    best = max(p.evaluation.fitness or 0.0 for p in passed)
    wanted = [(frame.y(best), f"best {best:.4g}", "winner strong")]
    wanted += [(frame.y(line.fitness), f"{line.name} {line.fitness:.4g}", line.role) for line in lines]
    return edge_labels(wanted)


def edge_labels(wanted: list[tuple[float, str, str]]) -> str:
    """(y in pixels, name, class): names at the right edge, pushed apart so that none covers another."""
    wanted = sorted(wanted)
    placed: list[float] = []
    for y, _, _ in wanted:
        placed.append(max(y, placed[-1] + LABEL_GAP) if placed else y)
    overflow = placed[-1] - (HEIGHT - BOTTOM)
    if overflow > 0:
        placed = [y - overflow for y in placed]
        for n in range(len(placed) - 2, -1, -1):
            placed[n] = min(placed[n] + overflow, placed[n + 1] - LABEL_GAP)
    return "".join(
        svg.text(WIDTH - RIGHT + 8, y + 4, name[:24], class_=role)
        for y, (_, name, role) in zip(placed, wanted, strict=True)
    )


def axis_buttons() -> str:
    """The switch between charts that carry ``data-axis``."""
    return svg.tag(
        "div",
        "".join(
            svg.tag(
                "button",
                f"by {axis.value}",
                type="button",
                data_show=axis.value,
                aria_pressed=str(not n).lower(),
            )
            for n, axis in enumerate(Axis)
        ),
        class_="switch",
    )
