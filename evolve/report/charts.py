"""Convergence: the best fitness so far against evaluations or campaign time, with everything tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from evolve.evaluator import Scope
from evolve.report import svg
from evolve.report.data import CampaignData, Point
from evolve.report.units import duration_text, rate_text, ticks
from fitness.evaluation import Verdict

WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 34, 62
RUG = 10
LABEL_GAP = 15


class Axis(StrEnum):
    EVALUATIONS = "evaluations"
    TIME = "time"


@dataclass(frozen=True)
class Frame:
    """Maps figures to pixels. ``high_x`` in evaluations or seconds, ``low_y``/``high_y`` in TFLOP/s."""

    high_x: float
    low_y: float
    high_y: float

    def x(self, value: float) -> float:
        return LEFT + value / self.high_x * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low_y) / (self.high_y - self.low_y)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


@dataclass(frozen=True)
class Line:
    """A horizontal reference: a seed's or baseline's fitness in TFLOP/s."""

    name: str
    role: str
    fitness: float


def convergence_svg(data: CampaignData, axis: Axis = Axis.EVALUATIONS, *, standalone: bool = False) -> str:
    """Dots: every evaluation that passed. Step line: best so far. Red ticks: failures. Dashes: references."""
    passed = [p for p in data.points if p.evaluation.verdict is Verdict.OK]
    label = f"Fitness on suite {data.facts.get('suite')} against {axis.value}"
    if not passed:
        note = svg.text(WIDTH / 2, 40, "No candidate has passed yet.", class_="middle quiet")
        return svg.drawing(WIDTH, 80, label, note, standalone=standalone)
    lines = _references(data)
    values = [p.evaluation.fitness or 0.0 for p in passed] + [line.fitness for line in lines]
    margin = (max(values) - min(values)) * 0.06 or max(values) * 0.05
    frame = Frame(_span(data, axis), max(0.0, min(values) - margin), max(values) + margin)
    parts = [_axes(data, frame, axis), _rug(data, frame, axis), _dots(passed, frame, axis)]
    parts += [_reference(line, frame) for line in lines]
    parts += [_best(passed, frame, axis), _labels(data, passed, lines, frame)]
    return svg.drawing(WIDTH, HEIGHT, label, *parts, standalone=standalone)


def _position(point: Point, axis: Axis) -> float:
    return point.elapsed if axis is Axis.TIME else float(point.arrival)


def _span(data: CampaignData, axis: Axis) -> float:
    return max(1.0, *(_position(p, axis) for p in data.points)) * 1.01


def _references(data: CampaignData) -> list[Line]:
    rows = [row for row in data.ranking(Scope.SUITE) if row.role != "winner"]
    return [Line(row.name, row.role, row.evaluation.fitness) for row in rows if row.evaluation.fitness]


def _axes(data: CampaignData, frame: Frame, axis: Axis) -> str:
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
    unit = f"TFLOP/s, geometric mean over suite {data.facts.get('suite')} ({data.target}, {data.kind})"
    name = "campaign time" if axis is Axis.TIME else "evaluations finished"
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(svg.text(LEFT - 40, 16, unit, class_="quiet"))
    parts.append(svg.text(middle, HEIGHT - 12, name, class_="quiet middle"))
    return "".join(parts)


def _rug(data: CampaignData, frame: Frame, axis: Axis) -> str:
    """One tick under the chart for every evaluation that failed."""
    top = HEIGHT - BOTTOM + 3
    failed = [p for p in data.points if p.evaluation.verdict is not Verdict.OK]
    path = "".join(f"M{frame.x(_position(p, axis)):.1f} {top}v{RUG}" for p in failed)
    if not path:
        return ""
    note = svg.text(WIDTH - RIGHT + 8, top + RUG, f"{len(failed)} failed", class_="quiet")
    return svg.tag("path", svg.title(f"{len(failed)} evaluations failed"), d=path, class_="fails") + note


def _dots(passed: Sequence[Point], frame: Frame, axis: Axis) -> str:
    path = "".join(
        f"M{frame.x(_position(p, axis)):.1f} {frame.y(p.evaluation.fitness or 0.0):.1f}h0" for p in passed
    )
    return svg.tag("path", d=path, class_="dots")


def _reference(line: Line, frame: Frame) -> str:
    y = frame.y(line.fitness)
    return svg.tag("path", d=f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", class_=f"reference {line.role}")


def _best(passed: Sequence[Point], frame: Frame, axis: Axis) -> str:
    path, marks, best = "", [], 0.0
    for point in passed:
        fitness = point.evaluation.fitness or 0.0
        if fitness <= best:
            continue
        x, y = frame.x(_position(point, axis)), frame.y(fitness)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
        tip = svg.title(
            f"candidate {point.candidate.index}: {rate_text(fitness)}, {point.candidate.mutation.detail}"
        )
        marks.append(svg.tag("circle", tip, cx=x, cy=y, r=4.5, class_="step"))
        best = fitness
    path += f"H{WIDTH - RIGHT}"
    return svg.tag("path", d=path, class_="best") + "".join(marks)


def _labels(data: CampaignData, passed: Sequence[Point], lines: Sequence[Line], frame: Frame) -> str:
    """Names at the right edge, pushed apart so that none covers another."""
    best = max(p.evaluation.fitness or 0.0 for p in passed)
    wanted = [(frame.y(best), f"best {best:.4g}", "winner strong")]
    wanted += [(frame.y(line.fitness), f"{line.name} {line.fitness:.4g}", line.role) for line in lines]
    wanted.sort()
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
