"""The fused FP8 GEMM with copies written out: right whatever comes first, and wrong where a copy is not waited for."""

import pytest
from jax.experimental.pallas import tpu as pltpu

from testkit.seeds.pallas_interpreter import readings
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
    "cached_sums_in_vmem": {"placement": "cached", "accumulate": "ref", "order": "groups"},
}


def exact(schedule, awaited=None):
    """The reading of the exact gate where scales differ from block to block; ``awaited`` is left out."""
    operator = load_operator("gemm_fp8_fused/g128")
    source = operator.kernels["streamed"].source
    if awaited is not None:
        assert source.count(awaited) == 1
        source = source.replace(awaited, "None")
    params = {**BLOCKS, **SCHEDULES[schedule]}
    return readings(operator, SIX_TILES, source, params, "spread", how=STRICT)["exact"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_way_to_copy_passes_the_exact_gate(schedule):
    assert exact(schedule).passed


@pytest.mark.parametrize(
    ("schedule", "awaited"),
    [
        ("first_rows_ahead_of_need", "rows_copy(i, number).wait()"),
        ("row_loop_weights_moved", "wait(weight_copies(i, j))"),
    ],
)
def test_a_copy_that_is_not_waited_for_shows(schedule, awaited):
    assert not exact(schedule, awaited).passed
