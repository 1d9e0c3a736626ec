"""A station whose device says what a test has it say, and a small operator: for what a parent makes of answers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.fitness.evaluation import FigureKind
from tilewright.fitness.gpus import GPUS
from tilewright.fitness.targets import Target
from tilewright.seeds.operator import Arrays, Gate, SeedKernel, SnrGate, Suite, TensorSpec, Workload
from tilewright.workers.child.ending import ChildOutcome, Ending
from tilewright.workers.child.frames import Frame, FrameReader, encode
from tilewright.workers.child.session import JobLimits
from tilewright.workers.device.station import Champion, DeviceRatio
from tilewright.workers.request import Limits, Request, Truth

DEVICE = dataclasses.replace(GPUS["h200"], peaks={"bf16": 1e9, "f8": 2e9}, hbm=1e9, copy=5e8)
TARGET = Target("slow", FigureKind.MEASURED, DEVICE)
INTERPRETED = Target("interpreted", FigureKind.MEASURED, dataclasses.replace(DEVICE, interpreted=True))
HONEST_SECONDS = 100e-6
SOURCE = """import triton

SPACE = {"x": (1,)}
DEFAULTS = {"x": 1}
CONSTRAINTS = {}


def launch(inputs, params):
    return (inputs["a"],)
"""
"""A kernel of the dialect, which no scripted station runs."""


class Doubler:
    """c = 2 a, elementwise, M x N. Ten operations an element, so that one on ``DEVICE`` takes 10 ns."""

    name = "toy/double"
    constants: Mapping[str, int] = {}
    input_kinds: tuple[str, ...] = ("randn", "ones")
    kernels: Mapping[str, SeedKernel] = {}

    def __init__(self, dtype: str = "float32", gates: tuple[Gate, ...] = ()) -> None:
        self._dtype = dtype
        self.gates = gates or (SnrGate("exact", "exact", 45.0),)
        self.suites = {"tiny": Suite("tiny", (shape(64), shape(32)), (shape(32),), (shape(96),))}

    def inputs(self, workload: Workload, variant: str | None = None) -> tuple[TensorSpec, ...]:
        return (TensorSpec("a", (workload.dims["M"], 64), self._dtype),)

    def outputs(self, workload: Workload) -> tuple[TensorSpec, ...]:
        return (TensorSpec("c", (workload.dims["M"], 64), "float32"),)

    def make_inputs(self, workload: Workload, seed: int, kind: str) -> Arrays:
        rng = np.random.default_rng([seed, workload.dims["M"], len(kind)])
        made = rng.standard_normal((workload.dims["M"], 64)) if kind == "randn" else np.ones((workload.dims["M"], 64))
        return {"a": made.astype(np.float32)}

    def oracle(self, workload: Workload, inputs: Arrays) -> dict[str, Arrays]:
        return {"exact": {"c": 2 * inputs["a"].astype(np.float64)}}

    def flops(self, workload: Workload) -> int:
        return 10 * workload.dims["M"] * 64

    def bytes(self, workload: Workload) -> int:
        return 8 * workload.dims["M"] * 64


def shape(rows: int) -> Workload:
    """Of ``Doubler``."""
    return Workload(f"m{rows}", {"M": rows})


def request(operator: Doubler | None = None, **changes: Any) -> Request:
    """One evaluation of ``SOURCE`` on a device; ``changes`` are fields of the request."""
    operator = operator or Doubler()
    suite = operator.suites["tiny"]
    fields: dict[str, Any] = {
        "target": TARGET,
        "limits": Limits(),
        "seed": 7,
        "measured": suite.workloads,
        "source": SOURCE,
        "params": {"x": 1},
        "checked": suite.check,
        "folder": Path("nowhere"),
    }
    return Request(operator=operator, truth=Truth(operator), **{**fields, **changes})


def travelled(frame: Frame) -> Frame:
    """As it arrives from another process."""
    (arrived,) = FrameReader(1 << 30).feed(encode(frame))
    return arrived


def done(frames: Sequence[Frame]) -> ChildOutcome:
    """A child that ended well."""
    return ChildOutcome(Ending.DONE, [travelled(frame) for frame in frames], log="said by the child")


def answers(job: Frame, change: Callable[[Frame], Frame | None] = lambda frame: frame) -> ChildOutcome:
    """What an honest device says to a job on ``Doubler``, each frame changed or left out."""
    frames = []
    for workload in job.data["workloads"]:
        name = workload["id"]
        for kind in next((c["kinds"] for c in job.data.get("check", ()) if c["workload"] == name), ()):
            doubled = {"c": 2 * job.arrays[f"{name}/{kind}/a"]}
            frames.append(Frame("checked", {"workload": name, "kind": kind, "inputs_changed": False}, doubled))
        if job.kind == "time":
            entries, calls = len(job.data["entries"]), [HONEST_SECONDS] * job.data["calls"]
            data: dict[str, Any] = {
                "workload": name,
                "rounds": [[list(calls) for _ in range(job.data["rounds"])] for _ in range(entries)],
                "host_seconds": [5e-6] * entries,
                "wall_seconds": [110e-6] * entries,
                "brief": False,
                "inputs_changed": False,
            }
            kinds = ["", *(f"{kind}/" for kind in job.data.get("kinds", {}).get(name, ()))]
            outputs = {
                f"{place}/{kind}c": 2 * job.arrays[f"{name}/{kind}a"] for place in range(entries) for kind in kinds
            }
            frames.append(Frame("timed", data, outputs))
    return done([changed for frame in frames if (changed := change(frame)) is not None])


class ScriptedStation:
    """Answers jobs by a function; keeps them, and a champion."""

    def __init__(
        self,
        answer: Callable[[Frame], ChildOutcome] = answers,
        *,
        champion: Champion | None = None,
        scale: DeviceRatio | None = None,
        seed: int | None = None,
    ) -> None:
        self.jobs: list[tuple[Frame, JobLimits]] = []
        self.held = champion
        self.claims: list[str] = []
        self.free = True
        self._answer, self._scale, self._seed = answer, scale or DeviceRatio(), seed

    def hello(self) -> Mapping[str, Any]:
        return {"device": "scripted", "cuda": 13, "other": "kept"}

    def run(self, job: Frame, limits: JobLimits) -> ChildOutcome:
        self.jobs.append((job, limits))
        return self._answer(job)

    def scale(self) -> DeviceRatio:
        return self._scale

    def operand_seed(self, proposed: int, *, ahead: bool = False) -> int:
        return proposed if self._seed is None else self._seed

    def champion(self) -> Champion | None:
        return self.held

    def claim(self, contender: str) -> bool:
        self.claims.append(contender)
        return self.free

    def release(self, contender: str, crowned: Champion | None) -> None:
        self.claims.append(f"released {contender}")
        self.held = crowned or self.held
