"""The fused FP8 GEMM with copies written out: right whatever comes first, and wrong where a copy is not waited for."""

import types

import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from tilewright.evolve.space.space import Space
from tilewright.fitness.gates import read_gates
from tilewright.seeds.catalogue import load_operator
from tilewright.seeds.operator import Workload

SIX_TILES = Workload("768x512x256", {"M": 768, "N": 512, "K": 256})
STRICT = pltpu.InterpretParams(
    out_of_bounds_reads="raise", uninitialized_memory="nan", detect_races=True, dma_execution_mode="on_wait"
)
BLOCKS = {"block_m": 256, "block_n": 256, "block_k": 512, "sub_m": 128, "sub_n": 256, "copies": "kernel"}
AHEAD = {"placement": "ahead", "dequant": "operands_bf16", "row_scale": "absmax"}
SCHEDULES = {
    "first_rows_ahead_of_need": {**AHEAD, "first_rows": 128, "skew": 1},
    "row_loop_weights_moved": {**AHEAD, "row_unroll": 1, "first_rows": 128, "weights": "moved"},
    "cached": {"placement": "cached", "first_rows": 128, "weights": "moved"},
    "cached_sums_in_vmem": {"placement": "cached", "accumulate": "ref", "order": "groups"},
}


def product(source, params, operands):
    module = types.ModuleType("kernel")
    exec(compile(source, "kernel.py", "exec"), module.__dict__)
    with pltpu.force_tpu_interpret_mode(STRICT):
        return np.asarray(jax.jit(module.build(params))(*operands))


def exact(workload, change, wrong=lambda source: source):
    """The reading of the exact gate on one draw of inputs whose scales differ from block to block."""
    operator = load_operator("gemm_fp8_fused/g128")
    source = operator.kernels["streamed"].source
    space = Space.from_source(source, [{**operator.constants, **workload.dims}])
    params = {**space.defaults, **BLOCKS, **change}
    assert not space.violations(params)
    inputs = operator.make_inputs(workload, 3, "spread")
    operands = [inputs[spec.name] for spec in operator.inputs(workload)]
    outputs = {"c": product(wrong(source), params, operands)}
    references = operator.oracle(workload, inputs)
    return next(r for r in read_gates(operator.gates, outputs, references, "spread") if r.gate == "exact")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_way_to_copy_passes_the_exact_gate(schedule):
    assert exact(SIX_TILES, SCHEDULES[schedule]).passed


@pytest.mark.parametrize(
    ("schedule", "awaited"),
    [
        ("first_rows_ahead_of_need", "rows_copy(i, number).wait()"),
        ("row_loop_weights_moved", "wait(weight_copies(i, j))"),
    ],
)
def test_a_copy_that_is_not_waited_for_shows(schedule, awaited):
    def wrong(source):
        assert source.count(awaited) == 1
        return source.replace(awaited, "None")

    assert not exact(SIX_TILES, SCHEDULES[schedule], wrong).passed
