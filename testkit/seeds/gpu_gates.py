"""Seed kernels held to their gates on the GPU of this machine: compiled by many processes, launched by one station."""

import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.compile_ahead import compiled, start
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.targets import Target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Operator, Workload
from tilewright.workers.cascade.measured_stages import GateStage
from tilewright.workers.device.station import LocalStation
from tilewright.workers.request import Findings, Limits, Request, Truth

COMPILE_SECONDS = 300.0


@dataclass(frozen=True)
class Case:
    """A seed kernel of ``operator`` (its full name) at a point of its space, on the shapes that its gates run on."""

    operator: str
    kernel: str
    workloads: tuple[Workload, ...]
    params: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operator} {self.kernel} {dict(self.params) or ''}".rstrip()


def gate_failures(cases: Sequence[Case], target: Target, seed: int = 1) -> dict[str, str]:
    """By case that fails, why: it does not compile, or its answers do not pass the operator's gates.

    Every kind of inputs runs on one of the case's shapes. A task of the pool is one shape of a case, for a training
    step compiles for half a minute. Threads compute the oracle's answers in the meantime, once for each operator and
    set of shapes.
    """
    operators = {name: load_operator(name) for name in {case.operator for case in cases}}
    truths = {
        (case.operator, case.workloads): Truth(operators[case.operator], most=len(operators[case.operator].input_kinds))
        for case in cases
    }
    station = LocalStation(target.gpu)
    failures: dict[str, str] = {}
    processes = min(16, len(os.sched_getaffinity(0)))  # each imports torch and triton: seconds, and a gigabyte
    cache = tempfile.mkdtemp()
    context = multiprocessing.get_context("spawn")
    try:
        with (
            ProcessPoolExecutor(processes, context, initializer=start, initargs=(cache,)) as pool,
            ThreadPoolExecutor(4) as threads,
        ):
            requests = [
                _request(case, operators[case.operator], truths[case.operator, case.workloads], target, seed)
                for case in cases
            ]
            plans = [
                {
                    w.id: pool.submit(compiled, request.source, dict(request.params), [request.described(w)])
                    for w in request.checked
                }
                for request in requests
            ]
            gates = GateStage(station)
            answers = [threads.submit(gates.prepare, request) for request in requests]
            for case, request, futures, answered in zip(cases, requests, plans, answers, strict=True):
                found = {name: future.result(COMPILE_SECONDS) for name, future in futures.items()}
                answered.result()
                wrong = next((message for message, _ in found.values() if message), "")
                if not wrong:
                    launched = Findings(plans={name: blobs[name] for name, (_, blobs) in found.items()})
                    failure = gates.run(request, launched)
                    wrong = f"{failure.verdict}: {failure.reason}" if failure is not None else ""
                if wrong:
                    failures[str(case)] = wrong
    finally:
        station.close()
    return failures


def _request(case: Case, operator: Operator, truth: Truth, target: Target, seed: int) -> Request:
    kernel = operator.kernels[case.kernel]
    return Request(
        operator=operator,
        truth=truth,
        target=target,
        limits=Limits(),
        seed=seed,
        measured=case.workloads,
        checked=case.workloads,
        source=kernel.source,
        params={**read_declarations(kernel.source).defaults, **kernel.overrides, **case.params},
        folder=Path(tempfile.gettempdir()),
    )
