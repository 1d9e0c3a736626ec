"""Reading kernels, editing them, and what happens with source no rule can follow."""

import ast
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit import CORPUS
from tilewright.evolve.proposers.rewrite.base import KernelSource
from tilewright.evolve.proposers.rewrite.edit import Edit
from tilewright.evolve.proposers.rewrite.proposer import RewriteProposer, offers

PLAIN = (CORPUS / "pallas" / "matmul_plain.py").read_text()
MASKED = (CORPUS / "triton" / "matmul_masked.py").read_text()


def test_edit_keeps_comments_and_layout():
    source = PLAIN.replace("def build(params):", "# launches it\ndef build(params):  # the entry")
    edit = Edit(KernelSource(source))
    name = edit.add_parameter("depth", (1, 2), 1)
    edit.insert_before(edit.kernel.functions[0], f"WANTED = '{name}'")
    loop = next(f for f in edit.kernel.functions if f.name.value == "build")
    edit.insert_before(loop.body.body[0], f"unused = params['{name}']")
    result = edit.finish()
    assert result is not None
    assert "# launches it" in result.source
    assert "# the entry" in result.source


def test_unused_parameters_leave_the_space():
    source = PLAIN.replace('SPACE = {"block_m"', 'SPACE = {"spare": (1, 2), "block_m"')
    source = source.replace('DEFAULTS = {"block_m"', 'DEFAULTS = {"spare": 1, "block_m"')
    edit = Edit(KernelSource(source))
    edit.add_constraint("M > 0", "rows")
    result = edit.finish()
    assert result is not None
    assert "spare" not in KernelSource(result.source).space
    assert result.dropped == ("spare",)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def build(:\n", "does not parse"),
        ("x = 1\n", "no import of triton, gluon or pallas"),
        ("import triton\nSPACE = dict(a=1)\n", "SPACE is not a literal dict"),
        ("import triton\nSPACE = {'a': tuple(range(3))}\n", "SPACE is not a literal"),
        (PLAIN.replace("grid=(", "grid_spec=("), "grid_spec"),
        (
            PLAIN.replace("functools.partial(matmul_kernel, nsteps=k // tk)", "make(matmul_kernel)"),
            "a kernel given as Call",
        ),
        (PLAIN.replace("x_ref, y_ref, z_ref, acc_ref, *,", "*refs,"), "takes *refs"),
    ],
)
def test_unsupported_source_is_named_once(source, reason, caplog):
    offers.cache_clear()
    with caplog.at_level(logging.INFO):
        pairs = offers(source)
    lines = [r.getMessage() for r in caplog.records]
    assert sum(reason in line for line in lines) == 1
    assert not any(rule.name.startswith(("pallas_cache", "pallas_chunk")) for rule, _ in pairs)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(PLAIN) - 1), st.integers(1, 60))
def test_damaged_source_never_raises(start, length):
    damaged = PLAIN[:start] + PLAIN[start + length :]
    proposal = RewriteProposer().propose(damaged, {}, np.random.default_rng(start))
    if proposal is not None:
        ast.parse(proposal.source)


def test_parameters_follow_the_rule():
    proposer = RewriteProposer(only=["pallas_whole_reduction_block"])
    child = proposer.propose(PLAIN, {"block_m": 128, "block_n": 128, "block_k": 128}, np.random.default_rng(0))
    assert child is not None
    assert "block_k" not in child.params
    assert set(child.params) == set(KernelSource(child.source).space)
