"""A worker of a Ray pool: the actor that evaluates, and what the pool keeps of it."""

from __future__ import annotations

from dataclasses import dataclass

import ray
from ray import ObjectRef
from ray.actor import ActorHandle

from tilewright.workers.cluster.actor_health import Health
from tilewright.workers.cluster.evaluator import Evaluator
from tilewright.workers.cluster.jobs import PoolJob
from tilewright.workers.cluster.ray_stations import RemoteStation


class EvaluatorActor:
    """An evaluator in a process of Ray's."""

    def __init__(self, settings_json: bytes) -> None:
        self._evaluator = Evaluator(settings_json, host=str(ray.util.get_node_ip_address()))

    def evaluate(self, request: bytes, station: ActorHandle | None) -> bytes:
        """See ``Evaluator.evaluate``.

        ``station`` holds the device of a measured target. It comes with every job, the same one for one worker: among
        the arguments of the constructor it would be lost when Ray restarts this actor.
        """
        if not self._evaluator.attached:
            assert station is not None
            self._evaluator.attach(RemoteStation(station, self._evaluator.scales))
        return self._evaluator.evaluate(request)

    def ping(self) -> None:
        """Answers once the actor is constructed, hence able to evaluate."""


@dataclass
class Worker:
    """A worker as its pool sees it: the job it has."""

    handle: ActorHandle
    number: int
    health: Health
    job: PoolJob | None = None
    reply: ObjectRef | None = None
    began: float = 0.0
