"""An evaluator in a process of Ray's, and what a pool keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle

from tilewright.workers.cluster.actor_health import Health
from tilewright.workers.cluster.artefacts import Told
from tilewright.workers.cluster.evaluating import Evaluating
from tilewright.workers.cluster.station_actor import RemoteStation
from tilewright.workers.cluster.work import WorkItem
from tilewright.workers.device.station import DeviceRatio, Station


class EvaluatorActor(Evaluating):
    """An evaluator in a process of Ray's."""

    def _address(self) -> str:
        return str(ray.util.get_node_ip_address())

    def _station(self, handle: Any, scales: Mapping[str, DeviceRatio]) -> Station | None:
        return None if handle is None else RemoteStation(handle, scales)

    def ping(self) -> None:
        """Answers once the actor is constructed, hence able to evaluate."""

    def warm(self, station: Any, seed: int) -> None:
        """Answers once what a first job would wait for is there."""
        self.get_ready(station, seed)


@dataclass
class Worker:
    """A worker of a pool: what it was told, and what it has to do."""

    handle: ActorHandle
    number: int
    health: Health
    told: Told = field(default_factory=Told)
    item: WorkItem | None = None
    reply: Any = None
    began: float = 0.0


@dataclass(frozen=True)
class Warming:
    """What asks a worker whether it is ready for a first job, whose operands are made of ``seed``."""

    handle: ActorHandle
    station: ActorHandle | None
    seed: int

    def remote(self) -> Any:
        return self.handle.warm.remote(self.station, self.seed)
