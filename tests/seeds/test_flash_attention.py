"""Attention on a TPU: every schedule agrees with float64, wrong twins fail, floors name the unit."""

import functools

import pytest

from testkit.seeds import pallas_interpreter
from testkit.seeds.pallas_interpreter import edited
from tilewright.fitness.chips import CHIPS
from tilewright.fitness.score import floors
from tilewright.seeds.flash_attention.operator import INPUT_KINDS, operators
from tilewright.seeds.operator import Workload


@functools.cache
def family():
    return operators()


def shape(heads=2, shared=1, rows=256, keys=512, size=128):
    return Workload("w", {"H": heads, "KV": shared, "S": rows, "T": keys, "D": size})


def readings(name, params, *, kernel="schedule", kind="randn", workload=None, edit=None, inputs=None):
    """Gates on one kernel of the operator, by gate."""
    source = family()[name].kernels[kernel].source
    source = edited(source, *edit) if edit else source
    return pallas_interpreter.readings(
        family()[name], workload or shape(), source, params, kind, inputs=inputs, how=True
    )


SMALL = {"block_q": 128, "block_k": 128, "sub_q": 128, "sub_k": 128}
WHOLE = {"walk": "whole", "block_q": 256, "sub_q": 128, "sub_k": 128}
SCHEDULES = {
    "grid": {**SMALL, "block_q": 256, "block_k": 256, "mask": "edge", "stats": "lanes"},
    "loop": {**SMALL, "walk": "loop", "block_q": 256, "unroll": 2, "exponent": "exp2", "heads": 2},
    "whole": {**WHOLE, "mask": "edge", "row_sum": "matrix", "order": "keys"},
}


@pytest.mark.parametrize(("number", "schedule"), list(enumerate(SCHEDULES)))
def test_schedules_agree_with_the_oracle(number, schedule):
    name = ("full", "causal")[number > 0]
    found = readings(name, SCHEDULES[schedule], kind=INPUT_KINDS[number % 4])
    assert found["exact"].passed, (name, found)


TWINS = {
    "sees_the_next_key": ("column - row <= edge", "column - row <= edge + 1", "randn"),
    "no_maximum": ("now = jnp.maximum(top,", "now = jnp.minimum(0.0 * top,", "shifted"),
    "sums_not_scaled_anew": ("total * shrink +", "total +", "rising"),
}


@pytest.mark.parametrize("twin", TWINS)
def test_wrong_twins_fail(twin):
    before, after, kind = TWINS[twin]
    workload = shape(heads=1, rows=128, keys=256)
    found = readings("causal", SMALL, edit=(before, after), kind=kind, workload=workload)
    assert not found["exact"].passed


STORED = "                top[...] = now\n"


@pytest.mark.parametrize(
    ("seed", "kind", "edit"),
    [
        (7, "shifted", ("acc[...] * shrink + jnp.dot", "(acc[...] * shrink).astype(jnp.bfloat16) + jnp.dot")),
        (
            0,
            "shifted",
            (STORED, STORED + "                total[...] = total[...].astype(jnp.bfloat16).astype(jnp.float32)\n"),
        ),
        (1, "peaked", ("(acc[...] / total[...])", "(acc[...] / total[...] * 1.002)")),
        (1, "peaked", ("s = s * scale\n", "s = jnp.minimum(s * scale, 1e6)\n")),
    ],
)
def test_sums_of_sixteen_bits_leaning_answers_and_clipped_scores_fail(seed, kind, edit):
    workload = shape(1, 1, 128, 1024 if "total[...].astype" in edit[1] else 512)
    inputs = family()["full"].make_inputs(workload, seed, kind)
    for change in (None, edit):
        found = readings("full", {}, kernel="plain", kind=kind, workload=workload, edit=change, inputs=inputs)
        assert all(gate.passed for gate in found.values()) is (change is None), found


def test_work_and_floors():
    operator, workload = family()["causal"], shape(heads=2, shared=1, rows=2, keys=3, size=128)
    assert operator.visible(workload) == 2 + 3
    assert operator.flops(workload) == 2 * 4 * 128 * 5
    assert operator.bytes(workload) == 2 * 2 * 128 * (2 * 2 + 3)
    found = floors(operator, shape(32, 32, 2048, 2048), CHIPS["v6e"])
    assert found["eup"] == pytest.approx(found["mxu"], rel=0.01)
    assert found["eup"] == pytest.approx(32 * 2048 * 2049 / 2 / 1024 / CHIPS["v6e"].clock)
    assert found["vector"] == pytest.approx(found["eup"] * 2 / 4)
    with pytest.raises(ValueError, match="multiple of KV"):
        operator.inputs(shape(3, 2))
    with pytest.raises(ValueError, match="randn, peaked, rising, shifted"):
        operator.make_inputs(shape(), 0, "ones")
