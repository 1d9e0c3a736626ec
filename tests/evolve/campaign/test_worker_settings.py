"""How many workers a campaign gets that names no number."""

import pytest

from tilewright.evolve.campaign import preparation
from tilewright.evolve.campaign.config import parse_config
from tilewright.evolve.campaign.resolve import resolve

CONFIG = {
    "name": "counted",
    "operator": "gemm_fp8_blockwise/gemm_nt",
    "suite": "primus-core",
    "seeds": ["gluon_ws"],
    "budget": {"evaluations": 4},
}


@pytest.mark.parametrize(
    ("target", "gpus", "processors", "asked", "count"),
    [("h200", 1, 64, None, 24), ("h200", 2, 64, None, 48), ("h200", 1, 4, None, 4), ("h200", 1, 64, 40, 40),
     ("sm_100", 0, 64, None, 64)],
)  # fmt: skip
def test_one_a_core_and_so_many_a_gpu(monkeypatch, target, gpus, processors, asked, count):
    monkeypatch.setattr(preparation.os, "sched_getaffinity", lambda pid: set(range(processors)))
    monkeypatch.setattr(preparation.triton_toolchain, "gpu_count", lambda: gpus)
    workers = {} if asked is None else {"workers": {"count": asked}}
    resolved = resolve(parse_config({**CONFIG, "target": target, **workers}, "a test"))
    assert preparation.pool_settings(resolved).count == count
