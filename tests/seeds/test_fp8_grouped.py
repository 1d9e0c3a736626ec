"""Blockwise FP8 products in groups of rows: inputs, oracle and gates; the Gluon seed emulated and on a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testkit.seeds.triton_station import child
from tilewright.evolve.space.space import Space
from tilewright.fitness.elements import INEXACT
from tilewright.fitness.gates import failure, read_gates
from tilewright.seeds.gemm_fp8_blockwise.grouped import DepthGroups, RowGroups
from tilewright.seeds.gemm_fp8_blockwise.operator import operators
from tilewright.seeds.operator import Arrays, SnrGate, Workload
from tilewright.seeds.sampled import Elements

OPERATORS = {name: found for name, found in operators().items() if isinstance(found, RowGroups)}


def in_bf16(values: np.ndarray) -> np.ndarray:
    return values.astype("bfloat16")


@pytest.mark.parametrize("recipe", ["grouped4x8192", "masked6x1024"])
@pytest.mark.parametrize("kind", OPERATORS["grouped4x8192"].input_kinds)
def test_right_answers_pass_and_another_groups_matrix_fails(recipe: str, kind: str) -> None:
    operator, workload = OPERATORS[recipe], Workload("w", {"M": 68, "N": 136, "K": 256})
    inputs = operator.make_inputs(workload, 3, kind)
    references = operator.oracle(workload, inputs)
    right = {name: in_bf16(array) for name, array in references["exact"].items()}
    right["c"][~references["counted"]["c"]] = np.nan
    assert failure(read_gates(operator.gates, right, references, kind), operator.gates) is None
    turned = {**inputs, "b_q": np.roll(inputs["b_q"], 1, 0), "b_s": np.roll(inputs["b_s"], 1, 0)}
    wrong = {name: in_bf16(a) for name, a in operator.oracle(workload, turned)["exact"].items()}
    assert failure(read_gates(operator.gates, wrong, references, kind), operator.gates) is not None


def hopper_product(a_q: np.ndarray, a_s: np.ndarray, b_q: np.ndarray, b_s: np.ndarray) -> np.ndarray:
    """A blockwise product [M, N] as Hopper sums it: in steps of 32, cut to 14 bits of the largest term."""
    a, b = a_q.astype(np.float64), b_q.astype(np.float64)
    total = np.zeros((len(a), len(b)), np.float32)
    for block in range(a.shape[1] // 128):
        partial = np.zeros(total.shape)
        for start in range(block * 128, (block + 1) * 128, 32):
            terms = a[:, None, start : start + 32] * b[None, :, start : start + 32]
            largest = np.maximum(np.abs(terms).max(-1), np.abs(partial))
            unit = np.exp2(np.floor(np.log2(np.maximum(largest, 1e-30))) - 13)
            partial = (np.trunc(terms / unit[..., None]).sum(-1) + np.trunc(partial / unit)) * unit
        scales = a_s[block][:, None] * np.repeat(b_s[:, block], 128)[: len(b)]
        total += (partial * scales).astype(np.float32)
    return total


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_sums_as_hopper_makes_them_pass_on_outliers(seed: int) -> None:
    """Where outlying rows and columns cross, 14 bits are off by more than a share of the elements around."""
    operator, workload = OPERATORS["masked32x48"], Workload("w", {"M": 100, "N": 200, "K": 256})
    inputs = operator.make_inputs(workload, seed, "outliers")
    references = operator.oracle(workload, inputs)
    found = np.zeros(references["exact"]["c"].shape, np.float32)
    for g, count in enumerate(inputs["count"]):
        a_q, a_s = inputs["a_q"][g, :count], inputs["a_s"][g][:, :count]
        found[g, :count] = hopper_product(a_q, a_s, inputs["b_q"][g], inputs["b_s"][g])
    output = {"c": in_bf16(found)}
    readings = read_gates(operator.gates, output, references, "outliers", least=INEXACT)
    assert failure(readings, operator.gates) is None
    guessed = tuple(replace(gate, usual=None) for gate in operator.gates if isinstance(gate, SnrGate))
    readings = read_gates(guessed, output, references, "outliers", least=INEXACT)
    assert failure(readings, guessed) is not None  # other groups say nothing of an element's usual size


def test_a_depth_group_is_the_product_over_its_own_steps() -> None:
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


@pytest.mark.parametrize("recipe", OPERATORS)
def test_counts_fit_and_seeds_start_legally(recipe: str) -> None:
    operator = OPERATORS[recipe]
    for workload in operator.suites["experts"].check:
        for kind in operator.input_kinds:
            count = operator._drawn(np.random.default_rng(4), workload.dims["M"], kind)
            assert count.shape == (operator.groups,)
            assert (count >= 0).all()
            assert (count.max() if operator.masked else count.sum()) <= workload.dims["M"]
    most = int(operator.tables()["count"].max())
    for workload in operator.suites["experts"].workloads:
        room = workload.dims["M"] if operator.masked else workload.dims["M"] // operator.groups
        assert most <= room
        for seed in operator.kernels.values():
            names = {**operator.constants, **workload.dims}
            space = Space.from_source(seed.source, [names])
            assert not space.violations(dict(space.defaults))


@pytest.mark.parametrize("recipe", ["grouped4x8192", "masked6x1024"])
def test_samples_are_what_the_oracle_says(recipe: str) -> None:
    operator = OPERATORS[recipe]
    sized = RowGroups("t/t", operator.groups, 24, operator.masked, operator.suites, operator.kernels)
    workload = Workload("w", {"M": 128, "N": 256, "K": 256})
    shapes = {spec.name: spec.shape for spec in sized.inputs(workload)}
    elements = Elements(5, "w", shapes, sized.tables())
    whole: Arrays = {n: elements.at(n, *(np.arange(size) for size in shape)) for n, shape in shapes.items()}
    references = sized.oracle(workload, whole)
    sample = sized.sample(workload, elements, np.random.default_rng(1))
    where = np.ix_(*sample.where["c"])
    assert references["counted"]["c"][where[:-1]].all()
    np.testing.assert_allclose(sample.references["exact"]["c"], references["exact"]["c"][where], rtol=1e-9)


def test_the_gluon_seed_is_right_and_free_of_races_when_emulated() -> None:
    params = {"block_m": 64, "block_n": 128, "stages": 3, "slots": 1}
    case = ["grouped4x8192", "grouped", params, {"M": 28, "N": 72, "K": 256}, "randn"]
    ((*_, found),) = child("emulate", [case])
    assert found["c"] > 45
