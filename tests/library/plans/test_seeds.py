"""Every Triton and Gluon seed is recorded for compute capability 9.0 on this machine, which needs no device for it."""

import pytest

from testkit.compile_ahead import described
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.targets import load_target
from tilewright.library.plans.format import Plan
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.child.frames import Frame
from tilewright.workers.child.run_once import Ending
from tilewright.workers.child.session import JobLimits
from tilewright.workers.device.station import compile_children

pytest.importorskip("triton")

RECIPES = {
    "gemm_fp8_blockwise": ("gemm_nt", "gemm_nt_rows", "linear", "quant_1x128", "quant_128x128", "quant_dual"),
    "gridquant": ("quant_256", "gemm_256"),
    "mx_cast": ("mxfp8_both", "mxfp8_swizzled", "mxfp4", "gemm_mxfp8"),
    "fused_quant": ("rmsnorm_1x128", "swiglu_1x128"),
    "gemm_mxfp8_out": ("normal", "masked32x192", "kgrouped4"),
}
"""Families to recipes whose kernels' texts are those of all others."""


def seeds():
    """Each text with each choice of parameters that are fixed by the recipe, once; no baselines."""
    known: set[tuple[str, str]] = set()
    for family, recipes in RECIPES.items():
        for recipe in recipes:
            operator = load_operator(f"{family}/{recipe}")
            for kernel in operator.kernels.values():
                key = (kernel.source, str(sorted(kernel.overrides.items())))
                if key not in known and "unfused" not in kernel.name:
                    known.add(key)
                    yield operator, kernel


@pytest.fixture(scope="module")
def compiler():
    pool = compile_children(load_target("h200").gpu)
    yield pool
    pool.close()


@pytest.mark.parametrize(("operator", "kernel"), [*seeds()], ids=lambda of: of.name)
def test_a_seed_is_recorded_without_a_device(compiler, operator, kernel):
    workload = next(iter(operator.suites.values())).check[0]
    inputs, outputs = operator.inputs(workload, kernel.inputs), operator.outputs(workload)
    shape = {"id": "w", "inputs": described(inputs), "outputs": described(outputs)}
    params = {**read_declarations(kernel.source).defaults, **kernel.overrides}
    job = Frame("compile", {"source": kernel.source, "params": params, "workloads": [shape]})
    outcome = compiler.run(job, JobLimits(120.0, 120.0))
    assert outcome.ending is Ending.DONE, outcome.detail
    answer = outcome.frames[-1]
    assert answer.kind == "compiled", answer.data
    plan = Plan.from_bytes(answer.blobs["w"])
    assert plan.launches and described(plan.inputs) == shape["inputs"]
    assert described(plan.outputs) == shape["outputs"]
    if any(part in kernel.name for part in ("_ws", "tma")) and "cast8" not in kernel.name:
        assert any(type(a).__name__ == "TensorMap" for launch in plan.launches for a in launch.arguments)
