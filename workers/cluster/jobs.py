"""A pool's jobs: what a job holds, its JSON for a worker, the queue, and retries after infrastructure faults."""

import json
import logging
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilewright.fitness.evaluation import Evaluation, Stage, Verdict
from tilewright.fitness.race import Race
from tilewright.seeds.operator import Scope
from tilewright.workers.cluster.settings import PoolSettings
from tilewright.workers.device.station import Entry

log = logging.getLogger(__name__)

RETRIES = 2
"""Times a job is tried again, elsewhere if possible, after an infrastructure fault."""


class PoolGenome(Protocol):
    """The part of a genome that a pool reads."""

    @property
    def id(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Job:
    """One genome to evaluate."""

    index: int
    """Identifies the job in its pool."""
    genome: PoolGenome
    seed: int
    """Of the random inputs that the gates check."""
    known_artefacts: Collection[str] = ()
    """Hashes of compiled artefacts: a candidate that compiles to one of them is a ``duplicate``."""
    best: float = 0.0
    """Best fitness so far: a candidate that exceeds it gets further checks. Infinite for the user's own sources."""
    scope: Scope = Scope.SUITE
    baseline: str | None = None
    """Name of the operator's baseline, if this is one: it has its own inputs and no gates."""
    race: Race | None = None
    """Against whom it is timed; a candidate that falls behind is stopped."""
    only: Collection[str] | None = None
    """Ids of the shapes to time and check; None: all of the suite."""
    within: tuple[str, ...] = ()
    """Constraints on randomly drawn shapes, besides those of the genome."""


def entries_of(genomes: Sequence[PoolGenome], only: Mapping[str, Collection[str]] | None) -> list[Entry]:
    """Genomes as entries of a comparison. ``only``: by genome id, the shapes it runs on (see ``Pool.compare``)."""
    kept = {name: frozenset(shapes) for name, shapes in (only or {}).items()}
    return [Entry(g.id, g.source, dict(g.params), kept.get(g.id)) for g in genomes]


def request_for(job: Job) -> bytes:
    """A job as JSON, as a worker reads it."""
    return json.dumps(
        {
            "genome": job.genome.id,
            "source": job.genome.source,
            "params": dict(job.genome.params),
            "seed": job.seed,
            "scope": job.scope.value,
            "baseline": job.baseline,
            "known_artefacts": sorted(job.known_artefacts),
            "best": job.best,
            "race": job.race and job.race.data(),
            "only": None if job.only is None else sorted(job.only),
            "within": job.within,
        }
    ).encode()


@dataclass
class QueuedPool:
    """The queue of a pool. ``retried``: attempts after the first, summed over all jobs."""

    settings: PoolSettings
    retried: int = field(default=0, init=False)
    _queue: deque[Job] = field(default_factory=deque, init=False)
    _attempts: Counter[int] = field(default_factory=Counter, init=False)
    _dropped: set[int] = field(default_factory=set, init=False)

    @property
    def slots(self) -> int:
        return self.settings.count

    def submit(self, job: Job) -> None:
        self._queue.append(job)
        self._assign()

    def drop(self, indices: Collection[int]) -> None:
        self._dropped |= set(indices)
        self._queue = deque(job for job in self._queue if job.index not in indices)

    def _assign(self) -> None:
        """Hand queued jobs to free workers."""
        raise NotImplementedError

    def _settle(self, job: Job, evaluation: Evaluation) -> list[tuple[int, Evaluation]]:
        """[(job index, evaluation)], or [] if the job was dropped or is queued again after an infrastructure fault."""
        if job.index in self._dropped:
            return []
        if evaluation.verdict is Verdict.INFRA_ERROR and self._attempts[job.index] < RETRIES:
            self._attempts[job.index] += 1
            self.retried += 1
            log.warning("job %d is tried again: %s", job.index, evaluation.reason)
            self._queue.append(job)
            return []
        return [(job.index, evaluation)]

    def _fault(self, job: Job, reason: str) -> Evaluation:
        """The evaluation of a job that no worker answered."""
        return Evaluation(
            genome=job.genome.id,
            target=self.settings.target,
            suite=self.settings.suite,
            stage=Stage.DIALECT,
            verdict=Verdict.INFRA_ERROR,
            reason=reason,
        )
