"""Rates, means, rooflines and floors, worked out by hand."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from tilewright.fitness import score
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.gpus import GPUS
from tilewright.seeds.operator import TensorSpec, Workload

CHIP = CHIPS["tpu7x"]
DIMS = Workload("w", {"M": 4, "N": 8, "K": 16})


def operator(flops=1000, size=500, inputs=("bfloat16",), constants=(), **more):
    specs = tuple(TensorSpec(str(n), (1,), dtype) for n, dtype in enumerate(inputs))
    return SimpleNamespace(
        flops=lambda workload: flops,
        bytes=lambda workload: size,
        inputs=lambda workload: specs,
        constants=dict(constants),
        **more,
    )


def test_a_geometric_mean_is_of_positive_numbers():
    assert score.geometric_mean([1.0, 100.0]) == pytest.approx(10.0)
    assert score.geometric_mean([2.0, 4.0, 8.0]) == pytest.approx(4.0)
    assert score.geometric_mean(iter([5.0])) == pytest.approx(5.0)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"needs positive numbers, not {bad}"):
            score.geometric_mean([1.0, bad])
    with pytest.raises(ValueError, match="of nothing"):
        score.geometric_mean([])


def test_rates_are_per_second_in_their_unit():
    assert score.tflops(6 * 10**12, 2.0) == 3.0 and score.gbytes(6 * 10**9, 2.0) == 3.0
    assert score.tflops(1, 4.0) == 0.25e-12 and score.gbytes(1, 4.0) == 0.25e-9
    bound, free = operator(6 * 10**12, 4 * 10**9, memory_bound=True), operator(6 * 10**12, memory_bound=False)
    assert (score.rate_unit(bound), score.rate(bound, DIMS, 2.0)) == ("GB/s", 2.0)
    for plain in (free, operator(6 * 10**12)):
        assert (score.rate_unit(plain), score.rate(plain, DIMS, 2.0)) == ("TFLOP/s", 3.0)
        assert score.bytes_rank(plain) is False
    assert score.bytes_rank(bound) is True


@pytest.mark.parametrize(
    ("dtypes", "kind"),
    [
        (["bfloat16"], "bf16"),
        (["float8_e4m3fn", "bfloat16"], "f8"),
        (["bfloat16", "float8_e5m2"], "f8"),
        (["float8_e4m3b11fnuz"], "f8"),
        (["float8_e8m0fnu", "float32"], "bf16"),
        (["int8", "bfloat16"], "s8"),
        (["int8", "float8_e5m2"], "f8"),
        (["uint8"], "bf16"),
    ],
)
def test_the_matrix_rate_is_that_of_the_narrowest_operand(dtypes, kind):
    specs = operator(inputs=dtypes).inputs(DIMS)
    assert score.operand_kind(specs) == kind
    assert score.matrix_kind(operator(), specs) == score.matrix_kind(operator(matrix_kind=""), specs) == kind
    assert score.matrix_kind(operator(matrix_kind="f4"), specs) == "f4"


def test_a_roofline_is_the_slower_of_two_roads():
    part = dataclasses.replace(CHIP, peaks={"bf16": 100.0, "f8": 200.0}, hbm=10.0)
    assert score.roofline_seconds(1000, 50, part, "bf16") == 10.0
    assert score.roofline_seconds(1000, 50, part, "f8") == 5.0
    assert score.roofline_seconds(1000, 70, part, "f8") == 7.0
    assert score.roofline_seconds(1000, 70, part, "other") == 10.0
    assert score.roofline_seconds(1050, 1, part, "f8") == 5.25 and score.roofline_seconds(1, 75, part, "f8") == 7.5


def test_products_are_those_of_m_n_and_k():
    assert score.product_flops(operator(flops=10**9), DIMS) == 2 * 4 * 8 * 16
    assert score.product_flops(operator(flops=1000), DIMS) == 1000, "never more than the operator's own"
    for names in ("MN", "MK", "NK"):
        assert score.product_flops(operator(), Workload("w", dict.fromkeys(names, 8))) == 0
    batch = Workload("w", {**DIMS.dims, "B": 3})
    assert score.product_flops(operator(flops=10**9), batch) == 1024
    for own, least in ((0, 0), (500, 500), (10**9, 1024)):
        taken = operator(flops=10**9, products=lambda _, own=own: own)
        assert score.product_flops(taken, DIMS) == least, "a function that was taken in names its own products"


def test_floors_are_by_unit():
    part = dataclasses.replace(
        CHIP, peaks={"bf16": 100.0, "f8": 200.0}, hbm=10.0, clock=2.0, slots={"valu": 4, "eup": 1}
    )
    assert score.floors(operator(), DIMS, part) == {"mxu": 10.0, "hbm": 50.0}
    grouped = operator(inputs=("float8_e5m2",), constants={"group": 8})
    found = score.floors(grouped, DIMS, part)
    vector = 4 * 8 * 16 / 8 / (4 * 1024 * 2.0)
    assert found == {"mxu": 5.0, "hbm": 50.0, "vector": vector, "vector_two_ops": 2 * vector}
    for names in ("MN", "MK", "NK"):
        assert "vector" not in score.floors(grouped, Workload("w", dict.fromkeys(names, 8)), part)
    assert "vector" not in score.floors(operator(constants={"group": 0}), DIMS, part)
    gpu = GPUS["h200"]
    assert score.floors(grouped, DIMS, gpu).keys() == {"mxu", "hbm"}
    work = operator(lane_work=lambda workload: {"valu": 8192 * 3.0, "eup": 2048.0 * 1.5})
    assert score.floors(work, DIMS, part) == {"mxu": 10.0, "hbm": 50.0, "vector": 3.0, "eup": 1.5}
    assert score.floors(work, DIMS, gpu).keys() == {"mxu", "hbm"}


def test_headroom_is_what_lies_between_the_first_seed_and_the_floor():
    def timed(**seconds):
        return [SimpleNamespace(workload=name, seconds=time) for name, time in seconds.items()]

    floors = {
        "a": {"mxu": 1.0, "hbm": 2.0, "vector_two_ops": 9.0},
        "b": {"mxu": 3.0},
        "c": {"hbm": 0.0},
        "d": {"mxu": 1.0},
    }
    rows = score.headroom(timed(a=6.0, b=3.0, c=1.0), timed(a=3.0, b=2.0, c=1.0, d=1.0, e=1.0), floors)
    assert rows == [score.Headroom("a", 6.0, 3.0, 2.0), score.Headroom("b", 3.0, 2.0, 3.0)]
    assert [(row.gain, row.left) for row in rows] == [(2.0, 1.5), (1.5, 1.0)]
    assert score.headroom(timed(a=4.0), timed(a=1.0), {"a": {"mxu": 0.5}})[0].floor == 0.5
