"""Jobs of a pool, the request that a worker gets of one, and the retries after a fault."""

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
    """One genome to evaluate. ``index`` names the job; ``seed`` makes the gates' inputs.

    ``known_artefacts`` are hashes of compiled artefacts whose repetition is a ``duplicate``.
    ``best`` is the best fitness known when the job was made: what beats it is checked harder (infinite for
    the user's own sources, which no mutation has touched).
    ``baseline`` names the operator's baseline kernel this is, if any: baselines answer to other
    inputs and are not held to the operator's gates. What falls behind in a ``race`` is stopped.
    ``only``: ids of the shapes to keep to, timed and checked ones; None: the suite's. ``within``: constraints that
    shapes by lot keep to beside the genome's own.
    """

    index: int
    genome: PoolGenome
    seed: int
    known_artefacts: Collection[str] = ()
    best: float = 0.0
    scope: Scope = Scope.SUITE
    baseline: str | None = None
    race: Race | None = None
    only: Collection[str] | None = None
    within: tuple[str, ...] = ()


def entries_of(genomes: Sequence[PoolGenome], only: Mapping[str, Collection[str]] | None) -> list[Entry]:
    """Entries of a comparison (see ``Pool.compare``)."""
    kept = {name: frozenset(shapes) for name, shapes in (only or {}).items()}
    return [Entry(g.id, g.source, dict(g.params), kept.get(g.id)) for g in genomes]


def request_for(job: Job) -> bytes:
    """The JSON of a job for a worker."""
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
    """A pool's jobs that wait, and the attempts at each. ``retried``: attempts after the first, of all jobs."""

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
        """Hand jobs of the queue to workers that are free."""
        raise NotImplementedError

    def _settle(self, job: Job, evaluation: Evaluation) -> list[tuple[int, Evaluation]]:
        """The result to hand back, if any; a job to try again waits once more."""
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
