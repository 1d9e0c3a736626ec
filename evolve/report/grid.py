"""Tables as pictures: squares coloured by a figure, the figure written on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.evolve.report import svg

WIDTH, ROW, GAP, TOP = 860, 30, 3, 62
WIDEST_LABEL, WIDEST_COLUMN = 380, 190
LETTER = 7.6
"""Width of a letter in pixels, a little more than the mean of wide fonts."""
FAINTEST, STRONGEST = 0.08, 0.52
"""Opacity of a square; text of one colour is readable on all of them, in the dark and in the light."""


@dataclass(frozen=True)
class Square:
    """``colour`` is a class of ``picture.css``, ``strength`` from 0 to 1; ``link`` an address to go to."""

    text: str
    tip: str
    colour: str = "winner"
    strength: float = 0.0
    link: str | None = None


@dataclass(frozen=True)
class Row:
    """A label and one square a column, None where there is nothing."""

    label: str
    squares: Sequence[Square | None]


def grid_svg(
    label: str,
    unit: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    legend: Sequence[Square],
    *,
    standalone: bool = False,
) -> str:
    """``unit`` says what the figures are, ``legend`` what the colours mean. Links are left out of a file of its own."""
    left = min(WIDEST_LABEL, max([len(row.label) for row in rows], default=0) * LETTER + 14)
    wide = min(WIDEST_COLUMN, (WIDTH - left) / max(1, len(columns)))
    parts = [svg.text(0, 14, unit, class_="quiet"), _legend(legend)]
    for n, name in enumerate(columns):
        shown = shorten(name, int((wide - GAP) / LETTER))
        at = left + (n + 0.5) * wide
        parts.append(svg.tag("text", svg.title(name) + svg.clean(shown), x=at, y=TOP - 8, class_="middle"))
    for n, row in enumerate(rows):
        y = TOP + n * ROW
        shown = shorten(row.label, int((left - 10) / LETTER))
        name = svg.title(row.label) + svg.clean(shown)
        parts.append(svg.tag("text", name, x=left - 10, y=y + ROW / 2 + 4, class_="end"))
        for k, square in enumerate(row.squares):
            parts.append(_square(square, left + k * wide, y, wide - GAP, links=not standalone))
    return svg.drawing(WIDTH, TOP + len(rows) * ROW + 6, label, *parts, standalone=standalone)


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"


def _square(square: Square | None, x: float, y: float, wide: float, *, links: bool) -> str:
    shape = {"x": x, "y": y, "width": wide, "height": ROW - GAP, "rx": 4}
    if square is None:
        return svg.tag("rect", "", class_="lane", **shape)
    fill = FAINTEST + (STRONGEST - FAINTEST) * min(1.0, max(0.0, square.strength))
    shown = shorten(square.text, int(wide / LETTER))
    content = (
        svg.title(square.tip)
        + svg.tag("rect", "", class_=f"square {square.colour}", fill_opacity=fill, **shape)
        + svg.text(x + wide / 2, y + (ROW - GAP) / 2 + 5, shown, class_="middle")
    )
    if square.link is None or not links:
        return svg.tag("g", content)
    return svg.tag("a", content, href=square.link, aria_label=square.tip)


def _legend(samples: Sequence[Square]) -> str:
    """Samples with their meaning, from the left."""
    parts, x = [], 0.0
    for sample in samples:
        fill = FAINTEST + (STRONGEST - FAINTEST) * sample.strength
        box = {"x": x, "y": 24, "width": 16, "height": 12, "rx": 3}
        parts.append(svg.tag("rect", "", class_=f"square {sample.colour}", fill_opacity=fill, **box))
        if sample.text:
            parts.append(svg.text(x + 21, 34, sample.text, class_="quiet"))
        x += 20 + len(sample.text) * LETTER + (8 if sample.text else 0)
    return "".join(parts)
