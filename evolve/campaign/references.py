"""Reference jobs: seeds and baselines beside a search, whose figures go to the journal alone."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tilewright.evolve.record.journal import Journal
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.pool import Evaluator


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
