"""A cluster that is not there: the pool's own code on actors that fail on demand, in virtual time."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from testkit.faults.campaigns import answer
from testkit.pool import pool_settings
from tilewright.evolve.space.genome import Genome
from tilewright.fitness.evaluation import Evaluation, Stage, Verdict
from tilewright.workers.cluster import ray_pool
from tilewright.workers.cluster.jobs import Job
from tilewright.workers.cluster.ray_pool import RayPool

NEVER = float("inf")
RESTART_SECONDS = 5.0


@dataclass(eq=False)
class Reply:
    """The outcome of a call, at ``at``."""

    at: float
    value: Any


@dataclass
class Actor:
    """Evaluates on the table. ``down`` until: virtual seconds, infinite when its node is lost."""

    cluster: "Cluster"
    down: float = 0.0
    calls: list[Reply] = field(default_factory=list)

    @property
    def evaluate(self) -> Any:
        return SimpleNamespace(remote=self._evaluate)

    @property
    def ping(self) -> Any:
        return SimpleNamespace(remote=lambda: self._unless_down(0.01, lambda: None))

    def restart(self, seconds: float = RESTART_SECONDS) -> None:
        """What it was doing is lost."""
        self.down = self.cluster.now + seconds
        for call in self.calls:
            if call.at > self.cluster.now:
                call.at, call.value = self.cluster.now, ActorDiedError()

    def _unless_down(self, seconds: float, value: Callable[[], Any]) -> Reply:
        now = self.cluster.now
        if now < self.down < NEVER:
            return Reply(now, ActorUnavailableError("restarting", None))
        found = value() if self.down < NEVER else _Never()
        self.calls = [Reply(NEVER if isinstance(found, _Never) else now + seconds, found)]
        return self.calls[0]

    def _evaluate(self, request: bytes, station: None) -> Reply:
        return self._unless_down(float(self.cluster.rng.uniform(1.0, 4.0)), lambda: self._answer(request))

    def _answer(self, request: bytes) -> Any:
        job = json.loads(request)
        fault = self.cluster.next_fault(int(job["params"]["x"]))
        if fault is not None:
            return self.cluster.broken(self, fault)
        found = answer(Job(0, Genome("k", job["params"]), 0, frozenset(job["known_artefacts"])))
        return found.model_dump_json().encode()


@dataclass
class Cluster:
    """Stands in for ``ray`` and ``time`` in the pool. ``faults``: x of a genome to what happens to its attempts."""

    rng: np.random.Generator
    faults: Mapping[int, Sequence[str]]
    now: float = 0.0
    actors: list[Actor] = field(default_factory=list)
    _tried: dict[int, int] = field(default_factory=dict)

    def next_fault(self, x: int) -> str | None:
        """What happens to this attempt; ``*`` are all genomes, once each."""
        attempt = self._tried.get(x, 0)
        self._tried[x] = attempt + 1
        planned = self.faults.get(x, self.faults.get(-1, ()))
        return planned[attempt] if attempt < len(planned) else None

    def broken(self, actor: Actor, fault: str) -> Any:
        """The answer of an actor to which something happens."""
        if fault == "hangs":
            return _Never()
        if fault in ("dies", "all die", "node lost"):
            if fault == "node lost" and sum(other.down == NEVER for other in self.actors) < 2:
                actor.restart(NEVER)
            for one in self.actors if fault == "all die" else [actor]:
                if one.down != NEVER:
                    one.restart()
            return ActorDiedError()
        if fault == "task":
            return RayTaskError("evaluate", "a bug", ValueError("a bug"))
        reason = {"scratch": "OSError: [Errno 28] No space left on device", "device": "the station is gone"}[fault]
        return _infra(reason)

    # -- as the module ``ray`` ---------------------------------------------------------------------

    def wait(
        self, replies: Sequence[Reply], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Reply], list[Reply]]:
        end = self.now + (timeout or 0.0)
        first = min(reply.at for reply in replies)
        self.now = max(self.now, min(first, end))
        ready = [reply for reply in replies if reply.at <= self.now][:num_returns]
        return ready, [reply for reply in replies if reply not in ready]

    def get(self, reply: Reply) -> Any:
        if isinstance(reply.value, Exception):
            raise reply.value
        return reply.value

    def kill(self, actor: Actor, no_restart: bool = True) -> None:
        actor.restart()

    def shutdown(self) -> None: ...

    # -- as the module ``time`` --------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _Never:
    """An answer that does not come."""


def _infra(reason: str) -> bytes:
    fault = Evaluation(
        genome="g", target="t", suite="s", stage=Stage.COMPILE, verdict=Verdict.INFRA_ERROR, reason=reason
    )
    return fault.model_dump_json().encode()


def pool_of(cluster: Cluster, workers: int, patch: Any) -> RayPool:
    """The pool over actors of ``cluster``; ``patch`` is pytest's, or another with ``setattr``."""
    for module, name in ((ray_pool, "ray"), (ray_pool, "time")):
        patch.setattr(module, name, cluster)
    patch.setattr(ray_pool, "missing_resource", lambda target: "")
    made = RayPool(pool_settings(count=workers))
    for number in range(workers):
        actor: Any = Actor(cluster)
        cluster.actors.append(actor)
        made._workers.append(ray_pool.Worker(actor, number, ray_pool.Health(actor.ping)))
    return made
