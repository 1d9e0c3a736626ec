"""Seconds of a campaign from its command on: ``python -m experiments.studies.h200.campaign_seconds JOURNAL --began T``.

``T``: Unix seconds at which the command was given (``date +%s.%N`` before it). Prints when the campaign started, its
first verdict, evaluations a second, the device's share of that time, and the sums over evaluations by what took them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from tilewright.evolve.record.journal import Journal


def seconds(journal: Journal, began: float) -> dict[str, object]:
    """The figures by name, units within the names; times after the command."""
    rows = sorted((at, evaluation) for _, _, evaluation, at in journal.evaluations())
    spent: Counter[str] = Counter()
    for _, evaluation in rows:
        spent.update(evaluation.spent)
    found: dict[str, object] = {f"{event.kind}_s": round(event.at - began, 2) for event in journal.events()}
    if not rows:
        return found
    first, span = rows[0][0] - began, rows[-1][0] - rows[0][0]
    confirmed = sum(any("confirmation" in w.diagnosis for w in e.workloads) for _, e in rows)
    rated = [e.fitness for _, e in rows if e.fitness]
    return {
        **found,
        "first_verdict_s": round(first, 2),
        "evaluations": len(rows),
        "verdicts": dict(Counter(e.verdict.value for _, e in rows)),
        "evaluations_per_s_after_first": round((len(rows) - 1) / span, 2) if span else None,
        "evaluations_per_s_from_command": round(len(rows) / (rows[-1][0] - began), 2),
        "device_share_after_first": round(spent["device"] / span, 3) if span else None,
        "met_the_champion": confirmed,
        "best_over_first": round(max(rated) / rated[0], 4) if rated else None,
        "sums_s": {name: round(value, 1) for name, value in spent.items()},
    }


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
