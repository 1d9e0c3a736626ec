"""FP8 products with MXFP8 outputs: the fused seed within its rule; the logarithm and a detour by bf16 refused."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.evolve.space.space import Space
from tilewright.fitness.gates import failure, read_gates
from tilewright.seeds.gemm_mxfp8_out.operands import INPUT_KINDS, Sums, quantised
from tilewright.seeds.gemm_mxfp8_out.operator import operators

OPERATORS = operators()


@pytest.mark.parametrize("recipe", ["normal", "grouped4", "masked6x20", "kgrouped4"])
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_the_gate_allows_hoppers_sums_and_refuses_a_detour_by_bf16(recipe, kind):
    operator = OPERATORS[recipe]
    (workload, *_) = next(iter(operator.suites.values())).check
    inputs = operator.make_inputs(workload, 4, kind)
    kept: list[Sums] = []
    with pytest.MonkeyPatch.context() as patch:
        original = Sums.references
        patch.setattr(Sums, "references", lambda s, counted=None: (kept.append(s), original(s, counted))[1])
        references = operator.oracle(workload, inputs)
    (sums,) = kept
    detour = sums.exact.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    for product, right in ((sums.exact, True), (sums.coarse, True), (detour, False)):
        readings = read_gates(operator.gates, quantised(product), references, kind)
        assert (failure(readings, operator.gates) is None) == right


@pytest.mark.parametrize("recipe", ["normal", "grouped4", "masked6x20", "kgrouped4"])
def test_a_search_cannot_turn_a_seed_into_its_baseline(recipe):
    operator = OPERATORS[recipe]
    for seed in operator.kernels.values():
        space = Space.from_source(seed.source, [{**operator.constants, "M": 4096, "N": 7168, "K": 2048}])
        point = {**space.defaults, **seed.overrides}
        if "fused" in point:
            assert bool(space.violations({**point, "fused": 0})) != seed.baseline
