"""Descriptors in kernels that count in 64 bits."""

from __future__ import annotations

import numpy as np
import pytest

from testkit.rewriting import Case, Trial, run_checks
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.triton.descriptors import DescriptorLoad, DescriptorStore
from tilewright.fitness.dialect import check

WIDE = """
import torch
import triton
import triton.language as tl

SPACE = {"BT": (16, 32)}
DEFAULTS = {"BT": 16}
CONSTRAINTS = {}


@triton.jit
def double(x, y, T, D: tl.constexpr, BT: tl.constexpr):
    i_t = tl.program_id(0).to(tl.int64)
    o_t = i_t * BT + tl.arange(0, BT)
    o_d = tl.arange(0, D)
    m_x = (o_t < T)[:, None]
    b_x = tl.load(x + o_t[:, None] * D + o_d[None, :], mask=m_x, other=0.0)
    tl.store(y + o_t[:, None] * D + o_d[None, :], b_x * 2.0, mask=m_x)


def launch(inputs, params):
    x = inputs["x"]
    rows, n = x.shape
    y = torch.empty((rows, n), dtype=torch.float32)
    double[(triton.cdiv(rows, params["BT"]),)](x, y, rows, D=64, BT=params["BT"])
    return (y,)
"""

CASE = Case("triton/wide.py", WIDE, {"BT": 16}, [["x", [40, 64], "float32", "normal"]])


@pytest.mark.slow
def test_they_compute_the_same() -> None:
    trials = []
    for rule in (DescriptorLoad(), DescriptorStore()):
        (site,) = rule.sites(kernel := KernelSource(WIDE))
        child = rule.apply(kernel, site, np.random.default_rng(0))
        assert child is not None
        trials.append(Trial(CASE.name, rule.name, site.key, child.source, {"BT": 16}))
    run_checks([CASE], trials)
    assert [(t.rule, t.reason) for t in trials if not t.ok] == []


@pytest.mark.parametrize("rule", [DescriptorLoad(), DescriptorStore()], ids=lambda rule: rule.name)
def test_a_descriptor_is_told_a_place_in_32_bits(rule: DescriptorLoad | DescriptorStore) -> None:
    (site,) = rule.sites(kernel := KernelSource(WIDE))
    child = rule.apply(kernel, site, np.random.default_rng(0))
    assert child is not None and check(child.source, entry="launch") == []
    assert "tl.cast(i_t * BT, tl.int32), 0]" in child.source
