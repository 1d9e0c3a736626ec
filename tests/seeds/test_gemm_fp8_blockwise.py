"""The blockwise FP8 training family: suites, oracle and gates, seed kernels interpreted, cross-compiled."""

import numpy as np
import pytest

from tilewright.fitness.gates import failure, read_gates
from tilewright.fitness.score import floors
from tilewright.fitness.targets import load_target
from tilewright.seeds.gemm_fp8_blockwise.operator import operators
from tilewright.seeds.gemm_fp8_blockwise.shapes import CORE, core, primus84
from tilewright.seeds.operator import Workload

OPERATORS = {name: found for name, found in operators().items() if "primus-core" in found.suites}


def test_the_84_shapes_follow_their_rule():
    shapes = primus84()
    triples = [tuple(w.dims[d] for d in "MNK") for w in shapes]
    assert len(shapes) == 84
    assert len({w.id for w in shapes}) == 84
    assert len(set(triples)) == 69
    assert triples[4 - 1] == (4096, 4096, 11008)
    assert triples[43 - 1] == (16384, 106496, 16384)
    assert triples[47 - 1] == (32768, 106496, 16384)
    assert triples[64 - 1] == (8192, 8192, 29568)
    assert sum(6 * m * n * k for m, n, k in triples) == pytest.approx(1.773e15, rel=1e-3)
    assert 32768 * 106496 > 2**31
    assert len(core()) == len(CORE) == 12


@pytest.mark.parametrize(("recipe", "kind"), [(r, k) for r, o in OPERATORS.items() for k in o.input_kinds])
def test_right_answers_pass_and_wrong_ones_fail(recipe, kind):
    operator = OPERATORS[recipe]
    workload = operator.suites["primus-core"].check[0]
    inputs = operator.make_inputs(workload, 3, kind)
    references = operator.oracle(workload, inputs)
    reference = next(iter(references.values()))
    dtypes = {spec.name: spec.dtype for spec in operator.outputs(workload)}
    right = {n: a.astype("bfloat16") if dtypes[n] == "bfloat16" else a for n, a in reference.items()}
    assert failure(read_gates(operator.gates, right, references, kind), operator.gates) is None
    wrong = dict(right)
    if "a_q" in inputs:
        ignored = {**inputs, "a_s": np.full_like(inputs["a_s"], np.median(inputs["a_s"]))}
        twin = operator.oracle(workload, ignored)["exact"]
        wrong["c"] = twin["c"].astype("bfloat16")
    else:
        flipped = right["q"].view(np.uint8).copy()
        flipped[-1, -1] ^= 1
        wrong["q"] = flipped.view(right["q"].dtype)
    assert failure(read_gates(operator.gates, wrong, references, kind), operator.gates) is not None


def test_integers_sum_exactly_in_the_fourteen_bits_of_a_tensor_core():
    """Seeds 103 and 104: a row without its largest integer once had codes whose sums lose bits on a GPU."""
    operator = OPERATORS["gemm_nt"]
    for seed in (0, 103, 104):
        x = operator.make_inputs(Workload("even", {"M": 512, "N": 256, "K": 1024}), seed, "integers")
        codes = [x[name].astype(np.float64).reshape(-1, 8, 128) for name in ("a_q", "b_q")]
        a, b = (of / (np.abs(of).max(axis=2, keepdims=True) / 14) for of in codes)
        assert (np.abs(codes[0]).max(axis=2) == 448).all()
        assert not (a % 1).any() and not (b % 1).any()
        for end in range(32, 1025, 32):
            start = (end - 1) // 128
            sums = a[:, start, : end - 128 * start] @ b[:, start, : end - 128 * start].T
            assert np.abs(sums).max() < 2**14


def test_a_serving_layer_is_held_to_the_rate_of_fp8():
    """Its x is bf16; it multiplies in fp8. By the bf16 peak a good layer would be implausible."""
    workload = Workload("w", {"M": 8192, "N": 4096, "K": 4096})
    gpu, layer = load_target("h200").gpu, operators()["linear"]
    assert floors(layer, workload, gpu)["mxu"] == layer.flops(workload) / gpu.peak("f8")
