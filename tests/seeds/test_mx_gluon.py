"""The Gluon seeds of mx_cast, gridquant and gemm_mxfp8_out: they compile for Hopper; on one they pass their gates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.compile_ahead import Task, compiled_ahead, described
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.dialect import check
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Suite, Workload
from tilewright.workers.cascade.measured import MeasuredCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.device.station import LocalStation, station_fault
from tilewright.workers.request import GIB, Limits
from tilewright.workers.toolchains.triton import missing_parts

PATIENT = Limits(trace=ChildLimits(60.0), compile=ChildLimits(120.0, 8 * GIB))
WIDE = Workload("check/whole", {"M": 512, "N": 512, "K": 1024})

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("mx_cast/mxfp8_both", "cast8_tma", {}),
    ("mx_cast/mxfp8_both", "cast8_tma", {"leave": "tma", "slots": 2, "group_m": 4}),
    ("mx_cast/mxfp8_dim1", "cast8_tma", {"leave": "tma", "group_m": 1048576}),
    ("gridquant/gemm_256", "persistent_ws", {}),
    ("gridquant/gemm_128", "persistent_ws", {"block_n": 128, "stages": 6}),
    ("gemm_mxfp8_out/normal", "fused_ws", {}),
    ("gemm_mxfp8_out/normal", "fused_ws", {"split": 2, "block_n": 128}),
    ("gemm_mxfp8_out/grouped4", "fused_ws", {}),
]


@pytest.fixture(scope="module")
def station() -> Iterator[LocalStation]:
    target = load_target("h200")
    if missing_parts(target.gpu) or station_fault(target.gpu):
        pytest.skip("needs an NVIDIA H200")
    station = LocalStation(target.gpu)
    yield station
    station.close()


@pytest.mark.gpu
@pytest.mark.parametrize(("operator", "kernel", "params"), CASES)
def test_gluon_seeds_pass_their_gates_on_the_gpu(
    operator: str, kernel: str, params: dict[str, Any], station: LocalStation
) -> None:
    made = load_operator(operator)
    (suite, *_) = made.suites.values()
    few = Suite(suite.name, suite.workloads[:1], (*suite.check, WIDE))
    seed = made.kernels[kernel]
    point = {**read_declarations(seed.source).defaults, **seed.overrides, **params}
    cascade = MeasuredCascade(made, load_target("h200"), few, station, PATIENT)
    try:
        found = cascade.evaluate(kernel, seed.source, point, seed=1)
    finally:
        cascade.close()
    assert found.verdict is Verdict.OK, found.reason


def compile_task(operator: str, kernel: str, params: dict[str, Any]) -> Task:
    """A seed at a point of its own, for ``WIDE``."""
    made = load_operator(operator)
    seed = made.kernels[kernel]
    point = {**read_declarations(seed.source).defaults, **seed.overrides, **params}
    shape = {
        "id": WIDE.id,
        "inputs": described(made.inputs(WIDE)),
        "outputs": described(made.outputs(WIDE)),
    }
    return seed.source, point, [shape]


@pytest.mark.slow
def test_gluon_seeds_compile_for_hopper(tmp_path: Path) -> None:
    pytest.importorskip("triton.experimental.gluon")
    todo = [compile_task(*case) for case in CASES]
    found = compiled_ahead(todo, str(tmp_path), processes=2, seconds=300.0)
    assert found["points"] == len(CASES) and not found["failed"] and not found["late"], found


@pytest.mark.parametrize(("operator", "kernel", "params"), CASES)
def test_gluon_seeds_are_of_the_dialect(operator: str, kernel: str, params: dict[str, Any]) -> None:
    assert check(load_operator(operator).kernels[kernel].source, entry="launch") == []
