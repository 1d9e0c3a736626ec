"""What journals hold, for comparisons."""

from typing import Any

from tilewright.evolve.record.journal import Journal

VOLATILE = {"wall_seconds", "spent", "worker", "log"}
"""Fields of an evaluation that differ between runs of the same campaign."""


def journal_content(journal: Journal) -> dict[str, Any]:
    """What two runs of one campaign must agree on: candidates and evaluations less volatile fields."""
    candidates = [
        [c.index, c.genome.id, list(c.parents), c.mutation.detail, c.generation, c.island, c.seen]
        for c in journal.candidates()
    ]
    evaluations = {i: e.model_dump(mode="json", exclude=VOLATILE) for _, i, e, _ in journal.evaluations()}
    return {"candidates": candidates, "evaluations": dict(sorted(evaluations.items()))}
