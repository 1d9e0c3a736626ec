"""Computing an operand of a product once: it stays what it was, can then be lowered, and what is refused."""

from dataclasses import replace

import pytest

from testkit.rewriting import Trial, load_cases, refusal, rewritten, run_checks
from tilewright.evolve.proposers.rewrite.gluon.lower import LowerProduct
from tilewright.evolve.proposers.rewrite.gluon.operand_once import ComputeOperandOnce
from tilewright.evolve.space.space import read_declarations
from tilewright.fitness.dialect import check

(CASE,) = load_cases(["packed_weights"])


@pytest.mark.slow
def test_lowered_behind_it_the_product_stays_the_same_tails_included():
    once = rewritten(ComputeOperandOnce, CASE.source)
    both = rewritten(LowerProduct, once)
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
    assert old in CASE.source and refusal(ComputeOperandOnce, CASE.source) == ""
    assert reason in refusal(ComputeOperandOnce, CASE.source.replace(old, new))
