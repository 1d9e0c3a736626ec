"""Measuring stations as Ray actors: one for each GPU or TPU, exclusive, serving every evaluator of a campaign."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from tilewright.fitness.targets import Target, load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload
from tilewright.seeds.sampled import Sample
from tilewright.workers.child.ending import ChildOutcome
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.session import START_SECONDS, JobLimits, SessionDied
from tilewright.workers.cluster.ray_start import last_line, station_resources
from tilewright.workers.device.comparison import (
    DEVICE,
    EFFORT,
    FARTHEST,
    Comparison,
    compare,
    in_service,
    reference_shapes,
)
from tilewright.workers.device.station import Champion, DeviceRatio, Entry, LocalStation

CALIBRATION_SECONDS = 180.0
"""Seconds that stations may take to start, compile the reference kernel and time it."""

QUERIES = "queries"
"""The concurrency group of a station's calls that need no device, so that they do not wait for jobs."""

JOBS = "jobs"
"""The concurrency group of jobs on the device: one runs while the next one is unpacked."""

ORACLE = "oracle"
"""The concurrency group of questions to the oracle, which may take seconds."""

GROUPS = {QUERIES: 1, JOBS: 2, ORACLE: 1}

CALIBRATION_EFFORT = (5, 3)
"""Rounds of a calibration, and timed calls of a round."""


class StationActor:
    """The station of one device, in the Ray worker process that holds it."""

    def __init__(self, target: str, scratch: str | None) -> None:
        self._target = load_target(target)
        self._station = LocalStation(self._target.hardware, Path(scratch) if scratch else None)
        with contextlib.suppress(OSError):  # the first job will say why
            self._station.warm()

    @ray.method(concurrency_group=QUERIES)
    def hello(self) -> Mapping[str, Any]:
        """See ``workers.device.station.Station``; a station without a device is identified by its process."""
        return {DEVICE: f"process {os.getpid()}", **self._station.hello()}

    @ray.method(concurrency_group=QUERIES)
    def operand_seed(self, proposed: int, *, ahead: bool = False) -> int:
        return self._station.operand_seed(proposed, ahead=ahead)

    @ray.method(concurrency_group=JOBS)
    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        return self._station.run(job, limits)

    @ray.method(concurrency_group=ORACLE)
    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        """See ``workers.device.station.Station``; once for all evaluators."""
        return self._station.sample(asked, seed)

    @ray.method(concurrency_group=QUERIES)
    def champion(self, known: tuple[str, float] | None) -> Champion | float | None:
        """The champion with its plans, which are large; ``screens`` alone where the evaluator knows id and fitness."""
        found = self._station.champion()
        return found.screens if found is not None and (found.entry.id, found.fitness) == known else found

    @ray.method(concurrency_group=QUERIES)
    def claim(self, contender: str) -> bool:
        return self._station.claim(contender)

    @ray.method(concurrency_group=QUERIES)
    def release(self, contender: str, crowned: Champion | None) -> None:
        self._station.release(contender, crowned)

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
        return compare(self._station, made, self._target, workloads, entries, seed, effort).to_json().encode()


class RemoteStation:
    """A station actor as an evaluator sees it: implements ``workers.device.station.Station``.

    ``scales``: the ratio of each device's times to the reference device's, by the device's name."""

    def __init__(self, handle: ActorHandle, scales: Mapping[str, DeviceRatio]) -> None:
        self._handle = handle
        self._scales = scales
        self._hello: Mapping[str, Any] | None = None
        self._champion: Champion | None = None

    def hello(self) -> Mapping[str, Any]:
        if self._hello is None:
            self._hello = self._ask(self._handle.hello.remote())
        return self._hello

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        outcome: ChildOutcome = self._ask(self._handle.run.remote(job, limits))
        return outcome

    def sample(self, asked: Mapping[str, Any], seed: int) -> Sample | None:
        return self._ask(self._handle.sample.remote(asked, seed))

    def scale(self) -> DeviceRatio:
        if not self._scales:
            return DeviceRatio()
        self._hello = None  # a restarted station may hold another device
        device = str(self.hello().get(DEVICE, ""))
        if device not in self._scales:
            raise SessionDied(f"the device {device} was never calibrated")
        return self._scales[device]

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
            raise SessionDied(f"the station failed: {last_line(error)}") from error
        except ray.exceptions.RayError as error:
            raise SessionDied(f"the station is gone: {last_line(error)}") from error


def start_stations(target: Target, gpus: int, scratch: str | None = None) -> list[ActorHandle]:
    """One actor for each device that ``ray_start.station_resources`` finds.

    Their children's folders are made in ``scratch``; None for each machine's own place for temporary files.
    """
    remote: Any = ray.remote
    return [
        remote(max_restarts=-1, concurrency_groups=GROUPS, **asked)(StationActor).remote(target.name, scratch)
        for asked in station_resources(target, gpus)
    ]


def calibrate(
    stations: Sequence[ActorHandle], operator: str, suite: str, target: Target, reference: Entry, seed: int
) -> tuple[list[ActorHandle], dict[str, DeviceRatio]]:
    """Stations to measure on and their devices' scales, after every station has timed the reference.

    A station that does not answer in ``CALIBRATION_SECONDS`` is left out. Raises SessionDied when none answers.
    """
    made = load_operator(operator)
    shapes = reference_shapes(made, made.suites[suite])
    asked: list[Any] = [
        station.compare.remote(operator, shapes, [reference], seed, CALIBRATION_EFFORT) for station in stations
    ]
    ray.wait(asked, num_returns=len(asked), timeout=CALIBRATION_SECONDS)
    answers: list[tuple[ActorHandle, str, Comparison]] = []
    faults: list[str] = []
    for station, reply in zip(stations, asked, strict=True):
        try:
            text: Any = ray.get(reply, timeout=0)
            hello: Any = ray.get(station.hello.remote(), timeout=START_SECONDS)
        except ray.exceptions.RayError as error:
            faults.append(last_line(error))
            continue
        answers.append((station, str(hello[DEVICE]), Comparison.from_json(bytes(text).decode())))
    if not answers:
        raise SessionDied(f"no device could be calibrated: {faults[0]}")
    farthest = math.inf if target.interpreted else FARTHEST
    kept, scales = in_service(answers, reference.id, farthest)
    for station in stations:
        if station not in kept:
            ray.kill(station)
    return kept, scales


def ask_comparison(
    station: ActorHandle, operator: str, workloads: Sequence[Workload], entries: Sequence[Entry], seed: int
) -> Comparison:
    """The comparison of entries on a station, side by side. Raises SessionDied."""
    try:
        text: Any = ray.get(station.compare.remote(operator, list(workloads), list(entries), seed))
    except ray.exceptions.RayError as error:
        raise SessionDied(f"the station failed: {last_line(error)}") from error
    return Comparison.from_json(bytes(text).decode())
