"""Computing an operand of a product once: it stays what it was, can then be lowered, and what is refused."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from testkit.rewriting import Trial, load_cases, run_checks
from tilewright.evolve.proposers.rewrite.base import KernelSource, Unsupported
from tilewright.evolve.proposers.rewrite.gluon.lower import LowerProduct
from tilewright.evolve.proposers.rewrite.gluon.operand_once import ComputeOperandOnce
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.dialect import check

(CASE,) = load_cases(["packed_weights"])


def after(source, rule):
    kernel = KernelSource(source)
    (site,) = rule.sites(kernel)
    child = rule.apply(kernel, site, np.random.default_rng(0))
    assert child is not None
    return child.source


@cache
def refusal(source):
    try:
        after(source, ComputeOperandOnce())
    except Unsupported as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_lowered_behind_it_the_product_stays_the_same_tails_included():
    once = after(CASE.source, ComputeOperandOnce())
    both = after(once, LowerProduct())
    assert check(both, entry="launch") == []
    tails = [[name, [{72: 40, 48: 41}.get(n, n) for n in shape], *rest] for name, shape, *rest in CASE.inputs]
    wrong = once.replace("code.to(tl.float32) - zero", "code.to(tl.float32) + zero")
    assert wrong != once
    for inputs, sources in ((CASE.inputs, (once, both)), (tails, (once, both))):
        trials = []
        for source in sources:
            point = {k: CASE.params.get(k, v) for k, v in read_declarations(source).defaults.items()}
            trials.append(Trial(CASE.name, "", "", source, point))
        broken = Trial(CASE.name, "", "", wrong, CASE.params)
        run_checks([replace(CASE, inputs=inputs)], [*trials, broken])
        assert [t.reason for t in trials if not t.ok] == []
        assert not broken.ok


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("zero[None, :])", "zero[None, :] + pm)", "more than its own tile"),
        ("zero[None, :])", "zero[None, :] + tl.program_id(0))", "more than its own tile"),
        ("(tl.float16)\n        acc", "(codes.dtype.element_ty)\n        acc", "whose type is not said"),
        ("code = tl.load", "zero += 1.0\n        code = tl.load", "that the loop carries"),
        ("range(tl.cdiv(k, BK))", "range(1, tl.cdiv(k, BK))", "step through K from 0"),
        ("range(tl.cdiv(k, BK))", "range(tl.load(codes))", "which the host does not know"),
        ("i[:, None] * n + j[None, :]", "i[:, None] + j[None, :] * m", "stored as no tile of rows"),
    ],
)  # fmt: skip
def test_what_is_refused(old, new, reason):
    assert old in CASE.source and refusal(CASE.source) == ""
    assert reason in refusal(CASE.source.replace(old, new))
