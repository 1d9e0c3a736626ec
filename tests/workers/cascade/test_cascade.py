"""The modelled cascade on real children; what cheats get is tested in ``tests/exploits``."""

import functools
import sys

import numpy as np
import pytest

from testkit import FIXTURES, twins
from testkit.scripted import request
from tilewright.fitness.evaluation import FigureKind, Stage, Verdict
from tilewright.fitness.targets import load_target
from tilewright.fitness.tpu.time_model import VERSION
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import SeedKernel
from tilewright.workers.cascade import verify_shapes
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.cascade.modelled_stages import TraceStage
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.request import Findings, Limits
from tilewright.workers.toolchains import libtpu_simulator

GIB = 1 << 30
FAMILY = FIXTURES / "small_gemm"
LIMITS = Limits(trace=ChildLimits(60.0, 8 * GIB), compile=ChildLimits(90.0, 12 * GIB))
UNBEATEN = sys.float_info.max
"""A best that nothing beats, so that no shape beside the checked ones is looked at."""


@pytest.fixture(scope="module")
def operator():
    return load_operator(f"{FAMILY}/good")


def cascade(operator, target="tpu7x", limits=LIMITS, **options):
    return ModelledCascade(operator, load_target(target), operator.suites["tiny"], limits, **options)


@functools.cache
def usual():
    """One cascade for most tests, as a worker has one for its whole life."""
    return cascade(load_operator(f"{FAMILY}/good"))


def judged(source, *, best=UNBEATEN, by=None, **options):
    return (by or usual()).evaluate("g", source, twins.PARAMS, seed=7, best=best, **options)


@functools.cache
def honest():
    return judged(twins.HONEST)


@pytest.mark.parametrize("target", ["tpu7x", *(pytest.param(t, marks=pytest.mark.slow) for t in ("v6e", "v5e"))])
def test_the_honest_kernel_has_a_fitness(operator, target):
    found = honest() if target == "tpu7x" else judged(twins.HONEST, by=cascade(operator, target))
    assert found.verdict is Verdict.OK, found.reason + found.log
    assert found.stage is Stage.MEASURE and found.interval[0] < found.fitness < found.interval[1]
    assert found.model_version == VERSION and found.toolchain["time_model"] == str(VERSION)
    (figures,) = found.workloads
    low, high = figures.seconds_interval
    assert low < figures.seconds < high
    assert figures.kind is FigureKind.MODELLED and 0 < figures.roofline_fraction < 1
    assert figures.tflops == pytest.approx(found.fitness)
    assert figures.diagnosis["dma_bytes"] >= operator.bytes(operator.suites["tiny"].workloads[0])
    assert sum(figures.diagnosis["critical_path"].values()) == figures.diagnosis["cycles"]
    assert 0 <= figures.diagnosis["overlap"]["mxu_with_valu"] <= 1
    assert found.gates and all(reading.passed for reading in found.gates)
    assert found.artefact and found.descriptors == {"vmem": "0-8MiB"}
    assert found.toolchain["libtpu"] != "missing"


def test_the_model_is_deterministic_and_a_repetition_is_a_duplicate():
    first = honest()
    second = judged("# a comment\n" + twins.HONEST, best=0.0)
    assert (second.fitness, second.artefact) == (first.fitness, first.artefact)
    shapes = sorted(reading.inputs.partition(" at ")[2] for reading in second.gates)
    assert shapes == ["", "256x256x512", "512x256x512"], "what beats the best is checked on measured and final shapes"
    third = judged(twins.HONEST, known_artefacts={first.artefact})
    assert third.verdict is Verdict.DUPLICATE and first.artefact in third.reason
    assert third.artefact == first.artefact


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("TOO_MUCH_VMEM", Verdict.RESOURCE_ERROR, "vmem"),
        ("BAD_BLOCK", Verdict.COMPILE_ERROR, "block shape"),
        ("WRONG_SHAPE", Verdict.COMPILE_ERROR, "instead of bfloat16"),
    ],
)
def test_what_does_not_fit_or_compile_has_a_verdict(name, verdict, reason):
    found = judged(getattr(twins, name))
    assert (found.verdict, found.fitness) == (verdict, None), found.reason + found.log
    assert reason in found.reason and "\n" not in found.reason


def test_steps_that_others_build_on_are_run_before_a_kernel_is_wrong(monkeypatch):
    for budget in ("CHEAP_FLOPS", "BEST_FLOPS", "FINAL_FLOPS"):
        monkeypatch.setattr(verify_shapes, budget, 0)
    corner = {"c": (np.arange(192, 256), np.arange(64))}
    monkeypatch.setattr(verify_shapes, "windows", lambda outputs, rng, many: corner)
    found = judged(twins.COUNTS_STEPS, best=0.0)
    assert found.verdict is Verdict.OK, found.reason
    assert [(r.workload, r.passed) for r in found.gates if r.sampled] == [("256x256x512", True)]


@pytest.mark.slow
def test_a_step_that_the_simulator_aborts_on_has_a_time(monkeypatch):
    environment, delays = libtpu_simulator.compile_environment, []

    def noted(folder, **options):
        delays.append(options["delays"])
        return environment(folder, **options)

    monkeypatch.setattr(libtpu_simulator, "compile_environment", noted)
    params = {"block_m": 256, "block_n": 128, "block_k": 512}
    found = usual().evaluate("g", twins.STAYS, params, seed=7, best=UNBEATEN)
    assert found.verdict is Verdict.OK, found.reason
    assert delays == [False, True], "the simulator runs this kernel as it stands"
    alone = SeedKernel("timed", twins.HONEST, baseline=True)
    like = usual().evaluate("g", twins.HONEST, params, seed=7, baseline=alone)
    assert found.workloads[0].seconds == pytest.approx(like.workloads[0].seconds, rel=0.05)


@pytest.mark.parametrize("name", sorted(twins.ESCAPES))
def test_what_escapes_the_dialect_still_has_no_say(operator, name, tmp_path):
    asked = {"target": load_target("tpu7x"), "limits": LIMITS, "params": twins.PARAMS, "folder": tmp_path}
    asked["launcher"] = usual()._launcher
    failure = TraceStage(checks=True).run(request(operator, source=twins.escaped(name), **asked), Findings())
    assert failure is not None and failure.verdict is Verdict.CRASHED, failure
