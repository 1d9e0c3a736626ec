"""A worker of a Ray pool: the actor that evaluates, its health, and what the pool keeps of it.

An actor gets no job after a fault until it answers a probe. Ray restarts a dead actor, and fails every call made while
it does. Jobs sent in that time would use up their retries within a second, although nothing is wrong with them or with
the other workers.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayError

from tilewright.workers.cluster.evaluator import Evaluator
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.ray_stations import RemoteStation

PROBE_SECONDS = 1.0
"""Between two probes of an actor that does not answer."""

RECOVERY_SECONDS = 120.0
"""How long an actor may take to restart before it counts as lost; a cold start took 5 to 20 s on two cores."""


class Service(StrEnum):
    """``LOST`` actors are still probed, and come back into service when they answer."""

    IDLE = "idle"
    RESTARTING = "restarting"
    LOST = "lost"


@dataclass
class Health:
    """The service of one actor; ``call`` is its method that does nothing but answer."""

    call: Any
    state: Service = Service.IDLE
    probe: Any = None
    _since: float = 0.0
    _next: float = 0.0

    @property
    def silent(self) -> bool:
        """Whether a probe is under way: its actor does not even fail."""
        return self.probe is not None

    def doubt(self, now: float) -> None:
        """A job ended in a fault of the actor: out of service until a probe is answered."""
        self.state, self.probe, self._since, self._next = Service.RESTARTING, None, now, now

    def look(self, now: float) -> Service:
        """Read the answer to the last probe, or send the next; never waits."""
        if self.state is Service.IDLE:
            return self.state
        if self.probe is None and now >= self._next:
            self.probe = self.call.remote()
        if self.probe is not None and ray.wait([self.probe], timeout=0)[0]:
            self._read(now)
        elif now - self._since > RECOVERY_SECONDS:
            self.state = Service.LOST  # it may have no node to be on
        return self.state

    def _read(self, now: float) -> None:
        answer, self.probe, self._next = self.probe, None, now + PROBE_SECONDS
        try:
            ray.get(answer)
        except ActorUnavailableError:
            if now - self._since > RECOVERY_SECONDS:
                self.state = Service.LOST
        except RayError:
            self.state = Service.LOST
        else:
            self.state = Service.IDLE


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
    job: Job | None = None
    reply: ObjectRef | None = None
    began: float = 0.0
