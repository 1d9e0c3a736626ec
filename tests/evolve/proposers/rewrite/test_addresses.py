"""Addresses under rules: a persistent grid begins them anew for each tile, descriptors count them in 32 bits."""

from dataclasses import replace

import numpy as np
import pytest

from testkit.rewriting import Case, Trial, load_cases, run_checks
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.triton.descriptors import DescriptorLoad
from tilewright.evolve.proposers.rewrite.triton.programs import PersistentGrid
from tilewright.fitness.dialect import check

MOVED = """
import torch
import triton
import triton.language as tl

SPACE = {"num_warps": (1, 4)}
DEFAULTS = {"num_warps": 4}
CONSTRAINTS = {}


@triton.jit
def row_norm(x, y, sums, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * N
    sums += row
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < N, other=0.0)
    total = tl.sum(values * values, axis=0)
    tl.store(sums, total)
    y = y + row * N + at
    tl.store(y, values / tl.sqrt(total), mask=at < N)


def launch(inputs, params):
    x = inputs["x"]
    rows, n = x.shape
    y = torch.empty((rows, n), dtype=torch.float32)
    sums = torch.empty((rows,), dtype=torch.float32)
    row_norm[(rows,)](x, y, sums, n, BLOCK=128, num_warps=params["num_warps"])
    return (y, sums)
"""

CASE = Case("triton/moved.py", MOVED, {"num_warps": 4}, [["x", [70, 100], "float32", "normal"]])


def test_pointers_that_a_tile_moves_on_begin_anew():
    rule, kernel = PersistentGrid(), KernelSource(MOVED)
    (site,) = rule.sites(kernel)
    child = rule.apply(kernel, site, np.random.default_rng(0))
    assert child is not None and check(child.source, entry="launch") == []
    trial = Trial(CASE.name, rule.name, site.key, child.source, {"num_warps": 4, "programs": 66})
    run_checks([CASE], [trial])
    assert trial.ok, trial.reason


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
    assert "tl.cast(i_t * BT, tl.int32), 0]" in child.source


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
