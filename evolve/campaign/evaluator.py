"""The seam between search and evaluation: search sees no device and no Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.race import Race
from tilewright.seeds.operator import Scope
from tilewright.workers.device.comparison import Comparison


@dataclass(frozen=True)
class Job:
    """One genome to evaluate. ``index`` names the job; ``seed`` makes the gates' inputs.

    ``known_artefacts`` are hashes of compiled artefacts whose repetition is a ``duplicate``.
    ``best`` is the best fitness known when the job was made: what beats it is checked harder (infinite for
    the user's own sources, which no mutation has touched).
    ``baseline`` names the operator's baseline kernel this is, if any: baselines answer to other
    inputs and are not held to the operator's gates. What falls behind in a ``race`` is stopped.
    ``only``: ids of the shapes to keep to, timed and checked ones; None: the suite's.
    """

    index: int
    genome: Genome
    seed: int
    known_artefacts: Collection[str] = ()
    best: float = 0.0
    scope: Scope = Scope.SUITE
    baseline: str | None = None
    race: Race | None = None
    only: Collection[str] | None = None


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

    def drop(self, indices: Collection[int]) -> None:
        """Jobs that nobody waits for any more: what has not begun never does, and no answer comes to the others."""
        ...

    def activity(self) -> list[str]:
        """One short line per worker: what it does now."""
        ...

    def close(self) -> None: ...


class Comparer(Protocol):
    """The further part of a measured target's evaluator: genomes side by side, in rounds that take turns."""

    def compare(
        self, genomes: Sequence[Genome], seed: int, only: Mapping[str, Collection[str]] | None = None
    ) -> Comparison:
        """On the suite's workloads, or, by genome id, on those that ``only`` names.

        Raises ConnectionError when the device is gone.
        """
        ...
