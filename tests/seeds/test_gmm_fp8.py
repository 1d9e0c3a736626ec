"""Grouped products over ragged groups: right in every phase and recipe, wrong twins fail, timed as their groups say."""

import functools

import ml_dtypes
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from testkit.seeds import pallas_interpreter
from testkit.seeds.pallas_interpreter import edited
from tilewright.evolve.space.space import Space
from tilewright.fitness.evaluation import Verdict
from tilewright.fitness.gates import read_gates
from tilewright.fitness.targets import load_target
from tilewright.seeds.gmm_fp8.operator import _over_rows, operators
from tilewright.seeds.operator import KnownOperands, SeedKernel, Suite, Workload
from tilewright.workers.cascade.modelled import ModelledCascade

STRICT = pltpu.InterpretParams(detect_races=True, out_of_bounds_reads="raise", uninitialized_memory="nan")
ROWS = {"block_m": 128, "block_n": 256, "block_k": 512, "sub_m": 128, "sub_n": 256}
COLUMNS = {"block_m": 512, "block_n": 128, "block_k": 256, "sub_k": 128, "sub_n": 128}
HARD = {
    "empty_and_tiny": (0, 1, 300, 0, 7, 204),
    "one_has_all": (0, 0, 512, 0, 0, 0),
    "on_borders": (128, 128, 0, 128, 0, 128),
    "off_borders": (127, 1, 129, 3, 251, 1),
}


@functools.cache
def family():
    return operators()


def shape(phase, m=512, n=256, k=512, groups=6):
    if phase == "dlhs":
        n, k = k, n
    contracted = {"fwd": (k, n), "dlhs": (n, k), "tgmm": (m, n)}[phase]
    dims = {"M": m, "N": n, "K": k, "G": groups, "C": contracted[0], "F": contracted[1]}
    return Workload(f"{phase}/{m}x{n}x{k}/{groups}", dims)


def readings(name, params, *, kind="randn", sizes=None, edit=None, workload=None):
    """Gates on one kernel of the operator, by gate. Fails on a race."""
    operator = family()[name]
    workload = workload or shape(operator.recipe.phase)
    inputs = operator.make_inputs(workload, 5, kind)
    if sizes is not None:
        inputs["sizes"] = np.array(sizes, dtype=np.int32)
    source = operator.kernels["naive"].source
    source = edited(source, *edit) if edit else source
    params = {**(ROWS if operator.recipe.rows else COLUMNS), **params}
    found = pallas_interpreter.readings(operator, workload, source, params, kind, inputs=inputs, how=STRICT)
    assert not interpret_pallas_call.races.races_found
    return found


@pytest.mark.parametrize(("factor", "passes"), [(2.0**-22, True), (2.0**-8, False)])
def test_codes_that_turn_near_ties_of_an_outlying_row_are_no_fault(factor, passes):
    operator, workload = family()["fwd-g128"], shape("fwd", 256, 512, 1024, 3)
    inputs = operator.make_inputs(workload, 101, "outliers")
    inputs["lhs"][44] *= ml_dtypes.bfloat16(1024)
    references = operator.oracle(workload, inputs)
    rows = inputs["lhs"].astype(np.float32).reshape(256, -1, 128)
    scale = np.abs(rows).max(axis=-1, keepdims=True) / np.float32(448)
    codes = (rows / scale * np.float32(1 + factor)).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    made = _over_rows((codes * scale).reshape(256, -1), operator._matrices(inputs), inputs["sizes"])
    found = read_gates(operator.gates, {"out": made.astype(ml_dtypes.bfloat16)}, references, "outliers")
    assert all(reading.passed for reading in found) is passes
    assert found[1].value < 45 and found[1].bar < 40


VISITS = {"order": "visits", "bodies": "split"}
KEPT = {"placement": "cached", "narrow": 128}
SCHEDULES = [
    ("fwd-g512", "one_has_all", {**VISITS, "copies": "kernel", "buffers": 3, "block_k": 512}),
    (
        "fwd-g128",
        "off_borders",
        {**VISITS, "bodies": "shared", "placement": "cached", "scaling": "chained", "arithmetic": "bf16"},
    ),
    ("dlhs-g128", "off_borders", {"block_k": 256, "bodies": "split", "dequant": "operands", "arithmetic": "bf16"}),
    ("tgmm-g512", "empty_and_tiny", {**KEPT, "sums": "direct"}),
]
SLOWER = pytest.param("tgmm-g128", "off_borders", {"dequant": "partial", "block_m": 128}, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "groups", "params"), [*SCHEDULES, SLOWER])
def test_schedules_are_right_on_hard_groups(name, groups, params):
    found = readings(name, params, sizes=HARD[groups])
    assert all(reading.passed for reading in found.values()), found


TWINS = {
    "scale_of_the_neighbouring_group": (
        "fwd-g128",
        (
            "lambda tile, group, n, k: (group, k, 0, n)",
            "lambda tile, group, n, k: (jnp.maximum(group - 1, 0), k, 0, n)",
        ),
    ),
    "rows_leak_across_the_border": ("fwd-g128", ('(row >= refs["low"])', '(row >= refs["low"] - 1)')),
    "sums_take_rows_of_other_groups": ("tgmm-g128", ('(row < refs["high"])', '(row <= refs["high"])')),
    "empty_groups_keep_what_was_there": ("tgmm-g128", ("acc[...] = jnp.zeros_like(acc)", "acc[...] = acc[...]")),
    "scales_of_half_the_rows": (
        "tgmm-g128",
        ("jnp.max(jnp.abs(source), axis=0", "jnp.max(jnp.abs(source[:64]), axis=0"),
    ),
}


@pytest.mark.parametrize("twin", TWINS)
def test_wrong_twins_fail_the_exact_gate(twin):
    name, edit = TWINS[twin]
    workload = shape(family()[name].recipe.phase, m=256, k=256)
    found = readings(name, {"block_m": 128}, sizes=(63, 1, 65, 0, 125, 2), edit=edit, workload=workload)
    assert not found["exact"].passed


def judged(name, source, params, *, ragged=0):
    """One evaluation on a small shape, timed without gates."""
    operator = family()[name]
    workload = shape(operator.recipe.phase)
    workload = Workload(workload.id, {**workload.dims, "ragged": ragged})
    assert isinstance(operator, KnownOperands)
    cascade = ModelledCascade(operator, load_target("tpu7x"), Suite("small", (workload,), (workload,)))
    defaults = Space.from_source(source, [{**operator.constants, **workload.dims}]).defaults
    baseline = SeedKernel("timed", source, baseline=True)
    whole = {**defaults, **ROWS, **params}
    return operator, workload, cascade.evaluate("g", source, whole, seed=1, baseline=baseline)


def test_a_kernel_is_costed_with_the_groups_of_its_workload():
    operator, workload, found = judged(
        "fwd-g128", family()["fwd-g128"].kernels["naive"].source, {"order": "visits"}, ragged=25
    )
    assert found.verdict is Verdict.OK, found.reason
    sizes = operator.known(workload)["sizes"]
    filled = np.count_nonzero(sizes)
    assert filled < len(sizes)
    per_group = 512 * 256 + 4 * 4 * 256
    rows = 2 * 512 * (512 + 256)
    tables = 4 * 512  # four tables, fetched 512 bytes at least
    assert found.workloads[0].diagnosis["dma_bytes"] == rows + filled * per_group + tables


IN_A_MAP = (
    "else (first, second)\n            if plan",
    "else (first, second)\n            group[0] = 1\n            if plan",
)
IN_THE_BODY = ('    refs["k"], refs["low"]', '    group[0] = 1\n    refs["k"], refs["low"]')


@pytest.mark.parametrize(("before", "after"), [IN_A_MAP, IN_THE_BODY], ids=["in a map", "in the body"])
def test_a_candidate_cannot_choose_its_groups(before, after):
    """A table that the kernel writes itself does not place its blocks: what is read from it there is data."""
    source = family()["fwd-g128"].kernels["naive"].source
    assert before in source
    *_, found = judged("fwd-g128", source.replace(before, after), {})
    assert found.verdict is Verdict.IMPLAUSIBLE and "depends on data" in found.reason, found.reason
