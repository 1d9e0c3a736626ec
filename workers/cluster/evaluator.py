"""The evaluator behind one worker of a pool: a cascade, asked in JSON, in a thread of this process or a Ray actor."""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from tilewright.fitness.race import Race
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Scope
from tilewright.workers.cascade.base import Cascade
from tilewright.workers.cascade.compile_only import CompileOnlyCascade
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.forked_children import ForkedChildren
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.device.plan_compiler import CompilePace
from tilewright.workers.device.station import DeviceRatio, Station
from tilewright.workers.device.timing import Samples
from tilewright.workers.request import GIB, Limits, Truth


@dataclass(frozen=True)
class SharedState:
    """What the evaluators of one process share: answers of the oracle, timed inputs, and how long compiling takes."""

    truth: Truth | None = None
    samples: Samples | None = None
    pace: CompilePace | None = None


class Evaluator:
    """Owns the cascade for one (operator, target, suite), and evaluates one job at a time."""

    def __init__(self, settings_json: bytes, shared: SharedState | None = None, host: str | None = None) -> None:
        """``settings_json``: see ``settings.evaluator_settings``. ``host`` names the machine in evaluations."""
        self._settings = settings = json.loads(settings_json)
        self.operator = load_operator(settings["operator"])
        self.target = load_target(settings["target"])
        self.scales = {name: DeviceRatio(**scale) for name, scale in settings["scales"].items()}
        self._scratch = Path(settings["scratch"]) if settings["scratch"] else None
        self._name = f"{host or socket.gethostname()}:{os.getpid()}"
        self._shared = shared or SharedState()
        self._cascade: Cascade | None = None if self.target.measured else self._cascade_without_device()

    @property
    def attached(self) -> bool:
        """Whether it can evaluate."""
        return self._cascade is not None

    def attach(self, station: Station, compiler: ForkedChildren | None = None) -> None:
        """Measure on ``station``, which a measured target needs before its first job.

        ``compiler``: children that compile for it; None to make some.
        """
        self._cascade = MeasuredCascade(
            self.operator,
            self.target,
            self.operator.suites[self._settings["suite"]],
            station,
            self._limits(),
            scratch=self._scratch,
            compiler=compiler,
            truth=self._shared.truth,
            samples=self._shared.samples,
            pace=self._shared.pace,
        )

    def _cascade_without_device(self) -> Cascade:
        suite, limits = self.operator.suites[self._settings["suite"]], self._limits()
        if self.target.compile_only:
            return CompileOnlyCascade(self.operator, self.target, suite, limits, scratch=self._scratch)
        return ModelledCascade(
            self.operator, self.target, suite, limits, scratch=self._scratch, truth=self._shared.truth
        )

    def _limits(self) -> Limits:
        memory = int(self._settings["memory_gib"] * GIB)
        return Limits(
            trace=ChildLimits(self._settings["check_seconds"], memory),
            compile=ChildLimits(self._settings["measure_seconds"], memory),
        )

    def evaluate(self, request: bytes) -> bytes:
        """One job as JSON, in and out (see ``jobs.request_for`` and ``Evaluation``)."""
        assert self._cascade is not None
        job = json.loads(request)
        baseline = self.operator.kernels[job["baseline"]] if job["baseline"] else None
        evaluation = self._cascade.evaluate(
            job["genome"],
            job["source"],
            job["params"],
            seed=job["seed"],
            scope=Scope(job["scope"]),
            baseline=baseline,
            known_artefacts=frozenset(job["known_artefacts"]),
            best=job["best"],
            race=Race.from_data(job["race"]) if job["race"] else None,
            only=job["only"],
            within=tuple(job["within"]),
        )
        descriptors = self._settings["descriptors"]
        named = {name: str(job["params"][name]) for name in descriptors if name in job["params"]}
        changes = {"worker": self._name, "descriptors": {**evaluation.descriptors, **named}}
        return evaluation.model_copy(update=changes).model_dump_json().encode()

    def close(self) -> None:
        """Kill the children; a job under way in another thread fails."""
        if self._cascade is not None:
            self._cascade.close()
