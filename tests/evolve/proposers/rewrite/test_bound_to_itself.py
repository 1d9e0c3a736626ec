"""Names that are bound to what they are part of: every rule comes to an end on them, and none follows them."""

import pytest

from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported
from tilewright.evolve.proposers.rewrite.registry import rules

KERNEL = """
import torch
import triton
import triton.language as tl

SPACE = {"BLOCK": (64, 128)}
DEFAULTS = {"BLOCK": 64}
CONSTRAINTS = {}


@triton.jit
def row_max(inp, out, M, N, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    inp = inp + rows * N
    start = tl.program_id(1) * BLOCK
    start = start + tl.arange(0, BLOCK)
    values = tl.load(inp + start[None, :], mask=(rows < M) & (start[None, :] < N), other=0.0)
    out = out + rows * N + start[None, :]
    tl.store(out, values, mask=(rows < M) & (start[None, :] < N))


def launch(inputs, params):
    x = inputs["x"]
    o = torch.empty_like(x)
    grid = (triton.cdiv(x.shape[0], 4), triton.cdiv(x.shape[1], params["BLOCK"]))
    row_max[grid](x, o, x.shape[0], x.shape[1], BLOCK_M=4, BLOCK=params["BLOCK"])
    return (o,)
"""


@pytest.mark.parametrize("rule", rules("triton"), ids=lambda rule: rule.name)
def test_every_rule_comes_to_an_end(rule):
    try:
        places = list(rule.sites(KernelSource(KERNEL)))
    except Unsupported:
        places = []
    assert not (places and "descriptor" in rule.name)
