"""Files that a campaign leaves behind: both pages, every picture alone, and the winner."""

from __future__ import annotations

import json

from tilewright.evolve.report.archive_map import archive_map, archive_svg
from tilewright.evolve.report.charts import Axis, convergence_svg
from tilewright.evolve.report.credit import by_proposer, by_rule, credit_svg
from tilewright.evolve.report.data import CampaignData
from tilewright.evolve.report.graph import PAGE, render_lineage
from tilewright.evolve.report.heat import heat_svg, ratios
from tilewright.evolve.report.html import render
from tilewright.evolve.report.lineage import lineage_svg
from tilewright.evolve.report.roofline import roofline, roofline_svg
from tilewright.evolve.report.timeline import seed_and_winner_timelines, timeline_svg


def campaign_files(data: CampaignData) -> dict[str, str]:
    """Text by file name; a picture without anything to show is left out. Every file opens alone, and offline."""
    files = {"report.html": render(data), PAGE: render_lineage(data), **pictures(data)}
    if data.winner is not None:
        files["winner.py"] = data.winner.genome.source
        files["winner.params.json"] = json.dumps(dict(data.winner.genome.params), indent=2) + "\n"
    return files


def pictures(data: CampaignData) -> dict[str, str]:
    """The pictures of the report as SVG files with colours of their own, by file name."""
    found: dict[str, str] = {}
    if data.points:
        found["convergence.svg"] = convergence_svg(data, Axis.EVALUATIONS, standalone=True)
    if shapes := ratios(data):
        found["shapes.svg"] = heat_svg(data, shapes, standalone=True)
    if roofs := roofline(data):
        found["roofline.svg"] = roofline_svg(data, roofs, standalone=True)
    for what, rows in (("proposer", by_proposer(data)), ("rule", by_rule(data))):
        if rows:
            found[f"credit-by-{what}.svg"] = credit_svg(data, rows, what, standalone=True)
    if (cells := archive_map(data)).cells:
        found["archive.svg"] = archive_svg(data, cells, standalone=True)
    if data.winner is not None:
        found["lineage.svg"] = lineage_svg(data, data.winner, standalone=True)
    if timelines := seed_and_winner_timelines(data):
        found["timeline.svg"] = timeline_svg(*timelines, standalone=True)
    return found
