"""The end of a campaign on a measured target: its best genomes side by side, a dispatch table, the winner."""

from __future__ import annotations

import math
from pathlib import Path

from tilewright.evolve.campaign import dispatch_table
from tilewright.evolve.campaign.evaluator import Comparer
from tilewright.evolve.campaign.resolve import Resolved
from tilewright.evolve.errors import UserError
from tilewright.evolve.record.history import POINTS, History, MutationKind
from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome

COMPARED = 10
"""Most genomes that are measured side by side."""

OVERALL = 4
"""How many of them are the best on the whole suite; the rest are the fastest on single workloads."""

COMPARISON_FILE = "comparison.json"


def contenders(history: History, most: int = COMPARED) -> list[Genome]:
    """The fittest genomes, the fastest of each workload (those that lead by most first), then more of the fittest.

    Among them is the fittest that the campaign was given, a seed or a point of one: what it gained, it gained on that.
    """
    ranked = sorted(history.successes(), key=lambda ce: -(ce[1].fitness or 0.0))
    given = [c for c, _ in ranked if c.mutation.kind is MutationKind.SEED or c.mutation.proposer == POINTS]
    first = [*(candidate for candidate, _ in ranked[:OVERALL]), *given[:1]]
    chosen = {candidate.genome.id: candidate.genome for candidate in first}
    best: dict[str, tuple[float, Genome]] = {}
    overall: dict[str, float] = {}
    for place, (candidate, evaluation) in enumerate(ranked):
        for figures in evaluation.workloads:
            if place == 0:
                overall[figures.workload] = figures.seconds
            held = best.get(figures.workload)
            if held is None or figures.seconds < held[0]:
                best[figures.workload] = (figures.seconds, candidate.genome)
    by_lead = sorted(best, key=lambda w: math.log(best[w][0] / overall.get(w, best[w][0])))
    for genome in [*(best[w][1] for w in by_lead), *(candidate.genome for candidate, _ in ranked)]:
        if len(chosen) < most:
            chosen.setdefault(genome.id, genome)
    return list(chosen.values())


def conclude_measured(
    resolved: Resolved, history: History, comparer: Comparer, journal: Journal, folder: Path
) -> Genome:
    """Write ``comparison.json`` and ``dispatch_table.json`` into ``folder``; the table's default genome wins.

    Raises UserError when no genome passes this last run, the device is gone or the folder full.
    """
    genomes = {genome.id: genome for genome in contenders(history)}
    try:
        comparison = comparer.compare(list(genomes.values()), resolved.config.seed)
    except ConnectionError as error:
        raise UserError(f"the final comparison failed: {error}; resume to try again.") from error
    if not comparison.genomes:
        reason = next(iter(comparison.failed.values()), "no genome was compared")
        raise UserError(f"the final comparison failed: {reason}; resume to try again.")
    suite = resolved.suite
    found = dispatch_table.table(
        resolved.operator,
        suite.workloads,
        suite.name,
        comparison,
        genomes,
        resolved.target.constants,
        resolved.target.hardware,
    )
    try:
        (folder / COMPARISON_FILE).write_text(comparison.to_json() + "\n", encoding="utf-8")
        dispatch_table.write(found, folder / dispatch_table.FILE)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}.") from error
    journal.add_event("dispatched", genomes=list(found["genomes"]), default=found["default"])
    return genomes[found["default"]]
