"""From the naive fused kernel alone, rewriting reaches cached quantisation and beats bfloat16 (tpu7x, modelled)."""

import numpy as np
import pytest

from tilewright.evolve.proposers.rewrite.proposer import offers, rewrite
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import load_operator
from tilewright.workers.cascade.modelled import ModelledCascade
from tilewright.workers.child.run_once import ChildLimits
from tilewright.workers.request import Limits

GIB = 1 << 30
LIMITS = Limits(trace=ChildLimits(120.0, 8 * GIB), compile=ChildLimits(180.0, 12 * GIB))
STEPS = ("pallas_whole_reduction_block", "pallas_reassociate_scale", "pallas_cache_across_axis")


@pytest.fixture(scope="module")
def judge():
    operator = load_operator("gemm_fp8_fused/g512")
    cascade = ModelledCascade(operator, load_target("tpu7x"), operator.suites["small"], LIMITS)

    def run(source, params, **options):
        return cascade.evaluate("g", source, params, seed=3, best=float("inf"), **options)

    return operator, run


@pytest.mark.slow
def test_caching_is_reached_from_the_naive_kernel(judge):
    operator, run = judge
    source = operator.kernels["naive"].source
    params = {"block_m": 512, "block_n": 1024, "block_k": 1024, "vmem_mib": 48}
    naive = run(source, params)
    for name in STEPS:
        rule, site = next(pair for pair in offers(source) if pair[0].name == name)
        child = rewrite(source, params, rule, site, np.random.default_rng(0))
        assert child is not None, name
        source, params = child.source, dict(child.params)
    cached = run(source, params)
    assert (naive.verdict, cached.verdict) == (Verdict.OK, Verdict.OK), cached.reason + cached.log[-500:]
    baseline = operator.kernels["bf16"]
    sizes = {"block_m": 1024, "block_n": 1024, "block_k": 2048, "vmem_mib": 62}
    bf16 = run(baseline.source, sizes, baseline=baseline)
    assert bf16.verdict is Verdict.OK, bf16.reason
    assert naive.fitness is not None
    assert cached.fitness > 1.2 * naive.fitness, (cached.fitness, naive.fitness)
    assert cached.fitness > 1.1 * bf16.fitness, (cached.fitness, bf16.fitness)
