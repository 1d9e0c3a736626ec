"""Addresses under rules: descriptors count them in 32 bits, and describe some tensors alone."""

from dataclasses import replace

import numpy as np
import pytest

from testkit.rewriting import Trial, load_cases, run_checks
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.triton.descriptors import DescriptorLoad
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


def test_a_descriptor_is_told_a_place_in_32_bits():
    rule = DescriptorLoad()
    (site,) = rule.sites(kernel := KernelSource(WIDE))
    child = rule.apply(kernel, site, np.random.default_rng(0))
    assert child is not None and check(child.source, entry="launch") == []
    assert "tl.cast(BT * i_t, tl.int32), 0]" in child.source


@pytest.mark.parametrize("size", [96, 42])
def test_a_tensor_that_no_descriptor_describes_is_loaded_as_before(size):
    """Rows of 42 numbers of two bytes begin anywhere; a suite holds such a shape beside those that are timed."""
    (case,) = load_cases(["triton/matmul_masked.py"])
    rule, kernel = DescriptorLoad(), KernelSource(case.source)
    inputs = [[name, [size if n == 96 else n for n in shape], *rest] for name, shape, *rest in case.inputs]
    trials = []
    for site in rule.sites(kernel):
        child = rule.apply(kernel, site, np.random.default_rng(0))
        assert child is not None and check(child.source, entry="launch") == []
        trials.append(Trial(case.name, rule.name, site.key, child.source, case.params))
    assert len(trials) == 2
    run_checks([replace(case, inputs=inputs)], trials)
    assert [t.reason for t in trials if not t.ok] == []
