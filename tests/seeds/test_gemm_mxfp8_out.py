"""FP8 products with MXFP8 outputs: the fused seed within its rule; the logarithm and a detour by bf16 refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.evolve.space.space import Space
from tilewright.fitness.gates import failure, read_gates
from tilewright.seeds.gemm_mxfp8_out import hopper
from tilewright.seeds.gemm_mxfp8_out.operands import INPUT_KINDS, Sums, quantised
from tilewright.seeds.gemm_mxfp8_out.operator import operators
from tilewright.seeds.gemm_mxfp8_out.shapes import MOTIF_GROUPED, rows_of_groups
from tilewright.seeds.operator import Workload

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


def test_published_groups_are_suites() -> None:
    masked = {name for name, operator in OPERATORS.items() if "deepgemm-masked" in operator.suites}
    assert masked == {"masked32x192", "masked6x1024", "masked32x20", "masked6x20"}
    assert [w.dims["M"] for w in OPERATORS["masked6x20"].suites["deepgemm-masked"].workloads] == [4096] * 4
    deep = [w for n in (4, 8, 16) for w in OPERATORS[f"kgrouped{n}"].suites["k-grouped"].workloads]
    assert len(deep) == 6 and all(w.dims["K"] % 128 == 0 for w in deep)
    for name in ("masked6x20", "kgrouped8"):
        (workload, *_) = next(iter(OPERATORS[name].suites.values())).check
        kinds = [OPERATORS[name].make_inputs(workload, 3, kind) for kind in ("randn", "edges")]
        assert all(0 in made["count"] for made in kinds), "an empty group is always there"
        assert all(made["count"].sum() * 128 <= workload.dims["K"] for made in kinds if "k" in name[:1])


def test_rows_past_a_count_may_hold_anything() -> None:
    operator = OPERATORS["masked6x20"]
    workload = Workload("w", {"M": 40, "N": 64, "K": 128})
    inputs = operator.make_inputs(workload, 2, "randn")
    references = operator.oracle(workload, inputs)
    outputs = {name: array.copy() for name, array in references["mx"].items()}
    for g, rows in enumerate(inputs["count"]):
        outputs["d_s"][g, rows:] = 77
    assert all(reading.passed for reading in read_gates(operator.gates, outputs, references, "randn"))
    outputs["d_s"][int(inputs["count"].argmax()), 0] ^= 1
    assert failure(read_gates(operator.gates, outputs, references, "randn"), operator.gates) is not None


def test_an_instruction_of_hopper_cuts_what_it_adds() -> None:
    """1 and 2^-13 are both held, 2^-14 beside 1 is not, and a sum keeps 13 places: term by term, by hand."""
    one, small = np.float32(1.0), np.float32(2.0**-6)

    def summed(*terms: tuple[float, float]) -> float:
        a, b = np.zeros((1, 128), np.float32), np.zeros((1, 128), np.float32)
        a[0, : len(terms)], b[0, : len(terms)] = zip(*terms, strict=True)
        return float(hopper.product(a, np.ones((1, 1), np.float32), b, np.ones((1, 1), np.float32))[0, 0])

    assert summed((one, one), (small, small * 2**-1)) == 1 + 2.0**-13
    assert summed((one, one), (small, small * 2**-2)) == 1.0
    assert summed((one, one), (-small, small * 2**-2)) == 1.0, "cut towards zero, not down"
    assert summed((256.0, 256.0), (-256.0, 256.0), (1.0, 1.0)) == 0.0, "lost before the big ones cancel"
    assert summed(*[(1.0, 1.0)] * 3, (small, small * 2**-1)) == 3.0, "the sum 3 + 2^-13 needs 14 places"
    later = [(0.0, 0.0)] * 31
    assert summed((one, one), *later, (small, small * 2**-2)) == 1.0, "the accumulator is one of the terms"


@pytest.mark.parametrize("recipe", ["normal", "grouped4", "masked6x20", "kgrouped4"])
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_the_gate_allows_hoppers_sums_and_refuses_a_detour_by_bf16(recipe: str, kind: str) -> None:
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
def test_a_search_cannot_turn_a_seed_into_its_baseline(recipe: str) -> None:
    operator = OPERATORS[recipe]
    for seed in operator.kernels.values():
        space = Space.from_source(seed.source, [{**operator.constants, "M": 4096, "N": 7168, "K": 2048}])
        point = {**space.defaults, **seed.overrides}
        if "fused" in point:
            assert bool(space.violations({**point, "fused": 0})) != seed.baseline
