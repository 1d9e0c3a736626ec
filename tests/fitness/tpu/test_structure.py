"""What a compiled module may contain, each rule to its edge and in its words."""

import dataclasses

import pytest

from tilewright.fitness.tpu import structure

KERNEL = {
    "grid": [2, 2],
    "signature": [],
    "data_branches": 0,
    "data_loops": 0,
    "while_loops": 0,
    "manual_dmas": 0,
    "loads_in_index_maps": 0,
    "constant_bytes": 0,
    "matmul_flops": 100,
}
FACTS = structure.ModuleFacts("0" * 16, {"stablehlo.custom_call": 1, "func.return": 1}, [], 0, [], [], [KERNEL])
ROOM = 64 * 1024
OUTSIDE = "work outside the Pallas kernel: "
TRIPS = "a loop inside the kernel has a trip count that is not known before the run"


def having(**change):
    return dataclasses.replace(FACTS, **change)


def inside(**change):
    return {"kernels": [KERNEL, {**KERNEL, **change}]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"operations": dict.fromkeys(structure.SHAPE_OPERATIONS, 1)}, None),
        ({"operations": {}}, None),
        ({"kernels": []}, "no Pallas kernel is left in the compiled module"),
        ({"kernels": [KERNEL] * 8}, None),
        ({"kernels": [KERNEL] * 9}, "9 Pallas kernels in one module, at most 8 are allowed"),
        (
            {"operations": {"stablehlo.while": 1}},
            "an HLO loop around the kernel: the simulator would count its body once",
        ),
        ({"operations": {"stablehlo.dot_general": 1}}, OUTSIDE + "stablehlo.dot_general"),
        ({"operations": dict.fromkeys("edcba", 1)}, OUTSIDE + "a, b, c, d"),
        ({"operations": {"stablehlo.add": 0, "func.return": 1}}, OUTSIDE + "stablehlo.add"),
        ({"foreign_calls": ["cublas", "cudnn"]}, "the module calls cublas, cudnn"),
        ({"constant_bytes": ROOM}, None),
        ({"constant_bytes": ROOM + 1}, "65537 bytes of constants in the module, at most 65536 are allowed"),
        ({"unused_operands": [1, 0]}, "no kernel reads operand w"),
        ({"unused_operands": [0]}, "no kernel reads operand a"),
        ({"outputs_not_from_kernels": [1, 2]}, "output d does not come from a kernel alone"),
        ({"outputs_not_from_kernels": [0]}, "output c does not come from a kernel alone"),
        (inside(grid=[]), None),
        (inside(grid=[4, 0]), "the grid 4 x 0 is empty: the kernel never runs"),
        (inside(grid=[4, 1]), None),
        (inside(grid=[4, -1]), "the grid has a size that is not known before the run"),
        (inside(grid=[-(1 << 31), 4]), "the grid has a size that is not known before the run"),
        (inside(data_branches=1), "a branch inside the kernel depends on data: the simulator would assume its outcome"),
        (inside(while_loops=1), TRIPS),
        (inside(data_loops=1), TRIPS),
        (inside(loads_in_index_maps=1), "a block's position depends on data: the simulator would assume it"),
        (inside(manual_dmas=1), None),
        (inside(constant_bytes=ROOM), None),
        (inside(constant_bytes=ROOM + 1), "65537 bytes of constants in the kernel, at most 65536 allowed"),
    ],
)
def test_each_rule_has_its_sentence(change, why):
    assert structure.objection(having(**change), ["a", "w", "v"], ["c", "d", "e"]) == why
    reversed_kernels = having(**change)
    reversed_kernels = dataclasses.replace(reversed_kernels, kernels=reversed_kernels.kernels[::-1])
    assert structure.objection(reversed_kernels, ["a", "w", "v"], ["c", "d", "e"]) == why


def test_what_a_taken_function_computes_beside_its_kernels_may_stand_there():
    own = having(operations={"stablehlo.add": 1, "stablehlo.while": 1, "func.return": 1})
    kept = structure.work_beside(own)
    assert kept == {"stablehlo.add", "stablehlo.while", structure.ALONE + own.around}
    assert structure.objection(own, ["a"], ["c"], kept) is None, "timed alone, all around them as it was"
    moved = dataclasses.replace(own, fingerprint="1" * 16 + own.fingerprint[16:])
    assert structure.objection(moved, ["a"], ["c"], kept).startswith("what XLA computes around")
    assert not structure.timed_alone(structure.work_beside(having(operations={"stablehlo.add": 1})))
    added = having(operations={"stablehlo.add": 1}, unused_operands=[0], outputs_not_from_kernels=[0])
    beside = frozenset({"stablehlo.add"})
    assert structure.objection(added, ["a"], ["c"], beside) is None
    more = beside | {"stablehlo.exponential"}
    assert structure.objection(added, ["a"], ["c"], more) is None, "less than may stand there"
    assert structure.objection(own, ["a"], ["c"], beside).startswith("an HLO loop")
    assert structure.objection(having(kernels=[]), [], [], beside).startswith("no Pallas kernel")
    other = having(operations={"stablehlo.add": 1, "stablehlo.dot_general": 1})
    assert structure.objection(other, [], [], beside) == OUTSIDE + "stablehlo.dot_general"


def test_products_are_counted_over_all_kernels():
    two = having(**inside(matmul_flops=50))
    assert FACTS.matmul_flops == 100 and two.matmul_flops == 150
    assert structure.missing_work(two, 150) is None and structure.missing_work(two, 0) is None
    assert structure.missing_work(two, 149) is None
    template = "the kernel's products are {} of the operator's FLOP"
    assert structure.missing_work(two, 300) == template.format("0.500")
    assert structure.missing_work(two, 151) == template.format("0.993")
    assert structure.missing_work(having(**inside(matmul_flops=-100)), 100) == template.format("0.000")
    assert structure.missing_work(having(kernels=[{**KERNEL, "matmul_flops": 0}]), 1) == template.format("0.000")


def test_what_cannot_be_followed_cannot_be_counted():
    reason = "the kernel's control flow cannot be followed, so its work cannot be counted"
    lost = having(**inside(matmul_flops=None))
    assert lost.matmul_flops is None and structure.missing_work(lost, 100) == reason
    assert structure.missing_work(lost, 1) == reason and structure.missing_work(lost, 0) is None
    product = having(**inside(matmul_flops=None, signature=["arith.addf", "tpu.matmul f32"]))
    assert product.signature == {"arith.addf", "tpu.matmul f32"}
    assert structure.missing_work(product, 0) == reason, "an operator without products has none"
    other = having(**inside(matmul_flops=None, signature=["arith.addf"]))
    assert structure.missing_work(other, 0) is None


def test_facts_are_those_of_the_frame():
    data = {**dataclasses.asdict(FACTS), "workload": "w"}
    assert structure.ModuleFacts.from_data(data) == FACTS
    for name in dataclasses.asdict(FACTS):
        with pytest.raises(KeyError, match=name):
            structure.ModuleFacts.from_data({k: v for k, v in data.items() if k != name})
