"""FP8 products with MXFP8 outputs: the fused seed within its rule; the logarithm and a detour by bf16 refused."""

from __future__ import annotations

import numpy as np
import pytest

from evolve.space import Space
from fitness.gates import failure, read_gates
from seeds.gemm_mxfp8_out.operator import operators
from seeds.gemm_mxfp8_out.shapes import MOTIF_GROUPED, rows_of_groups
from seeds.operator import Operator, Workload
from seeds.sampled import Elements, Sampled

OPERATORS = operators()


class Given:
    """Elements, some operands of which are what they are said to be."""

    def __init__(self, elements: Elements, known: dict[str, np.ndarray]) -> None:
        self._elements, self._known = elements, known

    def at(self, operand: str, *axes: np.ndarray) -> np.ndarray:
        if operand in self._known:
            return self._known[operand][np.ix_(*axes)]
        return self._elements.at(operand, *axes)


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


@pytest.mark.parametrize("recipe", ["normal", "grouped4", "masked6x20", "kgrouped4"])
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
    if "count" in whole:
        whole["count"] = np.array([0, 1, *[0] * (len(whole["count"]) - 2)], np.int32)
        elements = Given(elements, {"count": whole["count"]})
    right = operator.oracle(workload, whole)["mx"]
    sample = operator.sample(workload, elements, np.random.default_rng(2))
    for name, wanted in sample.references["mx"].items():
        found = right[name][np.ix_(*sample.where[name])]
        assert (found.view(np.uint8) == wanted.view(np.uint8)).mean() > 0.999


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
