"""RMSNorm and SwiGLU with their cast: the oracle is the unfused chain, seeds pass their gates, wrong twins do not."""

import numpy as np
import pytest

from testkit.seeds.triton_station import objection
from tilewright.seeds.fused_quant.operator import operators
from tilewright.seeds.gemm_fp8_blockwise.contract import dequantise_rows
from tilewright.seeds.operator import Workload

EVERY = operators()
RAGGED = Workload("w", {"M": 37, "K": 640})


@pytest.mark.parametrize("recipe", EVERY)
def test_the_oracle_is_the_function_under_the_recipes_noise(recipe):
    operator = EVERY[recipe]
    inputs = operator.make_inputs(RAGGED, 3, "outliers")
    answers = operator.oracle(RAGGED, inputs)
    found = {**answers["codes"], **answers["scales"]}
    assert [s.shape for s in operator.outputs(RAGGED)] == [found["q"].shape, found["s"].shape]
    x = inputs["x"].astype(np.float64)
    if operator.gated:
        gate, up = x[:, :640], x[:, 640:]
        wanted = gate * 0.5 * (1 + np.tanh(0.5 * gate)) * up
    else:
        wanted = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * inputs["g"].astype(np.float64)
    error = dequantise_rows(found["q"], found["s"]) - wanted
    assert 0 < np.linalg.norm(error) < 0.04 * np.linalg.norm(wanted), "what e4m3 leaves"


@pytest.mark.parametrize("recipe", EVERY)
@pytest.mark.parametrize("kind", ["outliers", "zero_blocks", "faint"])
def test_seeds_pass_in_the_interpreter(recipe, kind, station):
    operator = EVERY[recipe]
    for name in operator.kernels if kind == "faint" else (next(iter(operator.kernels)),):
        assert objection(station, operator, RAGGED, kind, kernel=name) is None, name


@pytest.mark.parametrize(
    ("recipe", "old", "new"),
    [
        ("rmsnorm_1x128", "squares / K + 1e-6", "squares / K + 1e-2"),
        ("rmsnorm_1x128", ".to(tl.bfloat16).to(tl.float32)", ""),
        ("rmsnorm_1x128", "squares += tl.sum(x * x, axis=1)", "squares = tl.sum(x * x, axis=1)"),
        ("rmsnorm_1x128", "tl.store(s_at, tl.div_rn(1.0, scale)", "tl.store(s_at, scale"),
        ("rmsnorm_1x128", "tl.store(s_at, tl.div_rn(1.0, scale)", "tl.store(s_at, tl.div_rn(1.003, scale)"),
        ("swiglu_1x128", "tl.exp(-gate)", "tl.exp(gate)"),
        ("swiglu_1x128", "tl.maximum(tl.max(tl.abs(y), axis=1), 1e-4)", "tl.maximum(tl.max(y, axis=1), 1e-4)"),
    ],
)
def test_wrong_twins_are_refused(recipe, old, new, station):
    seed = next(iter(EVERY[recipe].kernels.values())).source
    assert old in seed
    assert objection(station, EVERY[recipe], RAGGED, "faint", source=seed.replace(old, new)) is not None
