"""Answers at some places are those of the whole oracle there."""

import numpy as np
import pytest

from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload
from tilewright.seeds.sampled import crossing, windows

FUSED = Workload("w", {"M": 200, "N": 256, "K": 512})
GROUPED = Workload("w", {"M": 512, "N": 256, "K": 512, "G": 5, "C": 512, "F": 256})
GRADIENT = Workload("w", {"M": 512, "N": 512, "K": 256, "G": 5, "C": 512, "F": 256})
MATRICES = Workload("w", {"M": 512, "N": 256, "K": 256, "G": 5, "C": 512, "F": 256})


@pytest.mark.parametrize("kind", ["randn", "spread"])
@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("gemm_fp8_fused/g512", FUSED),
        ("gmm_fp8/fwd-g128", GROUPED),
        ("gmm_fp8/fwd-bf16", GROUPED),
        ("gmm_fp8/dlhs-g512", GRADIENT),
        ("gmm_fp8/tgmm-g512", MATRICES),
    ],
)
def test_some_answers_are_those_of_the_oracle(name, workload, kind):
    operator = load_operator(name)
    inputs = operator.make_inputs(workload, 3, kind)
    where = windows(operator.outputs(workload), np.random.default_rng(0), 1)
    whole = crossing(operator.oracle(workload, inputs), where)
    some = operator.oracle_at(workload, inputs, where)
    assert some.keys() == whole.keys()
    for reference, arrays in whole.items():
        for output, array in arrays.items():
            assert some[reference][output].shape == array.shape
            in_float32 = array.dtype == np.float32 or reference in ("slack", "turned")
            rtol = 1e-3 if in_float32 else 1e-9
            assert np.allclose(some[reference][output], array, rtol=rtol, atol=rtol / 1000 * np.abs(array).max())
