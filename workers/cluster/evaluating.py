"""What evaluates jobs for a pool: a cascade, asked in JSON, by an actor of Ray's or by a thread of this process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.fitness.race import Race
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu.schedule import describe
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Scope
from tilewright.workers.cascade.compile_only import CompileOnlyCascade
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.fresh import FreshChildren
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.child.session import SessionDied
from tilewright.workers.cluster.artefacts import Heard
from tilewright.workers.device.compile_ahead import CompilePace
from tilewright.workers.device.station import DeviceRatio, Station, compile_children
from tilewright.workers.device.timing import Samples
from tilewright.workers.request import GIB, Limits, Truth

log = logging.getLogger(__name__)

LAGGING = b"lagging"
"""The answer of a worker that was never told what the request takes for granted."""


class Evaluating:
    """Owns the cascade for one (operator, target, suite), and evaluates one job at a time."""

    def __init__(self, settings_json: bytes, truth: Truth | None = None) -> None:
        """``truth``: of the operator, where several in one process share it."""
        settings = json.loads(settings_json)
        self._settings = settings
        self.operator = load_operator(settings["operator"])
        self.target = load_target(settings["target"])
        self._heard = Heard()
        self._name = f"{self._address()}:{os.getpid()}"
        self._cascade = None if self.target.measured else self._made(None, truth=truth)

    def prepare(
        self,
        station: Any,
        compiler: FreshChildren | None,
        truth: Truth | None,
        samples: Samples | None,
        pace: CompilePace | None = None,
    ) -> None:
        """For a measured target, whose station comes with the first job as a rule; see ``MeasuredCascade``."""
        self._cascade = self._made(station, compiler, truth, samples, pace)

    def _address(self) -> str:
        """Of the machine that this runs on."""
        return socket.gethostname()

    def _station(self, handle: Any, scales: Mapping[str, DeviceRatio]) -> Station | None:
        """What measures for it: ``handle`` itself, in the process that holds the device. A modelled target has none."""
        station: Station | None = handle
        return station

    def _made(
        self,
        handle: Any,
        compiler: FreshChildren | None = None,
        truth: Truth | None = None,
        samples: Samples | None = None,
        pace: CompilePace | None = None,
    ) -> ModelledCascade | CompileOnlyCascade | MeasuredCascade:
        settings, target = self._settings, self.target
        memory = int(settings["memory_gib"] * GIB)
        limits = Limits(
            trace=ChildLimits(settings["check_seconds"], memory),
            compile=ChildLimits(settings["measure_seconds"], memory),
        )
        suite = self.operator.suites[settings["suite"]]
        scratch = Path(settings["scratch"]) if settings["scratch"] else None
        scales = {name: DeviceRatio(**scale) for name, scale in settings["scales"].items()}
        if (station := self._station(handle, scales)) is not None:
            if compiler is None and (address := settings["compiler"]) is not None:
                compiler = compile_children(target.gpu, scratch, address)
            return MeasuredCascade(
                self.operator,
                target,
                suite,
                station,
                limits,
                scratch=scratch,
                compiler=compiler,
                truth=truth,
                samples=samples,
                pace=pace,
            )
        if target.compile_only:
            return CompileOnlyCascade(self.operator, target, suite, limits, scratch=scratch)
        return ModelledCascade(self.operator, target, suite, limits, scratch=scratch, truth=truth)

    def evaluate(self, request: bytes, station: Any) -> bytes:
        """One job as JSON, in and out (see ``work.request_for`` and ``Evaluation``); or ``LAGGING``.

        ``station`` holds the device of a measured target. It comes with every job, the same one for one worker: among
        the arguments of the constructor it would be lost when Ray restarts this actor.
        """
        if self._cascade is None:
            self._cascade = self._made(station)
        job = json.loads(request)
        known = self._heard.hear(job["known_artefacts"])
        if known is None:
            return LAGGING
        baseline = self.operator.kernels[job["baseline"]] if job["baseline"] else None
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

    def get_ready(self, station: Any, seed: int) -> None:
        """Have what a first job on operands of ``seed`` would wait for; what fails will be that job's to say."""
        if self._cascade is None:
            self._cascade = self._made(station)
        if isinstance(self._cascade, MeasuredCascade):
            with contextlib.suppress(OSError, SessionDied):
                self._cascade.get_ready(seed)

    def close(self) -> None:
        """Kill the children; what is being evaluated fails."""
        if self._cascade is not None:
            self._cascade.close()
