"""Several rows in one program: the same numbers, past the last row too, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from testkit.rewriting import Case, Trial, load_cases, run_checks
from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported
from tilewright.evolve.proposers.rewrite.triton.rows import RowsPerProgram
from tilewright.fitness.dialect import check

ONLINE = """
import torch
import triton
import triton.language as tl

SPACE = {"BLOCK": (32, 64)}
DEFAULTS = {"BLOCK": 32}
CONSTRAINTS = {}


@triton.jit
def weigh(x, w):
    return tl.exp(x) * w


@triton.jit
def lse_kernel(x_ptr, w_ptr, y_ptr, z_ptr, N, heads, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    base = (row * heads + head) * N
    w = tl.load(w_ptr + head)
    top = -float("inf")
    total = 0.0
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + at, mask=at < N, other=-float("inf"))
        now = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - now) + tl.sum(weigh(x - now, w), axis=0)
        top = now
    tl.store(z_ptr + row * heads + head, tl.log(total) + top)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + at, mask=at < N, other=0.0)
        tl.store(y_ptr + base + at, tl.exp(x - top) / total, mask=at < N)


def launch(inputs, params):
    x = inputs["x"]
    rows, heads, n = x.shape
    y = torch.empty((rows, heads, n), dtype=torch.float32)
    z = torch.empty((rows, heads), dtype=torch.float32)
    lse_kernel[(rows, heads)](x, inputs["w"], y, z, n, heads, BLOCK=params["BLOCK"])
    return (y, z)
"""

CASE = Case("triton/online.py", ONLINE, {"BLOCK": 32},
            [["x", [7, 3, 100], "float32", "normal"], ["w", [3], "float32", "positive"]])  # fmt: skip
SOFTMAX = load_cases(["triton/softmax_rows"])[0].source


def test_rows_of_either_axis_keep_the_meaning() -> None:
    rule, kernel = RowsPerProgram(), KernelSource(ONLINE)
    trials = []
    for site in rule.sites(kernel):
        child = rule.apply(kernel, site, np.random.default_rng(0))
        assert child is not None and check(child.source, entry="launch") == []
        (name,) = child.added
        for rows in (1, 4):
            trials.append(Trial(CASE.name, rule.name, site.key, child.source, {"BLOCK": 32, name: rows}))
    assert {t.site for t in trials} == {"lse_kernel/0/rows of axis 0", "lse_kernel/1/rows of axis 1"}
    run_checks([CASE], trials)
    assert [(t.site, t.params, t.reason) for t in trials if not t.ok] == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("    row = tl.program_id(0)\n", "    row = tl.program_id(0)\n    if row > 3:\n        return\n",
         "leaves early"),
        ("    cols = ", "    if row > 3:\n        n_cols = n_cols - 1\n    cols = ", "a branch on the row"),
        ("tl.store(out_ptr + row", "tl.atomic_add(out_ptr + row", "atomic_add of several rows"),
        ("tl.arange(0, BLOCK)\n", "tl.arange(0, BLOCK)[None, :]\n", "values of two axes"),
        ("softmax_kernel[(x.shape[0],)](y, x", "softmax_kernel[(x.shape[0],)](x, x", "read after it is written"),
        ("    num = tl.exp(x)\n", "    num = tl.cumsum(tl.exp(x), axis=0)\n", "cumsum of several rows"),
    ],
)  # fmt: skip
def test_what_is_left_alone(old: str, new: str, reason: str) -> None:
    assert old in SOFTMAX and RowsPerProgram().sites(KernelSource(SOFTMAX))
    with pytest.raises(Unsupported, match=reason):
        RowsPerProgram().sites(KernelSource(SOFTMAX.replace(old, new)))
