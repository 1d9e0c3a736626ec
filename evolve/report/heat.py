"""How much faster the winner is than each seed and baseline on each shape, as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.evolve.report.data import CampaignData, Named
from tilewright.evolve.report.grid import Row, Square, grid_svg
from tilewright.evolve.report.units import time_text
from tilewright.seeds.operator import Scope

MOST_SHAPES = 120
FULL = 2.0
"""The ratio from which a square has its full colour, either way."""
EVEN = 0.005
"""Ratios this near to 1 have no colour."""


@dataclass(frozen=True)
class Ratios:
    """Of one scope: seconds of the winner, and of each other kernel by name, by workload."""

    scope: Scope
    winner: Mapping[str, float]
    others: Mapping[str, Mapping[str, float]]


def ratios(data: CampaignData) -> list[Ratios]:
    """Final workloads first; a scope without winner or without anyone to compare it with is left out."""
    found = []
    for scope in (Scope.FINAL, Scope.SUITE):
        rows = [row for row in data.ranking(scope) if row.evaluation.workloads]
        winner = next((row for row in rows if row.role == "winner"), None)
        if winner is None:
            continue
        others = {
            row.name: _seconds(row) for row in rows if row.evaluation.genome != winner.evaluation.genome
        }
        if others:
            found.append(Ratios(scope, _seconds(winner), others))
    return found


def heat_svg(data: CampaignData, found: list[Ratios], *, standalone: bool = False) -> str:
    """Rows are shapes, columns seeds and baselines: their time over the winner's."""
    columns = list(dict.fromkeys(name for scope in found for name in scope.others))
    rows = []
    for scope in found:
        shapes = list(scope.winner)
        label = f"{scope.scope.value}: geometric mean of {len(shapes)}"
        if len(shapes) > 1:
            rows.append(Row(label, [_square(scope, name, shapes, data) for name in columns]))
        for shape in shapes[:MOST_SHAPES]:
            label = f"{scope.scope.value}: {shape}"
            rows.append(Row(label, [_square(scope, name, [shape], data) for name in columns]))
    unit = f"Time of each kernel / time of the winner ({data.target_text}, {data.kind})"
    legend = [
        Square("the winner is slower, ×0.5 or less", "", "bad", 1.0),
        Square("even", "", "winner", 0.0),
        Square("faster, ×2 or more", "", "good", 1.0),
    ]
    return grid_svg("Winner against each kernel by shape", unit, columns, rows, legend, standalone=standalone)


def _square(scope: Ratios, name: str, shapes: list[str], data: CampaignData) -> Square | None:
    theirs = scope.others.get(name, {})
    both = [(theirs[s], scope.winner[s]) for s in shapes if s in theirs]
    if not both:
        return None
    ratio = math.exp(sum(math.log(a / b) for a, b in both) / len(both))
    times = f"{time_text(both[0][0])} of {name} / {time_text(both[0][1])} of the winner"
    tip = times if len(shapes) == 1 else f"geometric mean over {len(both)} shapes against {name}"
    colour = "winner" if abs(ratio - 1) < EVEN else "good" if ratio > 1 else "bad"
    strength = min(1.0, abs(math.log(ratio)) / math.log(FULL))
    return Square(f"×{ratio:.2f}", f"×{ratio:.3f}: {tip} ({data.target_text}, {data.kind})", colour, strength)


def _seconds(row: Named) -> dict[str, float]:
    return {figures.workload: figures.seconds for figures in row.evaluation.workloads}
