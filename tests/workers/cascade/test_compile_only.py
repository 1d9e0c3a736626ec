"""Targets that only compile: what the code says, verdicts for what does not fit, a compiler that dies."""

import pytest

from testkit import ROOT
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.evaluation import Stage, Verdict
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.cascade.compile_only import CompileOnlyCascade, describe_children
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.request import GIB, Limits

pytest.importorskip("triton")

FINDINGS = ROOT / "testkit" / "fixtures" / "isa_findings"
PATIENT = Limits(trace=ChildLimits(60.0), compile=ChildLimits(150.0, 8 * GIB))
OPERATOR = load_operator(f"{FINDINGS}/wgrad")
SOURCE = OPERATOR.kernels["wgrad"].source
POINT = read_declarations(SOURCE).defaults


def cascade_for(target, compiler):
    return CompileOnlyCascade(
        OPERATOR, load_target(target), OPERATOR.suites["isa"], PATIENT, checked=False, compiler=compiler
    )


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    keeper = describe_children()
    yield keeper
    keeper.close()


def judged(compiler, source=SOURCE, **changes):
    return cascade_for("gfx950", compiler).evaluate("one", source, {**POINT, **changes}, seed=1)


def kernel_of(found):
    assert found.verdict is Verdict.OK, found.reason + found.log
    (kernel,) = found.compiled.values()
    return kernel


def test_the_matrix_instruction_and_its_accumulators_follow_the_option(compiler):
    wide = {"block_k": 256, "epilogue": "turned"}
    large, small = (kernel_of(judged(compiler, **wide, nonkdim=n)) for n in (0, 16))
    assert large["matrix"].keys() == {"v_mfma_f32_32x32x64_f8f6f4"}
    assert small["matrix"].keys() == {"v_mfma_f32_16x16x128_f8f6f4"}
    assert large["accumulators"] > small["accumulators"] > 0, "AGPRs are used, and fewer of them"
    assert large["registers"] > 256 and large["resident"] == 4 and large["limit"] == "registers"


def test_what_does_not_fit_or_compile_has_a_verdict(compiler):
    found = judged(compiler, block_k=256, num_stages=6)
    assert found.verdict is Verdict.RESOURCE_ERROR and "shared memory" in found.reason, found.reason
    found = judged(compiler, SOURCE.replace("tl.zeros((BK, BN)", "tl.zeros((BK, M)"))
    assert found.verdict is Verdict.COMPILE_ERROR, found.reason
    assert found.stage is Stage.COMPILE and found.fitness is None
    assert "Shape element 1 must have type `constexpr[int]`" in found.reason, "the cause, not the source above it"
    assert "(at " in found.reason and "tl.zeros((BK, M)" in found.reason, found.reason
    found = judged(compiler, "import os\n" + SOURCE)
    assert found.verdict is Verdict.REJECTED


CRASH = """
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPACE = {"num_warps": (4,)}
DEFAULTS = {"num_warps": 4}
CONSTRAINTS = {}


@gluon.jit
def kernel(x_ptr, LAYOUT: gl.constexpr):
    at = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    gl.store(x_ptr + at, gl.zeros([64], gl.bfloat16, gl.SliceLayout(1, LAYOUT)))


def launch(inputs, params):
    x = inputs["x_q"]
    lanes = [[1, 0], [2, 0], [4, 0], [8, 0], [16, 0]]
    layout = gl.DistributedLinearLayout([[0, 1]], lanes, [[32, 0], [128, 0]], [], [64, 2])
    kernel[(1,)](x, layout, num_warps=params["num_warps"])
    return (x,)
"""
"""A warp's place outside the tile: LLVM ends the process that compiles this."""


def test_a_kernel_that_crashes_the_compiler_is_a_verdict_and_the_next_compiles(compiler):
    for target in ("gfx950", "sm_100"):
        found = cascade_for(target, compiler).evaluate("one", CRASH, {"num_warps": 4}, seed=1)
        assert found.verdict is Verdict.COMPILE_ERROR and "SIGABRT" in found.reason, found.reason
        assert found.stage is Stage.COMPILE and found.fitness is None
    assert kernel_of(judged(compiler))["stores"] == {"buffer_store_short": 64}
