"""Rules on transfers, on the modelled target itself: what compiles there, and what only compiles after a rule."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tests.evolve.proposers.rewrite.test_sources import CORPUS
from tilewright.evolve.proposers.rewrite.proposer import offers, rewrite
from tilewright.fitness.evaluation import Evaluation, Verdict
from tilewright.fitness.targets import load_target
from tilewright.seeds.operator import SnrGate, Suite, TensorSpec, Workload
from tilewright.workers.cascade.modelled import ModelledCascade

SHAPE = Workload("256x256x128", {"M": 256, "N": 256, "K": 128})
PARAMS = {"rows": 128, "cols": 128}


class ScaledTiles:
    """C = (X . Y) times one scale for each 128 x 128 tile: x [256,128], y [128,256] bf16, s [2,2] f32."""

    name = "scaled_tiles/one"
    constants: dict[str, int] = {}  # noqa: RUF012
    gates = (SnrGate("exact", "exact", 45.0),)
    input_kinds = ("randn",)

    def inputs(self, workload, variant=None):
        operands = (TensorSpec("x", (256, 128), "bfloat16"), TensorSpec("y", (128, 256), "bfloat16"))
        return (*operands, TensorSpec("s", (2, 2), "float32"))

    def outputs(self, workload):
        return (TensorSpec("c", (256, 256), "bfloat16"),)

    def make_inputs(self, workload, seed, kind):
        rng = np.random.default_rng(seed)
        x, y = rng.standard_normal((256, 128)), rng.standard_normal((128, 256))
        scales = rng.random((2, 2), dtype=np.float32) + np.float32(0.5)
        return {"x": x.astype(ml_dtypes.bfloat16), "y": y.astype(ml_dtypes.bfloat16), "s": scales}

    def oracle(self, workload, inputs):
        product = inputs["x"].astype(np.float64) @ inputs["y"].astype(np.float64)
        return {"exact": {"c": product * np.kron(inputs["s"].astype(np.float64), np.ones((128, 128)))}}

    def flops(self, workload):
        return 2 * 256 * 256 * 128

    def bytes(self, workload):
        return 2 * (2 * 256 * 128 + 256 * 256) + 16


@pytest.fixture(scope="module")
def judge():
    cascade = ModelledCascade(ScaledTiles(), load_target("tpu7x"), Suite("one", (SHAPE,), (SHAPE,)))

    def run(source: str) -> Evaluation:
        return cascade.evaluate("g", source, PARAMS, seed=1, best=math.inf)

    return run


def applied(source: str, name: str, site: str = "") -> str:
    rule, place = next(pair for pair in offers(source) if pair[0].name == name and site in pair[1].key)
    child = rewrite(source, PARAMS, rule, place, np.random.default_rng(0))
    assert child is not None
    return child.source


@pytest.mark.slow
def test_a_table_of_scalars_compiles_once_it_is_in_scalar_memory(judge) -> None:
    plain = (CORPUS / "pallas" / "block_scaled.py").read_text()
    refused = judge(plain)
    assert refused.verdict is Verdict.COMPILE_ERROR and "E2003" in refused.reason
    scalar = applied(plain, "pallas_scalar_input_in_smem")
    assert judge(scalar).verdict is Verdict.OK
    for rule, site in (("pallas_double_buffered_copy", "left"), ("pallas_emit_pipeline", "")):
        found = judge(applied(scalar, rule, site))
        assert found.verdict is Verdict.OK, (rule, found.reason)
