"""Blockwise FP8 products in groups of rows: inputs, oracle and gates."""

import numpy as np
import pytest

from tilewright.fitness.gates import failure, read_gates
from tilewright.seeds.gemm_fp8_blockwise.grouped import DepthGroups, RowGroups
from tilewright.seeds.gemm_fp8_blockwise.operator import operators
from tilewright.seeds.operator import Arrays, Workload
from tilewright.seeds.sampled import Elements

OPERATORS = {name: found for name, found in operators().items() if isinstance(found, RowGroups)}


def in_bf16(values):
    return values.astype("bfloat16")


@pytest.mark.parametrize("recipe", ["grouped4x8192", "masked6x1024"])
@pytest.mark.parametrize("kind", OPERATORS["grouped4x8192"].input_kinds)
def test_right_answers_pass_and_another_groups_matrix_fails(recipe, kind):
    operator, workload = OPERATORS[recipe], Workload("w", {"groups": 5, "M": 68, "N": 136, "K": 256})
    inputs = operator.make_inputs(workload, 3, kind)
    references = operator.oracle(workload, inputs)
    right = {name: in_bf16(array) for name, array in references["exact"].items()}
    right["c"][~references["counted"]["c"]] = np.nan
    assert failure(read_gates(operator.gates, right, references, kind), operator.gates) is None
    turned = {**inputs, "b_q": np.roll(inputs["b_q"], 1, 0), "b_s": np.roll(inputs["b_s"], 1, 0)}
    wrong = {name: in_bf16(a) for name, a in operator.oracle(workload, turned)["exact"].items()}
    assert failure(read_gates(operator.gates, wrong, references, kind), operator.gates) is not None


def test_a_depth_group_is_the_product_over_its_own_steps():
    operator = operators()["kgrouped4x8192"]
    assert isinstance(operator, DepthGroups)
    workload = Workload("w", {"M": 132, "N": 72, "K": 768})
    inputs = operator.make_inputs(workload, 3, "randn")
    references = operator.oracle(workload, inputs)
    right = {"c": in_bf16(references["exact"]["c"])}
    assert failure(read_gates(operator.gates, right, references, "randn"), operator.gates) is None
    moved = {**inputs, "count": np.roll(inputs["count"], 1)}
    wrong = {"c": in_bf16(operator.oracle(workload, moved)["exact"]["c"])}
    assert failure(read_gates(operator.gates, wrong, references, "randn"), operator.gates) is not None
    sized = DepthGroups("t/t", 4, 256, operator.suites, operator.kernels)
    shapes = {spec.name: spec.shape for spec in sized.inputs(workload)}
    elements = Elements(5, "w", shapes, sized.tables())
    whole: Arrays = {n: elements.at(n, *(np.arange(size) for size in shape)) for n, shape in shapes.items()}
    sample = sized.sample(workload, elements, np.random.default_rng(1))
    exact = sized.oracle(workload, whole)["exact"]["c"][np.ix_(*sample.where["c"])]
    np.testing.assert_allclose(sample.references["exact"]["c"], exact, rtol=1e-9)
