"""Descriptors in kernels that count in 64 bits are told places in 32."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("rule", [DescriptorLoad(), DescriptorStore()], ids=lambda rule: rule.name)
def test_a_descriptor_is_told_a_place_in_32_bits(rule: DescriptorLoad | DescriptorStore) -> None:
    (site,) = rule.sites(kernel := KernelSource(WIDE))
    child = rule.apply(kernel, site, np.random.default_rng(0))
    assert child is not None and check(child.source, entry="launch") == []
    assert "tl.cast(i_t * BT, tl.int32), 0]" in child.source
