"""Seconds of a campaign from its command on: ``python -m experiments.studies.h200.campaign_seconds JOURNAL --began T``

``T``: Unix seconds at which the command was given (``date +%s.%N`` before it). Prints how long it took to the
campaign's start (imports and checks), to its first evaluation's begin, to its first verdict with what that one waited
for, and to Ray's workers; then evaluations a second, what the device and the workers did from the first verdict on,
and where one candidate's seconds go by how it ended. Figures are measured; a stage's seconds are its evaluation's own.
"""

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright.evolve.record.journal import Journal
from tilewright.fitness.evaluation import Evaluation

Row = tuple[float, Evaluation]
"""Seconds after the command at which an evaluation was recorded, and the evaluation."""


def seconds(journal: Journal, began: float) -> dict[str, Any]:
    """The figures by name, units within the names; times after the command."""
    rows = sorted(((at - began, e) for _, _, e, at in journal.evaluations()), key=lambda row: row[0])
    found: dict[str, Any] = {f"{event.kind}_s": round(event.at - began, 2) for event in journal.events()}
    if not rows:
        return found
    first_at, first = rows[0]
    span = rows[-1][0] - first_at
    rated = [e.fitness for _, e in rows if e.fitness]
    return {
        **found,
        "first_evaluation_began_s": round(first_at - first.wall_seconds, 2),
        "first_verdict_s": round(first_at, 2),
        "first_verdict_spent_s": first.spent,
        "evaluations": len(rows),
        "verdicts": dict(Counter(e.verdict.value for _, e in rows)),
        "evaluations_per_s_after_first": round((len(rows) - 1) / span, 2) if span else None,
        "evaluations_per_s_from_command": round(len(rows) / rows[-1][0], 2),
        "best_over_first": round(max(rated) / rated[0], 4) if rated else None,
        "busiest_ten_seconds": _busiest(rows),
        "after_the_first_verdict": _shares(rows[1:]),
        "one_candidate_s": _by_ending(rows),
    }


def _busiest(rows: Sequence[Row], window: float = 10.0) -> dict[str, float]:
    """The ten seconds in which most evaluations were recorded."""
    times = [at for at, _ in rows]
    count, begin = max((sum(t <= at < t + window for at in times), t) for t in times)
    return {"from_s": round(begin, 2), "evaluations_per_s": round(count / window, 2)}


def _shares(rows: Sequence[Row]) -> dict[str, Any]:
    """What the device and the workers did in the span of these evaluations."""
    span = rows[-1][0] - rows[0][0] if rows else 0.0
    if not span:
        return {}
    parts: dict[str, float] = defaultdict(float)
    for _, evaluation in rows:
        for name, spent in evaluation.spent.items():
            parts[name] += spent
    return {
        "span_s": round(span, 2),
        "device_held_share": round(parts["device"] / span, 3),
        "seconds_spent": {name: round(spent, 1) for name, spent in sorted(parts.items())},
    }


def _by_ending(rows: Sequence[Row]) -> dict[str, Any]:
    """Means by verdict; of what passed, apart what met the champion."""
    groups: dict[str, list[Evaluation]] = defaultdict(list)
    for _, evaluation in rows:
        met = any("confirmation" in figures.diagnosis for figures in evaluation.workloads)
        groups[evaluation.verdict.value + (", met the champion" if met else "")].append(evaluation)
    told = {}
    for name, some in sorted(groups.items()):
        parts = sorted({part for e in some for part in e.spent})
        means = {part: statistics.fmean(e.spent.get(part, 0.0) for e in some) for part in parts}
        means["wall"] = statistics.fmean(e.wall_seconds for e in some)
        told[name] = {"count": len(some), **{part: round(mean, 3) for part, mean in means.items()}}
    return told


def main() -> int:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--began", type=float, required=True)
    arguments = parser.parse_args()
    with Journal(arguments.journal) as journal:
        print(json.dumps(seconds(journal, arguments.began), indent=1))  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
