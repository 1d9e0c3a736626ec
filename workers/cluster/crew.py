"""Workers and stations of a pool, and how they are made beside the jobs that a process judges meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from dataclasses import asdict, dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle

from tilewright.fitness.targets import Target, load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.child.session import SessionDied
from tilewright.workers.cluster.actor_health import Health
from tilewright.workers.cluster.evaluator_actor import EvaluatorActor, Worker
from tilewright.workers.cluster.local_ray import RayFolder
from tilewright.workers.cluster.ray_start import PoolUnavailable, lacking, start_ray, target_resource
from tilewright.workers.cluster.settings import PoolSettings
from tilewright.workers.cluster.station_actor import ask_comparisons, calibrate, start_stations
from tilewright.workers.cluster.work import WorkGenome, entries_of
from tilewright.workers.device.comparison import Comparison
from tilewright.workers.device.station import DeviceRatio

CALIBRATION_SEED = 0
"""Of the operands that devices are calibrated on."""


@dataclass(frozen=True)
class Crew:
    """Actors on a Ray. ``scales`` of the devices of several stations, by device; ``lacking`` of a cluster for now."""

    workers: list[Worker]
    stations: list[ActorHandle]
    scales: Mapping[str, DeviceRatio] = field(default_factory=dict)
    lacking: str = ""


def made_crew(settings: PoolSettings, folder: RayFolder | None, compiler: str | None) -> Crew:
    """The actors, with a Ray to be in. Raises PoolUnavailable.

    ``folder``: of a Ray of our own. ``compiler``: the address of what compilers are forked from.
    """
    start_ray(settings.address, settings.count, settings.gpus, folder)
    # One actor a core by custom count: the children do the work, the actor itself only waits.
    placed = target_resource(settings.target)
    actor: Any = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=0, resources=placed)(EvaluatorActor)
    scratch = str(folder.scratch) if folder else None
    target = load_target(settings.target)
    stations, scales = _stations(settings, target, scratch) if target.measured else ([], {})
    payload, workers = told(settings, scales, scratch, compiler), []
    for number in range(settings.count):
        handle = actor.remote(payload)
        worker = Worker(handle, number, Health(handle.ping))
        if settings.address:  # its place on the cluster may not be there yet
            worker.health.doubt(time.monotonic())
        workers.append(worker)
    return Crew(workers, stations, scales, lacking(target) if settings.address else "")


def told(
    settings: PoolSettings, scales: Mapping[str, DeviceRatio], scratch: str | None, compiler: str | None
) -> bytes:
    """What an evaluator is made of."""
    said = {device: asdict(scale) for device, scale in scales.items()}
    more = {"reference": None, "scales": said, "scratch": scratch, "compiler": compiler}
    return json.dumps({**asdict(settings), **more}).encode()


def _stations(
    settings: PoolSettings, target: Target, scratch: str | None
) -> tuple[list[ActorHandle], dict[str, DeviceRatio]]:
    """One for each device; several devices are put on one scale before anything else."""
    made = start_stations(target, settings.gpus, scratch)
    if len(made) < 2:
        return made, {}
    if settings.reference is None:
        raise PoolUnavailable(f"{len(made)} devices of target {target.name} need a reference to be compared")
    try:
        return calibrate(
            made, settings.operator, settings.suite, target, settings.reference, CALIBRATION_SEED
        )
    except SessionDied as error:
        raise PoolUnavailable(str(error)) from error


def compare_on(
    settings: PoolSettings,
    stations: Sequence[ActorHandle],
    genomes: Sequence[WorkGenome],
    seed: int,
    only: Mapping[str, Collection[str]],
) -> list[Comparison]:
    """Genomes side by side on each of these stations at once; see ``RayPool.compare``. Raises PoolUnavailable."""
    suite = load_operator(settings.operator).suites[settings.suite]
    entries = entries_of(genomes, only)
    try:
        return ask_comparisons(stations, settings.operator, suite.workloads, entries, seed)
    except SessionDied as error:
        raise PoolUnavailable(str(error)) from error


class Muster:
    """Makes a crew in another thread, which lives until ``end``: processes that Ray starts die with their thread."""

    def __init__(self) -> None:
        self._over, self._hurried = threading.Event(), threading.Event()

    def begin(self, make: Callable[[], Crew], patience_seconds: float) -> futures.Future[Crew]:
        """Call ``make`` once so long has passed, or ``hurry`` was called."""
        made: futures.Future[Crew] = futures.Future()

        def run() -> None:
            self._hurried.wait(patience_seconds)
            try:
                made.set_result(make())
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                made.set_exception(error)
            self._over.wait()

        threading.Thread(target=run, daemon=True).start()
        return made

    def hurry(self) -> None:
        """There is a first verdict, or somebody waits for workers: nothing is held up any more."""
        self._hurried.set()

    def end(self) -> None:
        """Let the thread end, and what is left of Ray with it."""
        self._over.set()
