"""How many duplicates a search foretells before they are compiled, on campaigns that are done.

    python -m experiments.studies.search.foretold JOURNAL...

Every proposal of a recorded campaign is judged by what was integrated when it was made (``evolve.record.duplicates``),
and held against what it compiled to. A repeat is one whose artefact an earlier candidate had, be it a ``duplicate``
or timed twice as both were under way. Figures are counts; nothing is compiled or timed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.studies.records.say import say
from tilewright.evolve.record.history import History, MutationKind
from tilewright.evolve.record.journal import Journal

FEWEST = 20
"""Evaluations of a campaign that counts."""


@dataclass
class Foretold:
    """Counts of one campaign. ``wrong``: of new code that was foretold to be none, its part of the best fitness."""

    evaluations: int = 0
    counts: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """By whether it was a repeat, and whether that was foretold."""

    wrong: list[float] = field(default_factory=list)


def replayed(journal: Journal) -> Foretold:
    """What ``History.tried`` would have said of each proposal."""
    candidates = {candidate.index: candidate for candidate in journal.candidates()}
    arrived = [(index, evaluation) for _, index, evaluation, _ in journal.evaluations()]
    known = dict(arrived)
    first: dict[str, int] = {}
    for index in sorted(known):
        first.setdefault(known[index].artefact or "", index)
    best = max((evaluation.fitness or 0.0 for evaluation in known.values()), default=0.0) or 1.0
    found, history, place = Foretold(len(known)), History(), 0
    for index in sorted(candidates):
        candidate = candidates[index]
        while place < min(candidate.seen, len(arrived)):
            integrated, evaluation = arrived[place]
            history.integrate(candidates[integrated], evaluation)
            place += 1
        rewritten = None
        if candidate.mutation.kind is MutationKind.REWRITE and len(candidate.parents) == 1:
            rewritten = history.candidate(candidate.parents[0]).genome, candidate.mutation.detail
        foretold = history.tried(candidate.genome, rewritten)
        history.propose(candidate)
        outcome = known.get(index)
        if outcome is None or outcome.artefact is None:
            continue
        repeat = first[outcome.artefact] < index
        found.counts[repeat, foretold] += 1
        if foretold and not repeat:
            found.wrong.append((outcome.fitness or 0.0) / best)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("journals", nargs="+", type=Path)
    say("| campaign | evaluations | repeats | foretold | new code foretold, part of the best |")
    say("| --- | ---: | ---: | ---: | --- |")
    for path in parser.parse_args(arguments).journals:
        with Journal(path) as journal:
            found, name = replayed(journal), (journal.meta("campaign") or {}).get("id", path.stem)
        if found.evaluations < FEWEST:
            continue
        right, missed = found.counts[True, True], found.counts[True, False]
        wrong = ", ".join(f"{part:.3f}" for part in found.wrong) or "none"
        say(f"| {name} | {found.evaluations} | {right + missed} | {right} | {wrong} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
