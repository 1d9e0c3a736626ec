"""The seam between search and evaluation: search sees no device and no Ray."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from evolve.genome import Genome
from fitness.evaluation import Evaluation


@dataclass(frozen=True)
class Job:
    """One genome to evaluate. ``index`` is its proposal number; ``seed`` makes the gates' inputs.

    ``known_artefacts`` are hashes of compiled artefacts whose repetition is a ``duplicate``.
    """

    index: int
    genome: Genome
    seed: int
    known_artefacts: Collection[str] = ()


class Evaluator(Protocol):
    """Evaluates genomes, several at a time, finishing in any order."""

    @property
    def slots(self) -> int:
        """Evaluations that can run at once."""
        ...

    def submit(self, job: Job) -> None: ...

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        """Finished jobs as (index, evaluation); empty when none finished in time."""
        ...

    def activity(self) -> list[str]:
        """One short line per worker: what it does now."""
        ...

    def close(self) -> None: ...
