"""What comes of a job's answer: told, tried again after an infrastructure fault, or dropped."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from tilewright.fitness.evaluation import Evaluation, Stage, Verdict
from tilewright.workers.cluster.settings import PoolSettings
from tilewright.workers.cluster.work import WorkItem

log = logging.getLogger(__name__)

RETRIES = 2
"""Times a job is tried again, elsewhere if possible, after an infrastructure fault."""


@dataclass
class Retries:
    """Counts the attempts at each job. ``retried``: of all jobs together, those after the first."""

    settings: PoolSettings
    retried: int = 0
    _attempts: dict[int, int] = field(default_factory=dict)
    _dropped: set[int] = field(default_factory=set)

    def drop(self, indices: Collection[int]) -> None:
        """What comes of these is not told."""
        self._dropped |= set(indices)

    def settle(
        self, item: WorkItem, evaluation: Evaluation, queue: deque[WorkItem]
    ) -> list[tuple[int, Evaluation]]:
        """What to tell, if anything; a job to try again is put into ``queue``."""
        if item.index in self._dropped:
            return []
        if evaluation.verdict is Verdict.INFRA_ERROR and self._attempts.get(item.index, 0) < RETRIES:
            self._attempts[item.index] = self._attempts.get(item.index, 0) + 1
            self.retried += 1
            log.warning("job %d is tried again: %s", item.index, evaluation.reason)
            queue.append(item)
            return []
        return [(item.index, evaluation)]

    def fault(self, item: WorkItem, reason: str) -> Evaluation:
        """The answer of a job that nobody answered."""
        return Evaluation(
            genome=item.genome.id,
            target=self.settings.target,
            suite=self.settings.suite,
            stage=Stage.DIALECT,
            verdict=Verdict.INFRA_ERROR,
            reason=reason,
        )
