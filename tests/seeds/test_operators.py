"""Every shipped operator: its seeds start at legal points, and what it says of a sample is what its oracle says."""

import itertools

import numpy as np
import pytest

from tilewright.evolve.space.space import Space
from tilewright.fitness.elements import INEXACT
from tilewright.fitness.gates import read_gates
from tilewright.fitness.targets import load_target
from tilewright.seeds.catalogue import all_operators
from tilewright.seeds.gridquant.operator import dequantise_grid
from tilewright.seeds.operator import Operator, Workload
from tilewright.seeds.sampled import Elements, Sampled, spread_picks

OPERATORS = all_operators()
FIRST = {name: next(iter(operator.suites.values())) for name, operator in OPERATORS.items()}
SAMPLED = [name for name, operator in OPERATORS.items() if isinstance(operator, Sampled)]
DIMS = {"M": 1024, "N": 384, "K": 1280}
FEW_GROUPS = ("gemm_mxfp8_out/", "gemm_fp8_blockwise/grouped", "gemm_fp8_blockwise/masked", "gemm_fp8_blockwise/k")
"""Of operators whose groups are as many as their names say, small ones are sampled in tests of their own."""


class Given:
    """Elements, some operands of which are what they are said to be."""

    def __init__(self, elements, known):
        self._elements, self._known = elements, known

    def at(self, operand, *axes):
        if operand in self._known:
            return self._known[operand][np.ix_(*axes)]
        return self._elements.at(operand, *axes)


@pytest.mark.parametrize("name", OPERATORS)
def test_seeds_start_at_legal_points(name):
    operator, suite = OPERATORS[name], FIRST[name]
    assert isinstance(operator, Operator)
    for seed in operator.kernels.values():
        target = load_target("tpu7x" if "\ndef build(" in seed.source else "h200")
        shapes = (*suite.workloads, *suite.check, *suite.final)
        constants = [{**operator.constants, **target.constants, **shape.dims} for shape in shapes]
        space = Space.from_source(seed.source, constants)
        point = {**space.defaults, **seed.overrides}
        assert point.keys() == space.defaults.keys()
        assert space.violations(point) == [] or name == "paged_attention/decode", seed.name


@pytest.mark.parametrize("name", ["flash_attention/full", "flash_attention/causal", "paged_attention/decode"])
def test_the_narrowest_heads_have_inputs_of_every_kind(name):
    dims = {**FIRST[name].check[0].dims, "D": 1}
    for kind, seed in itertools.product(OPERATORS[name].input_kinds, (0, 1)):
        assert OPERATORS[name].make_inputs(Workload("w", dims), seed, kind)["q"].shape[-1] == 1


@pytest.mark.parametrize("name", [name for name in SAMPLED if not name.startswith(FEW_GROUPS)])
def test_a_sample_is_what_the_oracle_says(name):
    operator = OPERATORS[name]
    assert isinstance(operator, Sampled)
    axes = FIRST[name].check[0].dims
    workload = Workload("w", {axis: DIMS[axis] for axis in axes})
    agrees(operator, workload, {})


@pytest.mark.parametrize("recipe", ["normal", "grouped4", "masked6x20", "kgrouped4"])
def test_a_sample_of_mx_outputs_is_what_the_oracle_says(recipe):
    operator = OPERATORS[f"gemm_mxfp8_out/{recipe}"]
    assert isinstance(operator, Sampled)
    workload = Workload("w", {"M": 256, "N": 256, "K": 256})
    shapes = {spec.name: spec.shape for spec in operator.inputs(workload)}
    known = {}
    if "count" in shapes:
        known["count"] = np.array([0, 1, *[0] * (shapes["count"][0] - 2)], np.int32)
    agrees(operator, workload, known, least=0.999)


def agrees(operator, workload, known, least=1.0):
    """Float64 references to 12 digits, payloads and scales bit for bit, all but a share where ``least`` says so."""
    assert isinstance(operator, Operator)
    shapes = {spec.name: spec.shape for spec in operator.inputs(workload)}
    elements = Elements(5, workload.id, shapes, operator.tables())
    inputs = {name: elements.at(name, *map(np.arange, shape)) for name, shape in shapes.items()} | known
    sample = operator.sample(workload, Given(elements, known), np.random.default_rng(2))
    oracle = operator.oracle(workload, inputs)
    for reference, arrays in sample.references.items():
        if reference in ("turned", "counted"):  # what gates allow for, of all outputs
            continue
        assert arrays.keys() <= oracle[reference].keys() and sample.where.keys() >= arrays.keys()
        for output, wanted in arrays.items():
            found = oracle[reference][output][np.ix_(*sample.where[output])]
            assert found.shape == wanted.shape
            if wanted.dtype == np.float64 or reference == "usual":
                digits = 1e-5 if reference == "usual" else 1e-12
                assert np.allclose(found, wanted, rtol=digits), (reference, output)
            else:
                same = found.view(f"u{found.itemsize}") == np.ascontiguousarray(wanted).view(f"u{wanted.itemsize}")
                assert same.mean() >= least, (reference, output)


@pytest.mark.parametrize("edge", [128, 256])
@pytest.mark.parametrize(("bits", "passes"), [(24, True), (16, False), (14, False)])
def test_integers_of_scale_blocks_show_accumulators_of_few_bits(edge, bits, passes):
    operator = OPERATORS[f"gridquant/gemm_{edge}"]
    workload = Workload("w", {"M": 24, "N": 40, "K": 1152})
    assert max(w.dims["K"] for w in operator.suites["tiny"].check) >= workload.dims["K"], "fewer blocks do not show it"
    inputs, acc = operator.make_inputs(workload, 3, "integers"), np.float32(0.0)
    a, b = (dequantise_grid(inputs[f"{name}_q"], inputs[f"{name}_s"], edge) for name in "ab")

    def cut(sums, places):
        return (sums.view(np.int32) & np.int32(-1 << (24 - places))).view(np.float32)

    for start in range(0, workload.dims["K"], edge):
        part = (a[:, start : start + edge] @ b[:, start : start + edge].T).astype(np.float32)
        assert np.array_equal(cut(part, 14), part), "a matrix unit holds the sum over a scale block"
        acc = cut(acc + part, bits)
    answers = operator.oracle(workload, inputs)
    readings = read_gates(operator.gates, {"c": acc.astype("bfloat16")}, answers, "integers", least=INEXACT)
    assert all(reading.passed for reading in readings) is passes


@pytest.mark.parametrize("size", [1, 2, 23, 24, 25, 8192])
def test_a_sample_has_both_ends(size):
    picks = spread_picks(size, 24, np.random.default_rng(1))
    assert len(picks) == min(size, 24) and (np.diff(picks) > 0).all()
    assert picks[0] == 0 and picks[-1] == size - 1
