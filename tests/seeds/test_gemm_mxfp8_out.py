"""FP8 products with MXFP8 outputs: the fused seed within its rule; the logarithm and a detour by bf16 refused."""

from __future__ import annotations

import numpy as np
import pytest

from evolve.space import Space
from seeds.gemm_mxfp8_out.operator import operators
from seeds.gemm_mxfp8_out.shapes import MOTIF_GROUPED, rows_of_groups
from seeds.operator import Operator, Workload
from seeds.sampled import Elements, Sampled

OPERATORS = operators()


def test_suites_follow_their_rules() -> None:
    normal = OPERATORS["normal"].suites
    assert [tuple(w.dims[d] for d in "MNK") for w in normal["motif-normal"].workloads][:2] == [
        (1, 7168, 2048),
        (128, 7168, 2048),
    ]
    assert len(normal["deepgemm-normal"].workloads) == 3 * 7
    for groups, expected, _, _ in MOTIF_GROUPED:
        rows = rows_of_groups(groups, expected)
        assert rows % 128 == 0 and 0.7 < rows / (groups * expected) < 1.4
    assert {w.dims["N"] for w in OPERATORS["grouped8"].suites["deepgemm-grouped"].workloads} == {
        6144,
        7168,
        4096,
    }


@pytest.mark.parametrize("recipe", ["normal", "grouped4"])
def test_operators_are_whole_and_their_seeds_legal(recipe: str) -> None:
    operator = OPERATORS[recipe]
    assert isinstance(operator, Operator) and isinstance(operator, Sampled)
    for seed in operator.kernels.values():
        space = Space.from_source(seed.source, [{**operator.constants, "M": 4096, "N": 7168, "K": 2048}])
        assert not space.violations({**space.defaults, **seed.overrides})
    workload = Workload("w", {"M": 256, "N": 256, "K": 256})
    shapes = {spec.name: spec.shape for spec in operator.inputs(workload)}
    elements = Elements(5, workload.id, shapes, operator.tables())
    whole = {name: elements.at(name, *map(np.arange, shape)) for name, shape in shapes.items()}
    (right,) = operator.oracle(workload, whole).values()
    sample = operator.sample(workload, elements, np.random.default_rng(2))
    for name, wanted in sample.references["mx"].items():
        found = right[name][np.ix_(*sample.where[name])]
        assert (found.view(np.uint8) == wanted.view(np.uint8)).mean() > 0.999
