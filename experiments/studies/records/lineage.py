"""Write a campaign's lineage: ``python -m experiments.studies.records.lineage CAMPAIGN_DIR --out FILE.md``
(and FILE.svg beside it)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tilewright.evolve.record.history import Candidate
from tilewright.evolve.record.home import JOURNAL
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.report.charts import convergence_svg
from tilewright.evolve.report.data import CampaignData, load
from tilewright.evolve.report.lineage import gain_over_parents, lineage_svg, main_line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with Journal(arguments.campaign / JOURNAL) as journal:
        data = load(journal)
    if data.winner is None:
        sys.stderr.write("no candidate of this campaign has passed\n")
        return 2
    stem = arguments.out.with_suffix("")
    stem.with_suffix(".svg").write_text(lineage_svg(data, data.winner, standalone=True))
    convergence = stem.with_name(stem.name + "_convergence.svg")
    convergence.write_text(convergence_svg(data, standalone=True))
    arguments.out.write_text("\n".join(_lines(data, data.winner, stem.name)) + "\n")
    return 0


def _lines(data: CampaignData, winner: Candidate, stem: str) -> list[str]:
    rate = f"{data.unit}, geometric mean over {data.facts['suite']} ({data.target}, {data.kind})"
    lines = [
        f"# Lineage of the winner: {data.facts['operator']} on {data.target}",
        "",
        f"Campaign {data.facts['id']}, seed {data.facts['seed']}, {len(data.points)} evaluations in "
        f"{data.elapsed:.0f} s. Rates: {rate}. A gain is over the fittest parent; accepted ones were measured side by",
        "side with the champion of the moment, and with the champion a second time as control.",
        "",
        f"![Lineage]({stem}.svg)",
        "",
        "| # | mutation | change | rate | gain over parent | paired ratio [95 %], control |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for candidate in main_line(data, winner):
        evaluation = data.evaluations[candidate.genome.id]
        gain = gain_over_parents(data, candidate)
        seen = evaluation.workloads[0].diagnosis.get("confirmation") if evaluation.workloads else None
        shown = "-"
        if seen:
            low, high = seen["interval"]
            shown = f"{seen['ratio']:.4f} [{low:.4f}, {high:.4f}], {seen['control']:.4f}"
        mutation = f"{candidate.mutation.kind.value} ({candidate.mutation.proposer})"
        lines.append(
            f"| {candidate.index} | {mutation} | {candidate.mutation.detail.replace('|', '/')} "
            f"| {evaluation.fitness or 0:.0f} | {'-' if gain is None else f'{gain:.3f}'} | {shown} |"
        )
    return [*lines, "", f"![Convergence]({stem}_convergence.svg)"]


if __name__ == "__main__":
    sys.exit(main())
