"""The archive as a picture: the fittest candidate of every cell of every island, coloured by fitness."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tilewright.evolve.record.archive import Archive, Cell, Elite
from tilewright.evolve.report.data import CampaignData
from tilewright.evolve.report.grid import Row, Square, grid_svg
from tilewright.evolve.report.steps import anchor
from tilewright.evolve.report.units import rate_text
from tilewright.fitness.evaluation import Verdict

MOST_CELLS = 40
"""Of more cells, the fittest are drawn; the lineage page has every candidate."""


@dataclass(frozen=True)
class ArchiveMap:
    """``cells`` are the fittest, best first, ``hidden`` how many more there are; ``passed`` counts candidates."""

    cells: tuple[tuple[Cell, tuple[Elite | None, ...]], ...]
    hidden: int
    passed: Counter[Cell]

    @property
    def elites(self) -> list[Elite]:
        """Every candidate drawn, once, in the order of proposals."""
        drawn = {e.candidate.index: e for _, row in self.cells for e in row if e is not None}
        return [drawn[index] for index in sorted(drawn)]


def archive_map(data: CampaignData) -> ArchiveMap:
    """The archive as the search left it, folded from the journal again."""
    archive = _fold(data)
    islands: list[dict[Cell, Elite]] = [
        {_cell(elite): elite for elite in archive.elites(n)} for n in range(archive.islands)
    ]
    best = sorted(archive.cells.items(), key=lambda item: (-item[1].fitness, item[1].candidate.index))
    drawn = [(cell, tuple(island.get(cell) for island in islands)) for cell, _ in best[:MOST_CELLS]]
    passed = Counter(
        tuple(sorted(p.evaluation.descriptors.items()))
        for p in data.points
        if p.evaluation.verdict is Verdict.OK
    )
    return ArchiveMap(tuple(drawn), len(best) - len(drawn), passed)


def archive_svg(data: CampaignData, found: ArchiveMap, *, standalone: bool = False) -> str:
    """Rows are cells, columns islands; a square leads to its candidate (``steps.anchor``)."""
    rates = [elite.fitness for elite in found.elites]
    low, high = min(rates, default=0.0), max(rates, default=0.0)

    def strength(fitness: float) -> float:
        return (fitness - low) / (high - low) if high > low else 1.0

    def square(elite: Elite | None, island: int) -> Square | None:
        if elite is None:
            return None
        candidate = elite.candidate
        origin = "" if candidate.island == island else f", migrated from island {candidate.island}"
        reached = rate_text(elite.fitness, data.unit)
        tip = f"candidate {candidate.index}: {reached}, {candidate.mutation.detail}{origin}"
        text = f"{elite.fitness:.4g}  #{candidate.index}"
        return Square(text, tip, "winner", strength(elite.fitness), f"#{anchor(candidate)}")

    rows = [
        Row(f"{_words(cell)} ({found.passed[cell]} passed)", [square(e, n) for n, e in enumerate(row)])
        for cell, row in found.cells
    ]
    columns = [f"island {n}" for n in range(len(found.cells[0][1]))] if found.cells else []
    unit = (
        f"{data.unit}, geometric mean over suite {data.facts.get('suite')} ({data.target_text}, {data.kind})"
    )
    shades = [
        Square(f"{low:.4g} {data.unit}", "", strength=0.0),
        Square("", "", strength=0.5),
        Square(f"{high:.4g} {data.unit}", "", strength=1.0),
    ]
    return grid_svg("Archive: islands and cells", unit, columns, rows, shades, standalone=standalone)


def _fold(data: CampaignData) -> Archive:
    search = data.config.get("search") or {}
    islands = search.get("islands") or max((p.candidate.island for p in data.points), default=0) + 1
    archive = Archive(islands, search.get("migration_interval") or len(data.points) + 1)
    by_index = search.get("order", "index") == "index"
    for point in sorted(data.points, key=lambda p: p.candidate.index if by_index else p.arrival):
        archive.add(point.candidate, point.evaluation)
    return archive


def _cell(elite: Elite) -> Cell:
    return tuple(sorted(elite.evaluation.descriptors.items()))


def _words(cell: Cell) -> str:
    return ", ".join(f"{name} {value}" for name, value in cell) or "one cell"
