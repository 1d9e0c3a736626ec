"""The interface between search and evaluation, through which search sees no device and no Ray, and reference jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.evolve.record.journal import Journal
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


@dataclass
class References:
    """An ``Evaluator`` around another that also runs reference jobs and writes them to the journal."""

    inner: Evaluator
    journal: Journal
    seed: int
    _names: dict[int, tuple[str, Scope]] = field(default_factory=dict)
    _next: int = -1

    @property
    def slots(self) -> int:
        return self.inner.slots

    def submit(self, job: Job) -> None:
        self.inner.submit(job)

    def wait(self, timeout_seconds: float) -> list[tuple[int, Evaluation]]:
        finished = []
        for index, evaluation in self.inner.wait(timeout_seconds):
            if index in self._names:
                name, scope = self._names.pop(index)
                self.journal.add_reference(name, scope.value, evaluation)
            else:
                finished.append((index, evaluation))
        return finished

    def drop(self, indices: Collection[int]) -> None:
        self.inner.drop(indices)

    def activity(self) -> list[str]:
        lines = self.inner.activity()
        for index, (name, scope) in self._names.items():
            lines = [line.replace(f"candidate {index},", f"{name} ({scope.value}),") for line in lines]
        return lines

    def close(self) -> None:
        self.inner.close()

    def request(
        self, name: str, scope: Scope, genome: Genome, baseline: str | None = None, *, verify: bool = False
    ) -> None:
        """Evaluate ``genome`` under ``name`` unless the journal already has that figure.

        Among final workloads, ``verify`` has it pass the gates again, with all inputs and on a measured shape.
        """
        if name in self.journal.references(scope.value):
            return
        index, self._next = self._next, self._next - 1
        self._names[index] = (name, scope)
        best = 0.0 if verify else math.inf
        self.inner.submit(Job(index, genome, self.seed, best=best, scope=scope, baseline=baseline))

    def drain(self, on_progress: Callable[[], bool]) -> bool:
        """Wait for every requested reference; ``on_progress`` returns True to give up early."""
        while self._names:
            self.wait(0.25)
            if on_progress():
                return False
        return True
