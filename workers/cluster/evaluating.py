"""What evaluates jobs for a pool: a cascade, asked in JSON, by an actor of Ray's or by a thread of this process."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.fitness.descriptors import describe
from tilewright.fitness.evaluation import Evaluation
from tilewright.fitness.race import Race
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Scope
from tilewright.workers.cascade.compile_only import CompileOnlyCascade
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.fresh import FreshChildren
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.cluster.artefacts import Heard
from tilewright.workers.device.station import Champion, DeviceRatio, Station
from tilewright.workers.device.warm import WarmDevice, warm_device
from tilewright.workers.request import GIB, Limits

log = logging.getLogger(__name__)

LAGGING = b"lagging"
"""The answer of a worker that was never told what the request takes for granted."""


ENDING_SECONDS = 5.0
"""How long the thread of a job may take to see that its children are gone."""


class Evaluating:
    """Owns the cascade for one (operator, target, suite), and evaluates one job at a time."""

    def __init__(self, settings_json: bytes) -> None:
        settings = json.loads(settings_json)
        self._settings = settings
        self._operator = load_operator(settings["operator"])
        self._target = load_target(settings["target"])
        self._heard = Heard()
        self._name = f"{self._address()}:{os.getpid()}"
        self._cascade = None if self._target.measured else self._made(None)

    def prepare(self, device: WarmDevice) -> None:
        """For a measured target, whose station comes with the first job as a rule."""
        self._cascade = self._made(device.station, device.compiler)

    def _address(self) -> str:
        """Of the machine that this runs on."""
        return socket.gethostname()

    def _station(self, handle: Any, scales: Mapping[str, DeviceRatio]) -> Station | None:
        """What measures for it: ``handle`` itself, in the process that holds the device. A modelled target has none."""
        station: Station | None = handle
        return station

    def _made(
        self, handle: Any, compiler: FreshChildren | None = None
    ) -> ModelledCascade | CompileOnlyCascade | MeasuredCascade:
        settings, target = self._settings, self._target
        memory = int(settings["memory_gib"] * GIB)
        limits = Limits(
            trace=ChildLimits(settings["check_seconds"], memory),
            compile=ChildLimits(settings["measure_seconds"], memory),
        )
        suite = self._operator.suites[settings["suite"]]
        scratch = Path(settings["scratch"]) if settings["scratch"] else None
        scales = {name: DeviceRatio(**scale) for name, scale in settings["scales"].items()}
        if (station := self._station(handle, scales)) is not None:
            return MeasuredCascade(
                self._operator, target, suite, station, limits, scratch=scratch, compiler=compiler
            )
        kind = CompileOnlyCascade if target.compile_only else ModelledCascade
        return kind(self._operator, target, suite, limits, scratch=scratch)

    def evaluate(self, request: bytes, station: Any) -> bytes:
        """One job as JSON, in and out (see ``pool.request_for`` and ``Evaluation``); or ``LAGGING``.

        ``station`` holds the device of a measured target. It comes with every job, the same one for one worker: among
        the arguments of the constructor it would be lost when Ray restarts this actor.
        """
        if self._cascade is None:
            self._cascade = self._made(station)
        job = json.loads(request)
        known = self._heard.hear(job["known_artefacts"])
        if known is None:
            return LAGGING
        baseline = self._operator.kernels[job["baseline"]] if job["baseline"] else None
        evaluation = self._cascade.evaluate(
            job["genome"],
            job["source"],
            job["params"],
            seed=job["seed"],
            scope=Scope(job["scope"]),
            baseline=baseline,
            known_artefacts=known,
            best=job["best"],
            race=Race.from_data(job["race"]) if job["race"] else None,
            only=job["only"],
        )
        descriptors = self._settings["descriptors"]
        named = {name: str(job["params"][name]) for name in descriptors if name in job["params"]}
        scheduled = describe(evaluation.workloads, descriptors)
        changes = {
            "worker": self._name,
            "descriptors": {**evaluation.descriptors, **scheduled, **named},
        }
        return evaluation.model_copy(update=changes).model_dump_json().encode()

    def close(self) -> None:
        """Kill the children; what is being evaluated fails."""
        if self._cascade is not None:
            self._cascade.close()


class HeadStart:
    """Judges a first job in this process, so that its verdict does not wait for Ray, nor its compiler for its imports.

    One job, in a thread; candidate code runs in confined children here as in any worker.
    """

    def __init__(self, settings_json: bytes, device: WarmDevice | None = None) -> None:
        """The children begin to warm up at once. Raises OSError where no process can be made.

        ``device``: of a measured target, where it was started before; it is closed with this.
        """
        self._evaluating = Evaluating(settings_json)
        settings = json.loads(settings_json)
        target, scratch = load_target(settings["target"]), settings["scratch"]
        self._device = device
        if target.measured:
            self._device = device or warm_device(target, Path(scratch) if scratch else None)
            self._evaluating.prepare(self._device)
        self._done = threading.Event()
        self._reply: bytes | None = None
        self.item: Any = None
        self.began = 0.0
        self.cpu_seconds = 0.0
        """Of the thread, which this process's own CPU time holds as well."""

    def begin(self, item: Any, request: bytes) -> None:
        """Evaluate ``item``, which ``request`` says to the cascade."""
        self.item, self.began = item, time.monotonic()
        threading.Thread(target=self._evaluate, args=(request,), daemon=True).start()

    def _evaluate(self, request: bytes) -> None:
        try:
            self._reply = self._evaluating.evaluate(request, None)
        finally:
            self.cpu_seconds = time.thread_time()
            self._done.set()

    def wait(self, seconds: float) -> bool:
        """Whether it is done, after at most so long."""
        return self._done.wait(seconds)

    def evaluation(self) -> Evaluation | None:
        """What became of the job; None where the machinery failed."""
        return Evaluation.model_validate_json(self._reply) if self._reply is not None else None

    def champion(self) -> Champion | None:
        """What the job left on the device of a measured target."""
        return self._device.station.champion() if self._device is not None else None

    def close(self) -> None:
        """Kill the children, also one that was just being started."""
        self._end_children()
        if self.item is not None and not self._done.wait(ENDING_SECONDS):
            log.warning("the first job did not end within %g s of its children", ENDING_SECONDS)
        self._end_children()

    def _end_children(self) -> None:
        self._evaluating.close()
        if self._device is not None:
            self._device.close()
