"""Measuring stations as Ray actors: one for each GPU or TPU, exclusive, serving every evaluator of a campaign."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tilewright.fitness.chips import Chip
from tilewright.fitness.targets import Target, load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload
from tilewright.seeds.sampled import Sample
from tilewright.workers.child.ending import ChildOutcome
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import START_SECONDS, JobLimits, SessionDied
from tilewright.workers.device import calibration
from tilewright.workers.device.comparison import EFFORT, Comparison, compare
from tilewright.workers.device.station import Champion, DeviceRatio, Entry, LocalStation, OperandSeeds
from tilewright.workers.toolchains import tpu as tpu_toolchain

CALIBRATION_SECONDS = 180.0
"""How long stations may take to start, compile the reference kernel and time it."""

TALK = "talk"
"""The concurrency group of a station's calls that need no device: jobs of others hold them up no more."""

JOBS = "jobs"
"""That of jobs on the device: they take turns, and the next one is unpacked beside the one that has it."""

ORACLE = "oracle"
"""That of what the oracle is asked, which may take a while."""

GROUPS = {TALK: 1, JOBS: 2, ORACLE: 1}

SLIVER = 0.001
"""Of a node's resource: enough to be placed there."""

CALIBRATION_EFFORT = (5, 3)
"""Rounds, and timed calls a round."""


class StationActor:
    """Runs in the Ray worker process that holds one GPU; one job at a time, and what is only asked waits for none."""

    def __init__(self, target: str, scratch: str | None) -> None:
        self._target = load_target(target)
        self._station = LocalStation(self._target.hardware, Path(scratch) if scratch else None)
        self._seeds = OperandSeeds()
        self._turn = threading.Lock()
        self._hello: Mapping[str, Any] = {}
        with contextlib.suppress(OSError):  # the first job will say why
            self._station.warm()

    @ray.method(concurrency_group=TALK)
    def hello(self) -> Mapping[str, Any]:
        """As ``workers.device.station.Station``; a station without a device is told apart by its process."""
        if not self._hello:
            with self._turn:
                self._hello = {calibration.DEVICE: f"process {os.getpid()}", **self._station.hello()}
        return self._hello

    @ray.method(concurrency_group=TALK)
    def operand_seed(self, proposed: int, *, ahead: bool = False) -> int:
        return self._seeds.seed(proposed, ahead=ahead)

    @ray.method(concurrency_group=JOBS)
    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        with self._turn:
            return self._station.run(job, limits)

    @ray.method(concurrency_group=ORACLE)
    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        """See ``workers.device.station.Station``; once for all evaluators."""
        return self._station.sample(asked, seed)

    @ray.method(concurrency_group=TALK)
    def champion(self, known: tuple[str, float] | None) -> Champion | float | None:
        """The champion with its plans, which are large; of one that the evaluator knows by id and fitness, the rest."""
        found = self._station.champion()
        return found.screens if found is not None and (found.entry.id, found.fitness) == known else found

    @ray.method(concurrency_group=TALK)
    def claim(self, contender: str) -> bool:
        return self._station.claim(contender)

    @ray.method(concurrency_group=TALK)
    def release(self, contender: str, crowned: Champion | None) -> None:
        self._station.release(contender, crowned)

    @ray.method(concurrency_group=TALK)
    def inherit(self, champion: Champion) -> None:
        """See ``workers.device.station.LocalStation``."""
        self._station.inherit(champion)

    def compare(
        self,
        operator: str,
        workloads: Sequence[Workload],
        entries: Sequence[Entry],
        seed: int,
        effort: tuple[int, int] = EFFORT,
    ) -> bytes:
        """See ``workers.device.comparison``; the answer as JSON."""
        made = load_operator(operator)
        with self._turn:
            found = compare(self._station, made, self._target, workloads, entries, seed, effort)
        return found.to_json().encode()


class RemoteStation:
    """A station seen from an evaluator: implements ``workers.device.station.Station``. ``scales`` by device."""

    def __init__(self, handle: ActorHandle, scales: Mapping[str, DeviceRatio]) -> None:
        self._handle = handle
        self._scales = scales
        self._hello: Mapping[str, Any] | None = None
        self.busy_seconds = 0.0
        self.cpu_seconds = 0.0
        self._champion: Champion | None = None

    def hello(self) -> Mapping[str, Any]:
        if self._hello is None:
            self._hello = self._ask(self._handle.hello.remote())
        return self._hello

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        outcome: ChildOutcome = self._ask(self._handle.run.remote(job, limits))
        self.busy_seconds += outcome.seconds
        self.cpu_seconds += outcome.cpu_seconds
        return outcome

    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        return self._ask(self._handle.sample.remote(asked, seed))

    def scale(self) -> DeviceRatio:
        if not self._scales:
            return DeviceRatio()
        self._hello = None  # a restarted station may hold another device
        found = calibration.scale_here(hello := self.hello(), self._scales)
        if found is None:
            raise SessionDied(f"the device {hello.get(calibration.DEVICE)} was never calibrated")
        return found

    def operand_seed(self, proposed: int, *, ahead: bool = False) -> int:
        return self._ask(self._handle.operand_seed.remote(proposed, ahead=ahead))

    def champion(self) -> Champion | None:
        known = self._champion and (self._champion.entry.id, self._champion.fitness)
        found = self._ask(self._handle.champion.remote(known))
        if isinstance(found, float):
            assert self._champion is not None
            found = dataclasses.replace(self._champion, screens=found)
        self._champion = found
        return self._champion

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


def start_stations(target: Target, gpus: int, scratch: str | None = None) -> list[ActorHandle]:
    """One actor for each of ``gpus`` GPUs (0: all that the cluster has for the target) or for each TPU of the cluster.

    Under the interpreter ``gpus`` processes of this machine's CPU stand in for them, at least one. Their children's
    folders are made in ``scratch``; None for each machine's own place for temporary files.
    """
    wanted: dict[str, Any]
    if target.interpreted:
        wanted, count = {"num_gpus": 0}, max(1, gpus)
        if nodes := _nodes(target):
            return [_station_on(nodes[n % len(nodes)][0], target, 0, scratch) for n in range(count)]
    elif isinstance(target.part, Chip):
        count = max(1, int(ray.cluster_resources().get(tpu_toolchain.RESOURCE, 1)))
        wanted = {"resources": {tpu_toolchain.RESOURCE: 1}}
    else:
        places = [node for node, has in _nodes(target) for _ in range(int(has.get("GPU", 0)))]
        if places and not gpus:
            return [_station_on(node, target, 1, scratch) for node in places]
        # a target that only others' nodes could take waits for a node that offers it
        awaited = {f"target:{target.name}": SLIVER} if offered_targets() and not places else {}
        wanted, count = {"num_gpus": 1, "resources": awaited}, max(1, gpus)
    remote: Any = ray.remote
    actor = remote(num_cpus=0, max_restarts=-1, concurrency_groups=GROUPS, **wanted)(StationActor)
    return [actor.remote(target.name, scratch) for _ in range(count)]


def offered_targets() -> set[str]:
    """The ``target:NAME`` resources of the cluster's nodes."""
    return {name for name in ray.cluster_resources() if name.startswith("target:")}


def _nodes(target: Target) -> list[tuple[str, dict[str, float]]]:
    """Ids and resources of the nodes for a target: those that offer it; all, where no node offers any."""
    alive = [(node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    return [one for one in alive if f"target:{target.name}" in one[1]] if offered_targets() else alive


def _station_on(node: str, target: Target, gpus: int, scratch: str | None) -> ActorHandle:
    """A station on a node; should the node be lost, on any. It refuses a GPU of another product."""
    remote: Any = ray.remote
    place = NodeAffinitySchedulingStrategy(node, soft=True)
    options = {"num_cpus": 0, "num_gpus": gpus, "max_restarts": -1, "concurrency_groups": GROUPS}
    actor = remote(**options, scheduling_strategy=place)(StationActor)
    made: ActorHandle = actor.remote(target.name, scratch)
    return made


def calibrate(
    stations: Sequence[ActorHandle], operator: str, suite: str, target: Target, reference: Entry, seed: int
) -> tuple[list[ActorHandle], dict[str, DeviceRatio]]:
    """Have every station time the reference; those to measure on, and their devices' scales.

    A station that does not answer in ``CALIBRATION_SECONDS`` is left out. Raises SessionDied when none answers.
    """
    made = load_operator(operator)
    shapes = calibration.reference_shapes(made, made.suites[suite])
    asked: list[Any] = [
        station.compare.remote(operator, shapes, [reference], seed, CALIBRATION_EFFORT)
        for station in stations
    ]
    ray.wait(asked, num_returns=len(asked), timeout=CALIBRATION_SECONDS)
    answers: list[tuple[ActorHandle, str, Comparison]] = []
    faults: list[str] = []
    for station, reply in zip(stations, asked, strict=True):
        try:
            text: Any = ray.get(reply, timeout=0)
            hello: Any = ray.get(station.hello.remote(), timeout=START_SECONDS)
        except ray.exceptions.RayError as error:
            faults.append(_last_line(error))
            continue
        answers.append((station, str(hello[calibration.DEVICE]), Comparison.from_json(bytes(text).decode())))
    if not answers:
        raise SessionDied(f"no device could be calibrated: {faults[0]}")
    farthest = math.inf if target.interpreted else calibration.FARTHEST
    kept, scales = calibration.in_service(answers, reference.id, farthest)
    for station in stations:
        if station not in kept:
            ray.kill(station)
    return kept, scales


def ask_comparisons(
    stations: Sequence[ActorHandle],
    operator: str,
    workloads: Sequence[Workload],
    entries: Sequence[Entry],
    seed: int,
) -> list[Comparison]:
    """Compare on every station at the same time. Raises SessionDied."""
    asked = [station.compare.remote(operator, list(workloads), list(entries), seed) for station in stations]
    try:
        texts: Any = ray.get(asked)
    except ray.exceptions.RayError as error:
        raise SessionDied(f"the station failed: {_last_line(error)}") from error
    return [Comparison.from_json(bytes(text).decode()) for text in texts]


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:200]
