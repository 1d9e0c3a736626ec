"""Measuring stations as Ray actors: one for each GPU or TPU, exclusive, serving every evaluator of a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from fitness.chips import Chip
from fitness.targets import Target, load_target
from seeds.catalogue import load_operator
from seeds.operator import Workload
from workers import tpu_recipe
from workers.comparison import Comparison, compare
from workers.frames import Frame
from workers.sandbox import Outcome
from workers.session import JobLimits, SessionDied
from workers.station import Champion, Entry, LocalStation


class StationActor:
    """Runs in the Ray worker process that holds one GPU; one call at a time."""

    def __init__(self, target: str) -> None:
        self._target = load_target(target)
        self._station = LocalStation(self._target.hardware)

    def hello(self) -> Mapping[str, Any]:
        return dict(self._station.hello())

    def run(self, job: Frame, limits: JobLimits) -> Outcome:
        return self._station.run(job, limits)

    def champion(self) -> Champion | None:
        return self._station.champion()

    def claim(self, contender: str) -> bool:
        return self._station.claim(contender)

    def release(self, contender: str, crowned: Champion | None) -> None:
        self._station.release(contender, crowned)

    def compare(
        self, operator: str, workloads: Sequence[Workload], entries: Sequence[Entry], seed: int
    ) -> bytes:
        """See ``workers.comparison``; the answer as JSON."""
        found = compare(self._station, load_operator(operator), self._target, workloads, entries, seed)
        return found.to_json().encode()


class RemoteStation:
    """A station seen from an evaluator: implements ``workers.station.Station``."""

    def __init__(self, handle: ActorHandle) -> None:
        self._handle = handle
        self._hello: Mapping[str, Any] | None = None

    def hello(self) -> Mapping[str, Any]:
        if self._hello is None:
            self._hello = self._ask(self._handle.hello.remote())
        return self._hello

    def run(self, job: Frame, limits: JobLimits) -> Outcome:
        return self._ask(self._handle.run.remote(job, limits))

    def champion(self) -> Champion | None:
        return self._ask(self._handle.champion.remote())

    def claim(self, contender: str) -> bool:
        return self._ask(self._handle.claim.remote(contender))

    def release(self, contender: str, crowned: Champion | None) -> None:
        self._ask(self._handle.release.remote(contender, crowned))

    def _ask(self, reply: Any) -> Any:
        try:
            return ray.get(reply)
        except ray.exceptions.RayTaskError as error:
            raise SessionDied(f"the station failed: {_last_line(error)}") from error
        except ray.exceptions.RayError as error:
            raise SessionDied(f"the station is gone: {_last_line(error)}") from error


def start_stations(target: Target, gpus: int) -> list[ActorHandle]:
    """One actor for each of ``gpus`` GPUs or for each TPU of the cluster, or a single one under the interpreter."""
    wanted: dict[str, Any]
    if target.interpreted:
        wanted, count = {"num_gpus": 0}, 1
    elif isinstance(target.part, Chip):
        count = max(1, int(ray.cluster_resources().get(tpu_recipe.RESOURCE, 1)))
        wanted = {"resources": {tpu_recipe.RESOURCE: 1}}
    else:
        wanted, count = {"num_gpus": 1}, max(1, gpus)
    remote: Any = ray.remote
    actor = remote(num_cpus=0, max_restarts=-1, **wanted)(StationActor)
    return [actor.remote(target.name) for _ in range(count)]


def ask_comparison(
    station: ActorHandle, operator: str, workloads: Sequence[Workload], entries: Sequence[Entry], seed: int
) -> Comparison:
    """Compare on a station. Raises SessionDied."""
    try:
        text: Any = ray.get(station.compare.remote(operator, list(workloads), list(entries), seed))
    except ray.exceptions.RayError as error:
        raise SessionDied(f"the station failed: {_last_line(error)}") from error
    return Comparison.from_json(bytes(text).decode())


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:200]
